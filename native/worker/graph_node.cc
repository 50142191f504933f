// SPDX-License-Identifier: Apache-2.0
// Nodes of graphs: what a command says of one, checked and put as the driver takes it, and back.
#include "worker/graph_node.h"

#include <algorithm>
#include <cstring>

#include "worker/dispatch.h"
#include "worker/graph_size.h"

namespace sluice::worker {

namespace {

constexpr uint64_t kMaxExtent = 1ull << 40;
constexpr uint32_t kMaxParamBytes = 32764;

template <class T>
bool take(std::span<const std::byte>& body, T* value) {
  if (body.size() < sizeof *value) return false;
  std::memcpy(value, body.data(), sizeof *value);
  body = body.subspan(sizeof *value);
  return true;
}

bool refuse(Session& s, const char* why) {
  s.reject(std::string("a graph node ") + why);
  return false;
}

bool take_kernel(Session& s, Vgpu& v, std::span<const std::byte> body, NodeParams* p) {
  wire::KernelNode k;
  if (!take(body, &k) || k.param_bytes > kMaxParamBytes || k.param_bytes > body.size())
    return refuse(s, "is cut short");
  FunctionObject f;
  if (!s.objects.functions.get(k.function, &f) && !s.objects.kernels.get(k.function, &f))
    return refuse(s, "names a function that the session does not have");
  // The driver reads as many bytes as the function takes, whatever it is told.
  if (k.param_bytes < f.param_bytes) return refuse(s, "brings too few parameters");
  // The driver takes it when the graph is instantiated.
  if (!take_local_memory(s, v, f.local_bytes)) p->status = CUDA_ERROR_OUT_OF_MEMORY;
  p->kernel_params.assign(body.begin(), body.begin() + k.param_bytes);
  p->kernel_bytes = k.param_bytes;
  p->extra[0] = CU_LAUNCH_PARAM_BUFFER_POINTER, p->extra[1] = p->kernel_params.data();
  p->extra[2] = CU_LAUNCH_PARAM_BUFFER_SIZE, p->extra[3] = &p->kernel_bytes;
  p->extra[4] = CU_LAUNCH_PARAM_END;
  auto& to = p->all.kernel;
  if (f.kernel)
    to.kern = f.kernel;
  else
    to.func = f.function;
  to.gridDimX = k.grid[0], to.gridDimY = k.grid[1], to.gridDimZ = k.grid[2];
  to.blockDimX = k.block[0], to.blockDimY = k.block[1], to.blockDimZ = k.block[2];
  to.sharedMemBytes = k.shared_bytes;
  if (f.param_bytes) to.extra = p->extra;
  to.ctx = v.gpu->context;
  return true;
}

// The side's address as this process has it; 0: rejected. A slice is whole rows: the driver is told
// of their number and would go by another step than the one that was checked.
uint64_t side_address(Session& s, const wire::CopySide& side, const wire::CopyNode& c) {
  uint64_t span = 0, rows = 0;
  const bool sane = c.width && c.rows && c.depth && c.width <= kMaxExtent && c.rows <= kMaxExtent &&
                    c.depth <= kMaxExtent && side.pitch >= c.width && side.pitch <= kMaxExtent &&
                    side.slice <= kMaxExtent && side.slice % side.pitch == 0 &&
                    side.slice / side.pitch >= c.rows &&
                    !__builtin_mul_overflow(side.pitch, c.rows - 1, &rows) &&
                    !__builtin_mul_overflow(side.slice, c.depth - 1, &span) &&
                    span + rows + c.width <= 1ull << 46;
  if (!sane) return refuse(s, "copies a box that makes no sense"), 0;
  span += rows + c.width;
  switch (side.place) {
    case wire::NodeMemory::kDevice:
      if (s.device_range(side.address, span)) return side.address;
      return refuse(s, "copies device memory that the session does not have"), 0;
    case wire::NodeMemory::kArena:
      if (s.arena_range(side.address, span)) return s.arena_views.whole(s, side.address, span);
      return refuse(s, "copies host memory outside the arena"), 0;
    case wire::NodeMemory::kShadow:
      if (const auto shadow = s.shadows.find(side.address); shadow && span <= shadow->bytes)
        return reinterpret_cast<uint64_t>(shadow->at);
      return refuse(s, "copies a shadow that there is not"), 0;
  }
  return refuse(s, "copies memory of no kind that there is"), 0;
}

bool take_copy(Session& s, const Vgpu& v, std::span<const std::byte> body, NodeParams* p) {
  wire::CopyNode c;
  if (!take(body, &c)) return refuse(s, "is cut short");
  const uint64_t to = side_address(s, c.to, c);
  const uint64_t from = to ? side_address(s, c.from, c) : 0;
  if (!from) return false;
  p->all.memcpy.copyCtx = v.gpu->context;
  CUDA_MEMCPY3D& m = p->all.memcpy.copyParams;
  m.WidthInBytes = c.width, m.Height = c.rows, m.Depth = c.depth;
  const bool to_device = c.to.place == wire::NodeMemory::kDevice;
  const bool from_device = c.from.place == wire::NodeMemory::kDevice;
  m.dstMemoryType = to_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
  m.srcMemoryType = from_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
  to_device ? void(m.dstDevice = to) : void(m.dstHost = reinterpret_cast<void*>(to));
  from_device ? void(m.srcDevice = from) : void(m.srcHost = reinterpret_cast<void*>(from));
  m.dstPitch = c.to.pitch, m.srcPitch = c.from.pitch;
  m.dstHeight = c.to.slice / c.to.pitch;
  m.srcHeight = c.from.slice / c.from.pitch;
  if (traffic_of(s, m)) s.graph_traffic.note();
  return true;
}

bool take_fill(Session& s, const Vgpu& v, std::span<const std::byte> body, NodeParams* p) {
  wire::FillNode f;
  if (!take(body, &f)) return refuse(s, "is cut short");
  const uint32_t e = f.element_bytes;
  uint64_t rows = 0;
  if ((e != 1 && e != 2 && e != 4) || f.address % e || f.width == 0 || f.rows == 0 ||
      f.width > kMaxExtent || f.rows > kMaxExtent || f.pitch > kMaxExtent ||
      (f.rows > 1 && f.pitch < f.width * e) || __builtin_mul_overflow(f.pitch, f.rows - 1, &rows))
    return refuse(s, "fills a box that makes no sense");
  if (!s.device_range(f.address, (f.rows > 1 ? rows : 0) + f.width * e))
    return refuse(s, "fills device memory that the session does not have");
  p->all.memset = {f.address, f.pitch, f.value, e, f.width, f.rows, v.gpu->context};
  if (traffic_of(s, *p)) s.graph_traffic.note();
  return true;
}

bool take_event(Session& s, std::span<const std::byte> body, CUevent* event) {
  wire::EventNode e;
  if (!take(body, &e)) return refuse(s, "is cut short");
  return s.objects.events.get(e.event, event) ||
         refuse(s, "names an event that the session does not have");
}

bool take_child(Session& s, std::span<const std::byte> body, NodeParams* p) {
  wire::ChildNode c;
  if (!take(body, &c)) return refuse(s, "is cut short");
  const GraphRef graph = find_graph(s, c.graph, "a graph node");
  if (!graph) return false;
  if (graph->capturing) return refuse(s, "holds a graph that is being captured");
  p->all.graph.graph = graph->handle;
  p->inside = size_of(s, graph);
  p->collectives = graph->collectives;
  ++p->inside.height;
  return true;
}

bool take_operations(Session& s, const Vgpu& v, std::span<const std::byte> body, NodeParams* p) {
  wire::MemOpsNode m;
  if (!take(body, &m) || m.count == 0 || m.count > wire::kMaxMemOps ||
      body.size() < size_t{m.count} * sizeof(wire::MemOp))
    return refuse(s, "is cut short");
  if (!take_mem_ops(s, body, m.count, "a graph node", &p->operations)) return false;
  p->all.memOp = {v.gpu->context, m.count, p->operations.data(), 0};
  return true;
}

// Made for this graph, or for one that it lies in.
bool has_conditional(Session& s, GraphRef graph, CUgraphConditionalHandle handle) {
  for (;;) {
    const auto& all = graph->conditionals;
    if (std::find(all.begin(), all.end(), handle) != all.end()) return true;
    if (!graph->parent || !s.objects.graphs.get(graph->parent, &graph)) return false;
  }
}

bool take_conditional(Session& s, const Vgpu& v, const GraphRef& graph,
                      std::span<const std::byte> body, NodeParams* p) {
  wire::ConditionalNode n;
  if (!take(body, &n)) return refuse(s, "is cut short");
  const uint32_t most = n.type == CU_GRAPH_COND_TYPE_IF       ? 2
                        : n.type == CU_GRAPH_COND_TYPE_WHILE  ? 1
                        : n.type == CU_GRAPH_COND_TYPE_SWITCH ? wire::kMaxBodies
                                                              : 0;
  if (n.count == 0 || n.count > most) return refuse(s, "has no such condition");
  if (body.size() < n.count * sizeof(uint64_t)) return refuse(s, "is cut short");
  p->bodies.resize(n.count);
  std::memcpy(p->bodies.data(), body.data(), n.count * sizeof(uint64_t));
  for (size_t i = 0; i < p->bodies.size(); ++i)
    if (!s.objects.graphs.has_room(p->bodies[i]) ||
        std::find(p->bodies.begin(), p->bodies.begin() + i, p->bodies[i]) != p->bodies.begin() + i)
      return refuse(s, "mints no id that is free");
  if (!has_conditional(s, graph, n.handle))
    return refuse(s, "looks at a value that is not its graph's");
  p->all.conditional.handle = n.handle;
  p->all.conditional.type = static_cast<CUgraphConditionalNodeType>(n.type);
  p->all.conditional.size = n.count;
  p->all.conditional.ctx = v.gpu->context;
  return true;
}

bool take_staged(Session& s, const Vgpu& v, std::span<const std::byte> body, NodeParams* p) {
  wire::StagedCopyNode n;
  if (!take(body, &n) || n.call_first > 1) return refuse(s, "is cut short");
  // One side is the stand-in, so exactly one is the device's.
  const bool to_device = n.copy.to.place == wire::NodeMemory::kDevice;
  const bool from_device = n.copy.from.place == wire::NodeMemory::kDevice;
  if (to_device == from_device || to_device != (n.call_first == 1))
    return refuse(s, "copies by a stand-in that makes no sense");
  if (!take_copy(s, v, std::as_bytes(std::span(&n.copy, 1)), p)) return false;
  p->staged = true;
  p->call_first = to_device;
  p->copy = p->all;
  p->copy.type = CU_GRAPH_NODE_TYPE_MEMCPY;
  if (!take_mem_ops(s, std::as_bytes(std::span(n.call)), std::size(n.call), "a graph node",
                    &p->operations))
    return false;
  p->call.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
  p->call.memOp = {v.gpu->context, static_cast<unsigned>(p->operations.size()),
                   p->operations.data(), 0};
  p->all = {};
  p->all.type = CU_GRAPH_NODE_TYPE_GRAPH;
  p->inside = {2, 1};
  return true;
}

}  // namespace

bool take_node(Session& s, Vgpu& v, uint32_t type, std::span<const std::byte> body, NodeParams* p) {
  p->all.type = static_cast<CUgraphNodeType>(type);
  switch (type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return take_kernel(s, v, body, p);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return take_copy(s, v, body, p);
    case CU_GRAPH_NODE_TYPE_MEMSET:
      return take_fill(s, v, body, p);
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return take_child(s, body, p);
    case CU_GRAPH_NODE_TYPE_EMPTY:
      return true;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return take_event(s, body, &p->all.eventWait.event);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return take_event(s, body, &p->all.eventRecord.event);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      return take_operations(s, v, body, p);
    case wire::kStagedCopyNode:
      return take_staged(s, v, body, p);
    default:
      return refuse(s, "is of no type that there is");
  }
}

namespace {

void add(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto m = d.fixed<wire::GraphNodeAdd>();
  if (!d.ok() || m.edge_count > wire::kMaxGraphEdges || m.body_bytes % 8)
    return s.reject("GraphNodeAdd makes no sense");
  const auto body = d.bytes(m.body_bytes);
  const auto raw = d.bytes(uint64_t{m.edge_count} * sizeof(wire::GraphEdge));
  if (!d.ok()) return s.reject("GraphNodeAdd is cut short");
  const GraphRef graph = find_graph(s, m.graph, "GraphNodeAdd");
  std::vector<wire::GraphEdge> edges;
  DriverEdges after;
  if (!graph || !take_edges(s, raw, m.edge_count, "GraphNodeAdd", &edges) ||
      !resolve_edges(s, *graph, edges, false, "GraphNodeAdd", &after))
    return;
  Vgpu* v = s.use_context(c.header.context);
  if (!v) return;
  NodeParams params;
  params.all.type = static_cast<CUgraphNodeType>(m.type);
  if (m.type == CU_GRAPH_NODE_TYPE_CONDITIONAL ? !take_conditional(s, *v, graph, body, &params)
                                               : !take_node(s, *v, m.type, body, &params))
    return;
  if (!params.bodies.empty() && graph->depth >= wire::kMaxGraphDepth) {
    reply.status = CUDA_ERROR_NOT_SUPPORTED;
    return;
  }
  const uint64_t inside = params.inside.nodes;
  const GraphSize by{1 + inside, params.bodies.empty() ? params.inside.height : 1};
  reply.status = may_grow(s, graph, by) ? params.status : CUDA_ERROR_OUT_OF_MEMORY;
  if (reply.status != CUDA_SUCCESS) return;
  CUgraphNode node = nullptr;
  reply.status = add_node(s, graph->handle, after, &params, &node);
  if (reply.status != CUDA_SUCCESS) return;
  const uint32_t ordinal = graph->ordinal_of(node);
  note_grown(s, graph, by);
  ++graph->own_nodes;
  if (inside) graph->inside[ordinal] = inside;
  Collectives::add(&graph->collectives, params.collectives);
  for (size_t i = 0; i < params.bodies.size(); ++i) {
    auto inside = std::make_shared<GraphObject>();
    inside->handle = params.all.conditional.phGraph_out[i];
    inside->parent = m.graph;
    inside->node = ordinal;
    inside->depth = graph->depth + 1;
    inside->existing = true;
    s.objects.graphs.add(params.bodies[i], std::move(inside));
  }
  reply.put(wire::GraphNodeReply{ordinal, 0});
}

void set(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto m = d.fixed<wire::GraphNodeSet>();
  if (!d.ok()) return s.reject("GraphNodeSet is cut short");
  const auto body = d.bytes(m.body_bytes);
  if (!d.ok()) return s.reject("GraphNodeSet is cut short");
  const GraphRef graph = find_graph(s, m.graph, "GraphNodeSet");
  if (!graph) return;
  const CUgraphNode node = graph->node_at(m.node);
  if (!node) return s.reject("GraphNodeSet names a node that there is not");
  GraphExecObject exec;
  if (m.exec && !s.objects.graph_execs.get(m.exec, &exec))
    return s.reject("GraphNodeSet names an executable graph that the session does not have");
  Vgpu* v = s.use_context(c.header.context);
  NodeParams params;
  if (!v || !take_node(s, *v, m.type, body, &params)) return;
  // Another child in the place of this one; in an executable graph it has to be of the same shape.
  uint64_t inside = params.inside.nodes;
  if (m.exec) inside = 0;
  reply.status = inside && !may_grow(s, graph, {inside, params.inside.height})
                     ? CUDA_ERROR_OUT_OF_MEMORY
                     : params.status;
  if (reply.status != CUDA_SUCCESS) return;
  if (inside) {
    note_grown(s, graph, {inside, params.inside.height});
    graph->inside[m.node] += inside;
  }
  reply.status =
      m.exec ? set_exec_node(s, exec.handle, node, &params) : set_node(s, *graph, m.node, &params);
  if (m.exec && reply.status == CUDA_SUCCESS)
    s.graph_traffic.changed(s, m.exec, graph->handle, node, params);
}

// ---- and back

uint64_t function_id(Session& s, const CUDA_KERNEL_NODE_PARAMS& k, uint32_t* bytes) {
  uint64_t found = 0;
  const auto look = [&](uint64_t id, const FunctionObject& f) {
    if (found) return;
    bool same = k.func ? f.function == k.func : f.kernel == k.kern;
    if (!same && f.kernel && k.func) {
      // A kernel that was launched is shown as its function in the context.
      CUfunction function = nullptr;
      same = s.driver.cuKernelGetFunction &&
             s.driver.cuKernelGetFunction(&function, f.kernel) == CUDA_SUCCESS &&
             function == k.func;
    }
    if (same) found = id, *bytes = f.param_bytes;
  };
  s.objects.functions.for_each(look);
  if (!found) s.objects.kernels.for_each(look);
  return found;
}

CUresult get_kernel(Session& s, CUgraphNode node, std::vector<std::byte>* body) {
  CUDA_KERNEL_NODE_PARAMS k{};
  if (const CUresult e = s.driver.cuGraphKernelNodeGetParams_v2(node, &k); e != CUDA_SUCCESS)
    return e;
  wire::KernelNode n{0,
                     {k.gridDimX, k.gridDimY, k.gridDimZ},
                     {k.blockDimX, k.blockDimY, k.blockDimZ},
                     k.sharedMemBytes,
                     0};
  n.function = function_id(s, k, &n.param_bytes);
  if (!n.function) return CUDA_ERROR_NOT_SUPPORTED;  // of a library that Sluice runs itself
  std::vector<std::byte> params(n.param_bytes);
  if (k.kernelParams) {
    FunctionObject f;
    const bool module = s.objects.functions.get(n.function, &f);
    if (!module) s.objects.kernels.get(n.function, &f);
    for (size_t i = 0, offset = 0, size = 0;; ++i) {
      const CUresult e = module ? s.driver.cuFuncGetParamInfo(f.function, i, &offset, &size)
                                : s.driver.cuKernelGetParamInfo(f.kernel, i, &offset, &size);
      if (e != CUDA_SUCCESS || offset + size > params.size()) break;
      std::memcpy(params.data() + offset, k.kernelParams[i], size);
    }
  } else if (k.extra) {
    for (void** at = k.extra; *at != CU_LAUNCH_PARAM_END; at += 2)
      if (*at == CU_LAUNCH_PARAM_BUFFER_POINTER) std::memcpy(params.data(), at[1], params.size());
  }
  body->resize(sizeof n);
  std::memcpy(body->data(), &n, sizeof n);
  body->insert(body->end(), params.begin(), params.end());
  return CUDA_SUCCESS;
}

void describe_side(Session& s, CUmemorytype type, const void* host, CUdeviceptr device,
                   size_t pitch, size_t height, wire::CopySide* side) {
  const bool on_host = type == CU_MEMORYTYPE_HOST;
  const uint64_t address =
      s.arena_views.original(on_host ? reinterpret_cast<uint64_t>(host) : device);
  *side = {address, pitch, pitch * height, wire::NodeMemory::kDevice, 0};
  if (on_host || s.arena_range(address, 1)) side->place = wire::NodeMemory::kArena;
  if (!on_host) return;
  if (const uint64_t shadow = s.shadows.holder(host)) {
    side->address = shadow;
    side->place = wire::NodeMemory::kShadow;
  }
}

template <class T>
void put(const T& value, std::vector<std::byte>* body) {
  body->resize(sizeof value);
  std::memcpy(body->data(), &value, sizeof value);
}

CUresult get_copy(Session& s, CUgraphNode node, std::vector<std::byte>* body) {
  CUDA_MEMCPY3D m{};
  if (const CUresult e = s.driver.cuGraphMemcpyNodeGetParams(node, &m); e != CUDA_SUCCESS) return e;
  wire::CopyNode c{};
  c.width = m.WidthInBytes, c.rows = m.Height, c.depth = m.Depth;
  describe_side(s, m.dstMemoryType, m.dstHost, m.dstDevice, m.dstPitch, m.dstHeight, &c.to);
  describe_side(s, m.srcMemoryType, m.srcHost, m.srcDevice, m.srcPitch, m.srcHeight, &c.from);
  put(c, body);
  return CUDA_SUCCESS;
}

CUresult get_fill(Session& s, CUgraphNode node, std::vector<std::byte>* body) {
  CUDA_MEMSET_NODE_PARAMS m{};
  const CUresult e = s.driver.cuGraphMemsetNodeGetParams(node, &m);
  if (e == CUDA_SUCCESS)
    put(wire::FillNode{m.dst, m.pitch, m.width, m.height, m.elementSize, m.value}, body);
  return e;
}

CUresult get_event(Session& s, CUgraphNode node, bool record, std::vector<std::byte>* body) {
  CUevent event = nullptr;
  const CUresult e = record ? s.driver.cuGraphEventRecordNodeGetEvent(node, &event)
                            : s.driver.cuGraphEventWaitNodeGetEvent(node, &event);
  if (e != CUDA_SUCCESS) return e;
  uint64_t found = 0;
  s.objects.events.for_each(
      [&](uint64_t id, CUevent known) { found = known == event ? id : found; });
  put(wire::EventNode{found}, body);
  return CUDA_SUCCESS;
}

CUresult get_operations(Session& s, CUgraphNode node, std::vector<std::byte>* body) {
  CUDA_BATCH_MEM_OP_NODE_PARAMS m{};
  const CUresult e = s.driver.cuGraphBatchMemOpNodeGetParams(node, &m);
  if (e != CUDA_SUCCESS) return e;
  put(wire::MemOpsNode{m.count, 0}, body);
  for (unsigned i = 0; i < m.count; ++i) {
    const auto& from = m.paramArray[i];
    wire::MemOp op{static_cast<uint32_t>(from.operation), 0, 0, 0};
    if (from.operation == CU_STREAM_MEM_OP_BARRIER) {
      op.flags = from.memoryBarrier.flags;
    } else {
      op.flags = from.waitValue.flags;
      op.address = s.signals.named(from.waitValue.address);
      op.value = from.waitValue.value64;
    }
    const auto* at = reinterpret_cast<const std::byte*>(&op);
    body->insert(body->end(), at, at + sizeof op);
  }
  return CUDA_SUCCESS;
}

void get(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::GraphNodeGet>();
  if (!d.ok()) return s.reject("GraphNodeGet is cut short");
  const GraphRef graph = find_graph(s, m.graph, "GraphNodeGet");
  if (!graph) return;
  const CUgraphNode node = graph->node_at(m.node);
  if (!node) return s.reject("GraphNodeGet names a node that there is not");
  if (!s.use_context(c.header.context)) return;
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  std::vector<std::byte> body;
  reply.status = s.driver.cuGraphNodeGetType(node, &type);
  if (reply.status != CUDA_SUCCESS) return;
  if (type == CU_GRAPH_NODE_TYPE_KERNEL) reply.status = get_kernel(s, node, &body);
  if (type == CU_GRAPH_NODE_TYPE_MEMCPY) reply.status = get_copy(s, node, &body);
  if (type == CU_GRAPH_NODE_TYPE_MEMSET) reply.status = get_fill(s, node, &body);
  if (type == CU_GRAPH_NODE_TYPE_EVENT_RECORD) reply.status = get_event(s, node, true, &body);
  if (type == CU_GRAPH_NODE_TYPE_WAIT_EVENT) reply.status = get_event(s, node, false, &body);
  if (type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP) reply.status = get_operations(s, node, &body);
  if (type == CU_GRAPH_NODE_TYPE_GRAPH)
    if (const CUgraphNode call = call_inside(s, node))
      reply.status = get_operations(s, call, &body);
  if (reply.status != CUDA_SUCCESS) return;
  if (sizeof(wire::GraphNodeBody) + body.size() > s.endpoint().reply_limit()) {
    reply.status = CUDA_ERROR_NOT_SUPPORTED;
    return;
  }
  reply.put(wire::GraphNodeBody{static_cast<uint32_t>(type), static_cast<uint32_t>(body.size())});
  reply.put_bytes(body.data(), body.size());
}

}  // namespace

void add_graph_node_handlers(DispatchTable& t) {
  t[wire::kGraphNodeAdd].run = add;
  t[wire::kGraphNodeSet].run = set;
  t[wire::kGraphNodeGet].run = get;
}

}  // namespace sluice::worker
