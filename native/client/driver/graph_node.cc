// SPDX-License-Identifier: Apache-2.0
// Nodes of graphs: the three general functions that add and change one. What a node holds is
// checked here as CUDA does at once, and travels as the worker wants it. Host functions become
// memory operations (graph_host.cc).
#include "client/core/addresses.h"
#include "client/core/log.h"
#include "client/driver/graph.h"
#include "client/driver/launch.h"
#include "client/driver/module.h"
#include "client/objects/context.h"
#include "client/objects/event.h"

using namespace sluice::client;
namespace wire = sluice::wire;

namespace {

// A node's body, and what it leaves in this process once the worker has taken it.
struct Packed {
  uint32_t type = 0;
  std::vector<std::byte> body;
  std::vector<HostCall> calls;
  std::vector<HostAround> around;
  HostSide child;
  Device* device = nullptr;

  template <class T>
  void put(const T& value) {
    const auto* at = reinterpret_cast<const std::byte*>(&value);
    body.insert(body.end(), at, at + sizeof value);
  }
};

CUresult pack_kernel(Session* s, const CUDA_KERNEL_NODE_PARAMS_v3& k, Packed* p) {
  const void* handle = k.func ? static_cast<const void*>(k.func) : k.kern;
  const Function* f = find_function(s, handle);
  if (!f) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult e = device_of_context(s, k.ctx, &p->device); e != CUDA_SUCCESS) return e;
  wire::KernelNode n{reinterpret_cast<uint64_t>(handle),
                     {k.gridDimX, k.gridDimY, k.gridDimZ},
                     {k.blockDimX, k.blockDimY, k.blockDimZ},
                     k.sharedMemBytes,
                     0};
  if (const CUresult e = check_launch(*p->device, *f, n.grid, n.block, n.shared_bytes);
      e != CUDA_SUCCESS)
    return e;
  if (const CUresult e = want_local_memory(s, *p->device, *f); e != CUDA_SUCCESS) return e;
  std::vector<std::byte> params(kMaxParamBytes);
  if (const CUresult e = gather_params(*f, k.kernelParams, k.extra, params.data(), &n.param_bytes);
      e != CUDA_SUCCESS)
    return e;
  params.resize(n.param_bytes);
  p->put(n);
  p->body.insert(p->body.end(), params.begin(), params.end());
  return CUDA_SUCCESS;
}

CUresult pack_fill(Session* s, const CUDA_MEMSET_NODE_PARAMS_v2& m, Packed* p) {
  if (const CUresult e = device_of_context(s, m.ctx, &p->device); e != CUDA_SUCCESS) return e;
  const uint32_t element = m.elementSize;
  uint64_t row = 0, rows = 0;
  if ((element != 1 && element != 2 && element != 4) || !m.width || !m.height || m.dst % element ||
      __builtin_mul_overflow(m.width, uint64_t{element}, &row) ||
      (m.height > 1 && (m.pitch < row || __builtin_mul_overflow(m.pitch, m.height - 1, &rows))) ||
      !is_backed(s, m.dst, rows + row, p->device))
    return CUDA_ERROR_INVALID_VALUE;
  p->put(wire::FillNode{m.dst, m.pitch, m.width, m.height, element, m.value});
  return CUDA_SUCCESS;
}

CUresult pack_event(Session* s, CUevent handle, bool record, Packed* p) {
  Event* event = s->events.find(handle);
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  if (event->shared) return CUDA_ERROR_NOT_SUPPORTED;  // the driver does not know it
  if (event->device->place.node != p->device->place.node) return CUDA_ERROR_NOT_SUPPORTED;
  if (record) leave_to_driver(s, handle, event);
  p->put(wire::EventNode{reinterpret_cast<uint64_t>(handle)});
  return CUDA_SUCCESS;
}

void put_operations(const std::vector<wire::MemOp>& operations, Packed* p) {
  p->type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
  p->put(wire::MemOpsNode{static_cast<uint32_t>(operations.size()), 0});
  for (const wire::MemOp& op : operations) p->put(op);
}

// `now`: the call that the node has already.
CUresult pack_host(Session* s, const CUDA_HOST_NODE_PARAMS_v2& h, const HostCall* now, Packed* p) {
  if (!h.fn) return CUDA_ERROR_INVALID_VALUE;
  HostCall call;
  call.key = now ? now->key : make_call_key();
  call.words = now ? now->words : make_handshake(s);
  if (!call.words) return CUDA_ERROR_OUT_OF_MEMORY;
  call.function = h.fn;
  call.data = h.userData;
  call.run = [h] { h.fn(h.userData); };
  put_operations(handshake_operations(*call.words), p);
  p->calls.push_back(std::move(call));
  return CUDA_SUCCESS;
}

CUresult pack_box(Session* s, const CUDA_MEMCPY_NODE_PARAMS& m, const HostCall* now, bool fixed,
                  bool body, Packed* p) {
  if (const CUresult e = device_of_context(s, m.copyCtx, &p->device); e != CUDA_SUCCESS) return e;
  PackedCopy copy;
  const CUresult e = pack_copy(s, p->device, m.copyParams, now, fixed, body, &copy);
  p->type = copy.type;
  p->body = std::move(copy.body);
  p->calls = std::move(copy.calls);
  p->around = std::move(copy.around);
  return e;
}

// A graph that is put into the same one twice calls by other words the second time.
CUresult pack_child(Session* s, CUgraph handle, Graph* into, Packed* p) {
  Graph* child = s->graphs.find(handle);
  if (!child || s->captures.of_graph(id_of(handle))) return CUDA_ERROR_INVALID_VALUE;
  if (stands_alone(*child)) return CUDA_ERROR_NOT_SUPPORTED;
  if (child->device->place.node != into->device->place.node) return CUDA_ERROR_NOT_SUPPORTED;
  if (child->parent && !root_of(s, child)->host.calls.empty()) {
    note_refused("a part of a graph that calls host functions, as a child,");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (into->body && !child->host.calls.empty()) {  // CUDA takes none there either
    note_refused("a child graph with host functions in a condition");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  const HostSide& there = root_of(s, into)->host;
  const CUresult e = renew_words(s, id_of(handle), child, true, [&](const HostCall& call) {
    return std::any_of(there.calls.begin(), there.calls.end(),
                       [&](const HostCall& other) { return other.words == call.words; });
  });
  if (e != CUDA_SUCCESS) return e;
  p->child = child->host;
  p->put(wire::ChildNode{id_of(handle)});
  return CUDA_SUCCESS;
}

CUresult pack_kind(Session* s, const CUgraphNodeParams& n, Graph* graph, const HostCall* now,
                   bool fixed, Packed* p) {
  p->type = static_cast<uint32_t>(n.type);
  p->device = graph->device;
  if (graph->body && n.type > CU_GRAPH_NODE_TYPE_MEMSET && n.type != CU_GRAPH_NODE_TYPE_GRAPH &&
      n.type != CU_GRAPH_NODE_TYPE_EMPTY)
    return CUDA_ERROR_NOT_SUPPORTED;  // what CUDA takes inside a condition
  switch (n.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return pack_kernel(s, n.kernel, p);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return pack_box(s, n.memcpy, now, fixed, graph->body, p);
    case CU_GRAPH_NODE_TYPE_MEMSET:
      return pack_fill(s, n.memset, p);
    case CU_GRAPH_NODE_TYPE_HOST:
      return pack_host(s, n.host, now, p);
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return pack_child(s, n.graph.graph, graph, p);
    case CU_GRAPH_NODE_TYPE_EMPTY:
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return pack_event(s, n.eventRecord.event, true, p);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return pack_event(s, n.eventWait.event, false, p);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: {
      std::vector<wire::MemOp> operations;
      if (n.memOp.flags ||
          !pack_operations(s, n.memOp.paramArray, n.memOp.count, &operations, p->device))
        return CUDA_ERROR_INVALID_VALUE;
      put_operations(operations, p);
      return CUDA_SUCCESS;
    }
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
      return CUDA_ERROR_NOT_SUPPORTED;  // these cannot be changed
    default:
      note_refused("a semaphore node");
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

// A graph is one node's, whichever of its GPUs its parts run on.
CUresult pack(Session* s, const CUgraphNodeParams& n, Graph* graph, const HostCall* now, bool fixed,
              Packed* p) {
  const CUresult e = pack_kind(s, n, graph, now, fixed, p);
  if (e != CUDA_SUCCESS || p->device->place.node == graph->device->place.node) return e;
  note_refused("a part that runs on another node than the rest of its graph");
  return CUDA_ERROR_NOT_SUPPORTED;
}

void pad(std::vector<std::byte>* body) { body->resize(wire::round_up(body->size(), 8)); }

// What changing a node changes in this process. `key`: of the call that it had.
void note_changed(HostSide* host, Packed&& p, uint64_t key) {
  if (key) std::erase_if(host->calls, [&](const HostCall& call) { return call.key == key; });
  for (HostCall& call : p.calls) host->calls.push_back(std::move(call));
  for (HostAround& around : p.around) host->around.push_back(std::move(around));
  host->calls.insert(host->calls.end(), p.child.calls.begin(), p.child.calls.end());
  host->objects.insert(host->objects.end(), p.child.objects.begin(), p.child.objects.end());
}

CUresult set_params(CUgraphExec exec_handle, CUgraphNode handle, CUgraphNodeParams* params) {
  Session* s;
  GraphNode* node;
  Graph* graph;
  if (const CUresult e = find_node(handle, &s, &node, &graph); e != CUDA_SUCCESS) return e;
  GraphExec* exec = exec_handle ? s->graph_execs.find(exec_handle) : nullptr;
  if (!params || (exec_handle && !exec)) return CUDA_ERROR_INVALID_VALUE;
  HostSide* inside = &root_of(s, graph)->host;
  HostSide* host = exec ? &exec->host : inside;
  const HostCall* now = nullptr;
  const bool calls = params->type == CU_GRAPH_NODE_TYPE_HOST ||
                     (params->type == CU_GRAPH_NODE_TYPE_MEMCPY && !inside->calls.empty());
  if (calls) {
    NodeContents held;
    if (const CUresult e = read_node(s, *node, graph, &held); e != CUDA_SUCCESS) return e;
    if (held.type != params->type) return CUDA_ERROR_INVALID_VALUE;
    // An executable graph calls by words of its own.
    if (held.call && !(now = find_call(host, held.call->key))) return CUDA_ERROR_NOT_SUPPORTED;
  }
  const uint64_t key = now ? now->key : 0;
  Packed p;
  if (const CUresult e = pack(s, *params, graph, now, exec, &p); e != CUDA_SUCCESS) return e;
  if ((p.type == CU_GRAPH_NODE_TYPE_GRAPH && !p.child.calls.empty()) || !p.around.empty()) {
    note_refused("another child with host functions, or other memory in a condition,");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  pad(&p.body);
  const wire::GraphNodeSet m{node->graph,
                             id_of(exec_handle),
                             node->ordinal,
                             p.type,
                             static_cast<uint32_t>(p.body.size()),
                             0};
  const CUresult e =
      s->exchange(wire::kGraphNodeSet, m, p.body, {}, nullptr, nullptr, p.device->context());
  if (e != CUDA_SUCCESS) return e;
  if (exec && !p.calls.empty()) ++p.calls[0].words->execs;
  if (exec && now) --now->words->execs;
  note_changed(host, std::move(p), key);
  return e;
}

CUresult set_enabled(CUgraphExec exec_handle, CUgraphNode handle, wire::GraphChange what) {
  Session* s;
  GraphNode* node;
  Graph* graph;
  if (const CUresult e = find_node(handle, &s, &node, &graph); e != CUDA_SUCCESS) return e;
  GraphExec* exec = s->graph_execs.find(exec_handle);
  if (!exec) return CUDA_ERROR_INVALID_VALUE;
  if (!root_of(s, graph)->host.calls.empty()) {
    NodeContents held;
    if (const CUresult e = read_node(s, *node, graph, &held); e != CUDA_SUCCESS) return e;
    if (held.call && held.call->copy) {
      note_refused("the switch of a node that copies pageable memory");
      return CUDA_ERROR_NOT_SUPPORTED;
    }
  }
  const wire::GraphEdit m{node->graph, id_of(exec_handle), what, node->ordinal, 0, 0};
  const CUresult e =
      s->exchange(wire::kGraphEdit, m, {}, {}, nullptr, nullptr, graph->device->context());
  if (e != CUDA_SUCCESS) return e;
  std::erase(exec->disabled, id_of(handle));
  if (what == wire::GraphChange::kDisable) exec->disabled.push_back(id_of(handle));
  return CUDA_SUCCESS;
}

}  // namespace

CUresult sluice::client::device_of_context(Session* s, CUcontext handle, Device** device) {
  if (!handle) return CUDA_SUCCESS;
  const Context* context = s->contexts.find(handle);
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  *device = context->device;
  return CUDA_SUCCESS;
}

bool sluice::client::pack_operations(Session* s, const CUstreamBatchMemOpParams* operations,
                                     size_t count, std::vector<wire::MemOp>* packed,
                                     const Device* user) {
  if (!operations || count == 0 || count > wire::kMaxMemOps) return false;
  for (size_t i = 0; i < count; ++i) {
    const auto& from = operations[i];
    wire::MemOp op{static_cast<uint32_t>(from.operation), 0, 0, 0};
    uint64_t bytes = 0;
    switch (from.operation) {
      case CU_STREAM_MEM_OP_WAIT_VALUE_32:
      case CU_STREAM_MEM_OP_WAIT_VALUE_64:
        bytes = from.operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 ? 4 : 8;
        op = {op.operation, from.waitValue.flags, from.waitValue.address,
              bytes == 4 ? from.waitValue.value : from.waitValue.value64};
        if (op.flags > CU_STREAM_WAIT_VALUE_NOR) return false;
        break;
      case CU_STREAM_MEM_OP_WRITE_VALUE_32:
      case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        bytes = from.operation == CU_STREAM_MEM_OP_WRITE_VALUE_32 ? 4 : 8;
        op = {op.operation, 0, from.writeValue.address,
              bytes == 4 ? from.writeValue.value : from.writeValue.value64};
        if (from.writeValue.flags > CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER) return false;
        break;
      case CU_STREAM_MEM_OP_BARRIER:
        op.flags = from.memoryBarrier.flags;
        if (op.flags > CU_STREAM_MEMORY_BARRIER_TYPE_GPU) return false;
        break;
      default:
        return false;
    }
    if (bytes && (op.address % bytes || !is_backed(s, op.address, bytes, user))) return false;
    packed->push_back(op);
  }
  return true;
}

CUresult sluice::client::send_node(Session* s, uint64_t graph_id, Graph* graph, uint32_t type,
                                   const std::vector<std::byte>& body,
                                   const std::vector<wire::GraphEdge>& edges, const Device* device,
                                   CUgraphNode* added) {
  std::vector<std::byte> tail = body;
  pad(&tail);
  const wire::GraphNodeAdd m{graph_id, type, static_cast<uint32_t>(tail.size()),
                             static_cast<uint32_t>(edges.size()), 0};
  const auto list = bytes_of(edges);
  tail.insert(tail.end(), list.begin(), list.end());
  wire::GraphNodeReply reply{};
  size_t got = 0;
  const CUresult e = s->exchange(wire::kGraphNodeAdd, m, tail,
                                 {reinterpret_cast<std::byte*>(&reply), sizeof reply}, &got,
                                 nullptr, device->context());
  if (e != CUDA_SUCCESS) return e;
  if (got < sizeof reply) return CUDA_ERROR_UNKNOWN;
  *added = node_handle(s, graph_id, graph, reply.node);
  return *added ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

extern "C" {

CUresult cuGraphAddNode_v2(CUgraphNode* added, CUgraph handle, const CUgraphNode* after,
                           const CUgraphEdgeData* data, size_t count, CUgraphNodeParams* params) {
  Session* s;
  Graph* graph;
  if (const CUresult e = find_graph(handle, &s, &graph); e != CUDA_SUCCESS) return e;
  std::vector<wire::GraphEdge> edges;
  if (!added || !params || !pack_nodes(s, id_of(handle), after, nullptr, data, count, &edges))
    return CUDA_ERROR_INVALID_VALUE;
  if (params->type == CU_GRAPH_NODE_TYPE_CONDITIONAL)
    return add_conditional_node(s, id_of(handle), graph, edges, params, added);
  if (params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
    return add_allocation_node(s, id_of(handle), graph, edges, &params->alloc, added);
  if (params->type == CU_GRAPH_NODE_TYPE_MEM_FREE)
    return add_free_node(s, id_of(handle), graph, edges, params->free.dptr, added);
  Packed p;
  if (const CUresult e = pack(s, *params, graph, nullptr, false, &p); e != CUDA_SUCCESS) return e;
  const CUresult e = send_node(s, id_of(handle), graph, p.type, p.body, edges, p.device, added);
  if (e == CUDA_SUCCESS) note_changed(&root_of(s, graph)->host, std::move(p), 0);
  return e;
}

CUresult cuGraphNodeSetParams(CUgraphNode node, CUgraphNodeParams* params) {
  return set_params(nullptr, node, params);
}
CUresult cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams* params) {
  return exec ? set_params(exec, node, params) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphDestroyNode(CUgraphNode handle) {
  Session* s;
  GraphNode* node;
  Graph* graph;
  if (const CUresult e = find_node(handle, &s, &node, &graph); e != CUDA_SUCCESS) return e;
  if (s->captures.of_graph(node->graph)) return CUDA_ERROR_INVALID_VALUE;
  if (graph->memory) return CUDA_ERROR_NOT_SUPPORTED;
  const wire::GraphEdit m{node->graph, 0, wire::GraphChange::kDestroyNode, node->ordinal, 0, 0};
  const CUresult e =
      s->exchange(wire::kGraphEdit, m, {}, {}, nullptr, nullptr, graph->device->context());
  if (e != CUDA_SUCCESS) return e;
  std::erase_if(graph->children, [&](const auto& child) {
    if (child.first != node->ordinal) return false;
    drop_graph(s, child.second);
    return true;
  });
  root_of(s, graph)->host.stale = true;
  graph->nodes[node->ordinal] = 0;
  *node = {};
  s->graph_nodes.destroy(id_of(handle));
  return CUDA_SUCCESS;
}

CUresult cuGraphNodeSetEnabled(CUgraphExec exec, CUgraphNode node, unsigned int enabled) {
  return set_enabled(exec, node,
                     enabled ? wire::GraphChange::kEnable : wire::GraphChange::kDisable);
}

CUresult cuGraphNodeGetEnabled(CUgraphExec exec_handle, CUgraphNode handle, unsigned int* enabled) {
  Session* s;
  GraphNode* node;
  Graph* graph;
  if (const CUresult e = find_node(handle, &s, &node, &graph); e != CUDA_SUCCESS) return e;
  const GraphExec* exec = s->graph_execs.find(exec_handle);
  if (!exec || !enabled) return CUDA_ERROR_INVALID_VALUE;
  *enabled = std::find(exec->disabled.begin(), exec->disabled.end(), id_of(handle)) ==
             exec->disabled.end();
  return CUDA_SUCCESS;
}

CUresult cuGraphKernelNodeCopyAttributes(CUgraphNode to_handle, CUgraphNode from_handle) {
  Session* s;
  GraphNode *to, *from;
  Graph* graph;
  if (const CUresult e = find_node(to_handle, &s, &to, &graph); e != CUDA_SUCCESS) return e;
  if (const CUresult e = find_node(from_handle, &s, &from, &graph); e != CUDA_SUCCESS) return e;
  if (to->graph != from->graph) return CUDA_ERROR_NOT_SUPPORTED;
  const wire::GraphEdit m{to->graph, 0, wire::GraphChange::kCopyAttributes, 0, 1, 0};
  const std::vector<wire::GraphEdge> edge{{from->ordinal, to->ordinal, 0}};
  return s->exchange(wire::kGraphEdit, m, bytes_of(edge), {}, nullptr, nullptr,
                     graph->device->context());
}

}  // extern "C"
