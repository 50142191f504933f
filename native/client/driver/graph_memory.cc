// SPDX-License-Identifier: Apache-2.0
// Memory nodes of graphs: arguments, and where nodes go; which addresses an allocation gets and
// what memory is behind them is decided in core/graph_memory.h. The worker knows these nodes as
// empty ones.
#include "client/driver/graph.h"
#include "client/driver/graph_node_types.h"

using namespace sluice::client;
namespace wire = sluice::wire;

namespace {

// Whether CUDA takes such nodes in this graph. It makes the graph's plan.
CUresult want_plan(Graph* graph) {
  // Inside conditions and children there are none.
  if (graph->parent) return CUDA_ERROR_NOT_SUPPORTED;
  if (!graph->memory) graph->memory = graph->device->graph_memory.make_plan();
  return CUDA_SUCCESS;
}

CUresult check_free(const Graph& graph, CUdeviceptr pointer) {
  return graph.device->graph_memory.check_free(graph.memory ? &**graph.memory : nullptr, pointer);
}

CUresult check_allocation(Session* s, const Graph& graph, const CUDA_MEM_ALLOC_NODE_PARAMS_v2& p,
                          std::set<uint32_t>* peers) {
  const auto& devices = s->devices();
  const CUmemLocation& location = p.poolProps.location;
  if (p.bytesize == 0 || p.poolProps.allocType == CU_MEM_ALLOCATION_TYPE_INVALID ||
      location.type == CU_MEM_LOCATION_TYPE_INVALID ||
      p.poolProps.handleTypes != CU_MEM_HANDLE_TYPE_NONE || p.accessDescCount > devices.size() ||
      (p.accessDescCount && !p.accessDescs))
    return CUDA_ERROR_INVALID_VALUE;
  if (p.poolProps.allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
      location.type != CU_MEM_LOCATION_TYPE_DEVICE)
    return CUDA_ERROR_NOT_SUPPORTED;
  if (location.id < 0 || static_cast<size_t>(location.id) >= devices.size())
    return CUDA_ERROR_INVALID_VALUE;
  if (devices[location.id].get() != graph.device) {
    note_refused("memory of another device than the graph's");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  for (size_t i = 0; i < p.accessDescCount; ++i) {
    const CUmemAccessDesc& d = p.accessDescs[i];
    if (d.location.type != CU_MEM_LOCATION_TYPE_DEVICE || d.location.id < 0 ||
        static_cast<size_t>(d.location.id) >= devices.size())
      return CUDA_ERROR_INVALID_VALUE;
    const Device& peer = *devices[d.location.id];
    if (&peer == graph.device || d.flags == CU_MEM_ACCESS_FLAGS_PROT_NONE) continue;
    if (!(peer.record.peers >> graph.device->index & 1)) return CUDA_ERROR_INVALID_DEVICE;
    peers->insert(peer.index);
  }
  return CUDA_SUCCESS;
}

// Gives the new node `ordinal` its addresses.
CUresult place(Session* s, uint64_t graph_id, Graph* graph, uint32_t ordinal, uint64_t bytes,
               const CUmemPoolProps& properties, const std::set<uint32_t>& peers,
               CUdeviceptr* pointer) {
  GraphPlan& plan = **graph->memory;
  std::set<uint32_t> before;
  if (plan.home.reusable(plan)) {
    std::vector<wire::GraphEdge> list;
    const CUresult e =
        fetch_list(s, wire::kGraphList,
                   wire::GraphList{graph_id, wire::GraphListOf::kAncestors, ordinal, 0, 0},
                   graph->device->context(), &list);
    if (e != CUDA_SUCCESS) return e;
    for (const wire::GraphEdge& node : list) before.insert(node.from);
  }
  uint64_t address = 0;
  const CUresult e = plan.home.allocate(plan, ordinal, bytes, properties, peers, before, &address);
  if (e == CUDA_SUCCESS) *pointer = address;
  return e;
}

// An empty node at the end of what the stream has recorded.
CUresult record_node(Session* s, Stream* stream, uint64_t graph_id, uint32_t* ordinal) {
  wire::GraphNodeReply reply{};
  size_t got = 0;
  const CUresult e = s->exchange(wire::kCaptureNode, wire::CaptureNode{stream->wire_id, graph_id},
                                 {}, {reinterpret_cast<std::byte*>(&reply), sizeof reply}, &got,
                                 nullptr, stream->device->context());
  if (e != CUDA_SUCCESS) return e;
  *ordinal = reply.node;
  return got < sizeof reply ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

CUresult captured_graph(Session* s, Stream* stream, uint64_t* id, Graph** graph) {
  CUstreamCaptureStatus status;
  Capture capture;
  if (const CUresult e = s->captures.status(stream, &status, &capture); e != CUDA_SUCCESS) return e;
  *id = capture.graph;
  *graph = s->graphs.find(capture.graph);
  return *graph ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}

CUresult device_at(CUdevice ordinal, Session** s, Device** d) {
  if (const CUresult e = enter(s); e != CUDA_SUCCESS) return e;
  const auto& all = (*s)->devices();
  if (ordinal < 0 || static_cast<size_t>(ordinal) >= all.size()) return CUDA_ERROR_INVALID_DEVICE;
  *d = all[static_cast<size_t>(ordinal)].get();
  return CUDA_SUCCESS;
}

}  // namespace

namespace sluice::client {

CUresult add_allocation_node(Session* s, uint64_t graph_id, Graph* graph,
                             const std::vector<wire::GraphEdge>& edges,
                             CUDA_MEM_ALLOC_NODE_PARAMS_v2* params, CUgraphNode* added) {
  std::set<uint32_t> peers;
  CUresult e = check_allocation(s, *graph, *params, &peers);
  if (e == CUDA_SUCCESS && params->bytesize > graph->device->record.memory_bytes)
    e = CUDA_ERROR_OUT_OF_MEMORY;
  if (e == CUDA_SUCCESS) e = want_plan(graph);
  if (e == CUDA_SUCCESS)
    e = send_node(s, graph_id, graph, CU_GRAPH_NODE_TYPE_EMPTY, {}, edges, graph->device, added);
  if (e != CUDA_SUCCESS) return e;
  const uint32_t ordinal = s->graph_nodes.find(*added)->ordinal;
  return place(s, graph_id, graph, ordinal, params->bytesize, params->poolProps, peers,
               &params->dptr);
}

CUresult add_free_node(Session* s, uint64_t graph_id, Graph* graph,
                       const std::vector<wire::GraphEdge>& edges, CUdeviceptr pointer,
                       CUgraphNode* added) {
  CUresult e = check_free(*graph, pointer);
  if (e == CUDA_SUCCESS) e = want_plan(graph);
  if (e == CUDA_SUCCESS)
    e = send_node(s, graph_id, graph, CU_GRAPH_NODE_TYPE_EMPTY, {}, edges, graph->device, added);
  if (e == CUDA_SUCCESS)
    graph->device->graph_memory.free(**graph->memory, s->graph_nodes.find(*added)->ordinal,
                                     pointer);
  return e;
}

CUresult capture_allocation(Session* s, Stream* stream, const CUmemPoolProps& properties,
                            uint64_t users, size_t bytes, CUdeviceptr* pointer) {
  uint64_t id;
  Graph* graph;
  uint32_t ordinal;
  if (const CUresult e = captured_graph(s, stream, &id, &graph); e != CUDA_SUCCESS) return e;
  if (graph->device != stream->device) return CUDA_ERROR_NOT_SUPPORTED;
  if (const CUresult e = want_plan(graph); e != CUDA_SUCCESS) return e;
  if (bytes > graph->device->record.memory_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  std::set<uint32_t> peers;
  for (const auto& d : s->devices())
    if (d.get() != graph->device && users >> d->index & 1) peers.insert(d->index);
  if (const CUresult e = record_node(s, stream, id, &ordinal); e != CUDA_SUCCESS) return e;
  return place(s, id, graph, ordinal, bytes, properties, peers, pointer);
}

CUresult capture_free(Session* s, Stream* stream, CUdeviceptr pointer) {
  uint64_t id;
  Graph* graph;
  uint32_t ordinal;
  if (const CUresult e = captured_graph(s, stream, &id, &graph); e != CUDA_SUCCESS) return e;
  CUresult e = check_free(*graph, pointer);
  if (e == CUDA_SUCCESS) e = want_plan(graph);
  if (e == CUDA_SUCCESS) e = record_node(s, stream, id, &ordinal);
  if (e == CUDA_SUCCESS) graph->device->graph_memory.free(**graph->memory, ordinal, pointer);
  return e;
}

bool find_memory_node(const Graph& graph, uint32_t ordinal, GraphPlan::Node* node) {
  return graph.memory && (*graph.memory)->home.node(**graph.memory, ordinal, node);
}

bool memory_fits(const Graph& graph, const GraphExec& exec) {
  if (graph.memory == exec.memory) return true;
  return graph.memory && exec.memory && graph.instance.expired() &&
         GraphMemory::alike(**graph.memory, **exec.memory);
}

}  // namespace sluice::client

extern "C" {

CUresult cuGraphAddMemAllocNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after,
                                size_t count, CUDA_MEM_ALLOC_NODE_PARAMS* params) {
  static_assert(sizeof(CUDA_MEM_ALLOC_NODE_PARAMS) == sizeof(CUDA_MEM_ALLOC_NODE_PARAMS_v2));
  if (!params) return CUDA_ERROR_INVALID_VALUE;
  CUgraphNodeParams all{};
  all.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
  std::memcpy(&all.alloc, params, sizeof all.alloc);
  const CUresult e = cuGraphAddNode_v2(node, graph, after, nullptr, count, &all);
  if (e == CUDA_SUCCESS) params->dptr = all.alloc.dptr;
  return e;
}

CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS* params) {
  if (!params) return CUDA_ERROR_INVALID_VALUE;
  CUgraphNodeParams all{};
  const CUresult e = sluice::graph_nodes::params_of(node, CU_GRAPH_NODE_TYPE_MEM_ALLOC, &all);
  if (e == CUDA_SUCCESS) std::memcpy(params, &all.alloc, sizeof *params);
  return e;
}

CUresult cuGraphAddMemFreeNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after,
                               size_t count, CUdeviceptr pointer) {
  CUgraphNodeParams all{};
  all.type = CU_GRAPH_NODE_TYPE_MEM_FREE;
  all.free.dptr = pointer;
  return cuGraphAddNode_v2(node, graph, after, nullptr, count, &all);
}

CUresult cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr* pointer) {
  if (!pointer) return CUDA_ERROR_INVALID_VALUE;
  CUgraphNodeParams all{};
  const CUresult e = sluice::graph_nodes::params_of(node, CU_GRAPH_NODE_TYPE_MEM_FREE, &all);
  if (e == CUDA_SUCCESS) *pointer = all.free.dptr;
  return e;
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute,
                                      void* value) {
  Session* s;
  Device* d;
  if (const CUresult e = device_at(device, &s, &d); e != CUDA_SUCCESS) return e;
  uint64_t bytes = 0;
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  const CUresult e = d->graph_memory.get(attribute, &bytes);
  if (e == CUDA_SUCCESS) std::memcpy(value, &bytes, sizeof bytes);
  return e;
}

// High-water marks can be reset, no more.
CUresult cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute,
                                      void* value) {
  Session* s;
  Device* d;
  if (const CUresult e = device_at(device, &s, &d); e != CUDA_SUCCESS) return e;
  uint64_t bytes = 0;
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(&bytes, value, sizeof bytes);
  return bytes ? CUDA_ERROR_INVALID_VALUE : d->graph_memory.reset(attribute);
}

CUresult cuDeviceGraphMemTrim(CUdevice device) {
  Session* s;
  Device* d;
  if (const CUresult e = device_at(device, &s, &d); e != CUDA_SUCCESS) return e;
  d->graph_memory.trim();
  return s->sticky();
}

}  // extern "C"
