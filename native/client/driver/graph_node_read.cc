// SPDX-License-Identifier: Apache-2.0
// What nodes of graphs hold, as the worker's driver tells it, turned into CUDA's structures. What
// pointers in those point to belongs to the node's handle.
#include "client/driver/graph.h"
#include "client/driver/graph_node_types.h"
#include "client/driver/module.h"

using namespace sluice::client;
namespace wire = sluice::wire;

CUresult sluice::client::read_node(Session* s, const GraphNode& node, Graph* graph,
                                   NodeContents* out) {
  std::vector<std::byte> sink(64 << 10);
  size_t got = 0;
  const CUresult e =
      s->exchange(wire::kGraphNodeGet, wire::GraphNodeGet{node.graph, node.ordinal, 0}, {}, sink,
                  &got, nullptr, graph->device->context());
  if (e != CUDA_SUCCESS) return e;
  wire::GraphNodeBody head{};
  if (got < sizeof head) return CUDA_ERROR_UNKNOWN;
  std::memcpy(&head, sink.data(), sizeof head);
  const size_t bytes = std::min<size_t>(head.body_bytes, std::min(got, sink.size()) - sizeof head);
  out->type = static_cast<CUgraphNodeType>(head.type);
  GraphPlan::Node memory;
  if (out->type == CU_GRAPH_NODE_TYPE_EMPTY && find_memory_node(*graph, node.ordinal, &memory))
    out->type = memory.allocates ? CU_GRAPH_NODE_TYPE_MEM_ALLOC : CU_GRAPH_NODE_TYPE_MEM_FREE;
  out->body.assign(sink.data() + sizeof head, sink.data() + sizeof head + bytes);
  // Memory operations, or a child graph of them and a copy, may be a call of ours.
  if ((out->type != CU_GRAPH_NODE_TYPE_BATCH_MEM_OP && out->type != CU_GRAPH_NODE_TYPE_GRAPH) ||
      bytes < sizeof(wire::MemOpsNode) + sizeof(wire::MemOp))
    return CUDA_SUCCESS;
  wire::MemOp first;
  std::memcpy(&first, out->body.data() + sizeof(wire::MemOpsNode), sizeof first);
  for (const HostCall& call : root_of(s, graph)->host.calls) {
    const bool copies = call.kind != HostCall::Kind::kFunction;
    if (call.words->address != first.address || (out->type == CU_GRAPH_NODE_TYPE_GRAPH && !copies))
      continue;
    out->type = copies ? CU_GRAPH_NODE_TYPE_MEMCPY : CU_GRAPH_NODE_TYPE_HOST;
    out->call = &call;
  }
  return CUDA_SUCCESS;
}

namespace {

CUresult show_kernel(Session* s, GraphNode* node, const NodeContents& r,
                     CUDA_KERNEL_NODE_PARAMS_v3* k) {
  const auto* n = r.as<wire::KernelNode>();
  const Function* f = n ? find_function(s, reinterpret_cast<void*>(n->function)) : nullptr;
  if (!f || r.body.size() < sizeof *n + n->param_bytes) return CUDA_ERROR_NOT_SUPPORTED;
  node->params.assign(r.body.begin() + sizeof *n, r.body.begin() + sizeof *n + n->param_bytes);
  node->pointers.clear();
  for (const auto& param : f->params)
    if (param.offset + param.size <= node->params.size())
      node->pointers.push_back(node->params.data() + param.offset);
  k->func = reinterpret_cast<CUfunction>(n->function);
  k->gridDimX = n->grid[0], k->gridDimY = n->grid[1], k->gridDimZ = n->grid[2];
  k->blockDimX = n->block[0], k->blockDimY = n->block[1], k->blockDimZ = n->block[2];
  k->sharedMemBytes = n->shared_bytes;
  k->kernelParams = node->pointers.data();
  return CUDA_SUCCESS;
}

void show_end(const wire::CopySide& side, CUmemorytype* type, void** host, CUdeviceptr* device,
              size_t* pitch, size_t* height) {
  *type = side.place == wire::NodeMemory::kDevice ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
  *pitch = side.pitch;
  *height = side.pitch ? side.slice / side.pitch : 0;
  if (side.place == wire::NodeMemory::kDevice) *device = side.address;
  if (side.place == wire::NodeMemory::kArena) *host = reinterpret_cast<void*>(side.address);
}

void show_copy(const wire::CopyNode& c, CUDA_MEMCPY3D* m) {
  void* from = nullptr;
  show_end(c.to, &m->dstMemoryType, &m->dstHost, &m->dstDevice, &m->dstPitch, &m->dstHeight);
  show_end(c.from, &m->srcMemoryType, &from, &m->srcDevice, &m->srcPitch, &m->srcHeight);
  m->srcHost = from;
  m->WidthInBytes = c.width, m->Height = c.rows, m->Depth = c.depth;
}

CUresult show_child(Session* s, GraphNode* node, Graph* graph, CUgraph* out) {
  for (const auto& [ordinal, id] : graph->children)
    if (ordinal == node->ordinal) {
      *out = reinterpret_cast<CUgraph>(id);
      return CUDA_SUCCESS;
    }
  uint64_t id;
  Graph* child = s->graphs.create(&id);
  if (!child) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult e =
      s->exchange(wire::kGraphCopy, wire::GraphCopy{id, node->graph, node->ordinal, 0}, {}, {},
                  nullptr, nullptr, graph->device->context());
  if (e != CUDA_SUCCESS) return s->graphs.destroy(id), e;
  child->device = graph->device;
  child->parent = node->graph;
  graph->children.emplace_back(node->ordinal, id);
  *out = reinterpret_cast<CUgraph>(id);
  return CUDA_SUCCESS;
}

void show_operations(GraphNode* node, const NodeContents& r, CUDA_BATCH_MEM_OP_NODE_PARAMS_v2* m) {
  node->operations.clear();
  for (size_t at = sizeof(wire::MemOpsNode); at + sizeof(wire::MemOp) <= r.body.size();
       at += sizeof(wire::MemOp)) {
    wire::MemOp op;
    std::memcpy(&op, r.body.data() + at, sizeof op);
    CUstreamBatchMemOpParams to{};
    to.operation = static_cast<CUstreamBatchMemOpType>(op.operation);
    if (op.operation == CU_STREAM_MEM_OP_BARRIER) {
      to.memoryBarrier.flags = op.flags;
    } else {
      to.waitValue.address = op.address;
      to.waitValue.value64 = op.value;
      to.waitValue.flags = op.flags;
    }
    node->operations.push_back(to);
  }
  m->count = static_cast<unsigned>(node->operations.size());
  m->paramArray = node->operations.data();
}

}  // namespace

CUresult sluice::graph_nodes::params_of(CUgraphNode handle, CUgraphNodeType type,
                                        CUgraphNodeParams* params) {
  Session* s;
  GraphNode* node;
  Graph* graph;
  if (const CUresult e = find_node(handle, &s, &node, &graph); e != CUDA_SUCCESS) return e;
  NodeContents r;
  if (const CUresult e = read_node(s, *node, graph, &r); e != CUDA_SUCCESS) return e;
  if (r.type != type) return CUDA_ERROR_INVALID_VALUE;
  *params = {};
  params->type = type;
  const auto context = reinterpret_cast<CUcontext>(graph->device->primary);
  if (type == CU_GRAPH_NODE_TYPE_KERNEL) {
    params->kernel.ctx = context;
    return show_kernel(s, node, r, &params->kernel);
  }
  if (type == CU_GRAPH_NODE_TYPE_GRAPH) return show_child(s, node, graph, &params->graph.graph);
  if (type == CU_GRAPH_NODE_TYPE_MEMCPY) {
    params->memcpy.copyCtx = context;
    if (r.call)
      params->memcpy.copyParams = *r.call->copy;
    else if (const auto* copy = r.as<wire::CopyNode>())
      show_copy(*copy, &params->memcpy.copyParams);
  }
  if (const auto* f = r.as<wire::FillNode>(); f && type == CU_GRAPH_NODE_TYPE_MEMSET)
    params->memset = {f->address, f->pitch, f->value, f->element_bytes, f->width, f->rows, context};
  if (type == CU_GRAPH_NODE_TYPE_HOST) params->host = {r.call->function, r.call->data};
  if (const auto* e = r.as<wire::EventNode>(); e && type == CU_GRAPH_NODE_TYPE_EVENT_RECORD)
    params->eventRecord.event = reinterpret_cast<CUevent>(e->event);
  if (const auto* e = r.as<wire::EventNode>(); e && type == CU_GRAPH_NODE_TYPE_WAIT_EVENT)
    params->eventWait.event = reinterpret_cast<CUevent>(e->event);
  if (GraphPlan::Node memory; find_memory_node(*graph, node->ordinal, &memory)) {
    if (memory.allocates)
      params->alloc = {memory.properties, nullptr, 0, memory.bytes, memory.address};
    else
      params->free.dptr = memory.address;
  }
  if (type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP) show_operations(node, r, &params->memOp);
  return CUDA_SUCCESS;
}

extern "C" CUresult cuGraphNodeGetType(CUgraphNode handle, CUgraphNodeType* type) {
  Session* s;
  GraphNode* node;
  Graph* graph;
  if (const CUresult e = find_node(handle, &s, &node, &graph); e != CUDA_SUCCESS) return e;
  if (!type) return CUDA_ERROR_INVALID_VALUE;
  NodeContents r;
  const CUresult e = read_node(s, *node, graph, &r);
  if (e == CUDA_SUCCESS) *type = r.type;
  return e;
}
