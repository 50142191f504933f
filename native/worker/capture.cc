// SPDX-License-Identifier: Apache-2.0
// Stream capture. Always relaxed here: which calls the application may make meanwhile is the
// client's to enforce. A capture and the worker's own marks, measurements and queries keep out of
// each other's way: nothing of the gate's is left open on a stream that begins to capture.
#include <cstring>

#include "worker/dispatch.h"
#include "worker/graph_size.h"

namespace sluice::worker {

namespace {

void begin(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto m = d.fixed<wire::CaptureBegin>();
  if (!d.ok() || m.existing > 1 || m.edge_count > wire::kMaxGraphEdges)
    return s.reject("CaptureBegin makes no sense");
  const auto raw = d.bytes(uint64_t{m.edge_count} * sizeof(wire::GraphEdge));
  if (!d.ok()) return s.reject("CaptureBegin is cut short");
  if (m.stream == 0) return s.reject("CaptureBegin names the legacy stream");
  std::vector<wire::GraphEdge> edges;
  if (!take_edges(s, raw, m.edge_count, "CaptureBegin", &edges)) return;
  GraphRef graph;
  DriverEdges after;
  if (m.existing) {
    graph = find_graph(s, m.graph, "CaptureBegin");
    if (!graph || !resolve_edges(s, *graph, edges, false, "CaptureBegin", &after)) return;
    if (graph->capturing) return s.reject("CaptureBegin names a graph that is being captured");
  } else if (!s.objects.graphs.has_room(m.graph) || m.edge_count) {
    return s.reject("CaptureBegin mints no id that is free");
  }
  CUstream stream;
  Vgpu* v;
  if (!s.stream(m.stream, c.header.context, &stream, &v)) return;
  std::lock_guard lock(s.captures.mutex);
  if (s.captures.graph_of(m.stream)) return s.reject("CaptureBegin names a stream that captures");
  keep_out(s, stream, v);
  if (graph) {
    reply.status = s.driver.cuStreamBeginCaptureToGraph(stream, graph->handle, after.from.data(),
                                                        after.edge_data(), after.from.size(),
                                                        CU_STREAM_CAPTURE_MODE_RELAXED);
  } else {
    reply.status = s.driver.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
    if (reply.status != CUDA_SUCCESS) return;
    graph = std::make_shared<GraphObject>();
    CUstreamCaptureStatus status;
    reply.status = s.driver.cuStreamGetCaptureInfo_v2(stream, &status, nullptr, &graph->handle,
                                                      nullptr, nullptr);
    s.objects.graphs.add(m.graph, graph);
  }
  if (reply.status != CUDA_SUCCESS) return;
  graph->capturing = true;
  s.captures.begin(m.stream, m.graph);
}

void end(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::CaptureEnd>();
  if (!d.ok() || m.discard > 1) return s.reject("CaptureEnd makes no sense");
  CUstream stream;
  if (!s.stream(m.stream, c.header.context, &stream)) return;
  std::lock_guard lock(s.captures.mutex);
  if (m.graph == 0 || s.captures.graph_of(m.stream) != m.graph)
    return s.reject("CaptureEnd names a stream and a graph that do not capture");
  const GraphRef graph = find_graph(s, m.graph, "CaptureEnd");
  if (!graph) return;
  CUgraph made = nullptr;
  reply.status = s.driver.cuStreamEndCapture(stream, &made);
  s.captures.end(m.stream);
  graph->capturing = false;
  if (reply.status == CUDA_SUCCESS && !m.discard) {
    graph->existing = true;
    return count_captured(s, graph);
  }
  // A graph that there was before stays; with the capture's own the driver has done away where it
  // failed.
  if (m.discard && made && !graph->existing) s.driver.cuGraphDestroy(made);
  GraphRef gone;
  if (graph->existing) return count_captured(s, graph);
  if (s.objects.graphs.take(m.graph, &gone)) give_nodes(s, gone->size.nodes);
}

// What the next node of a capture comes after; the driver's, until the stream's next call.
struct Frontier {
  const CUgraphNode* nodes = nullptr;
  const CUgraphEdgeData* data = nullptr;  // null where no edge has any
  size_t count = 0;
};

CUresult frontier_of(Session& s, CUstream stream, CUgraph expected, Frontier* found) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  CUgraph graph = nullptr;
  // Asking for the edges' data is an error only where some has any and it is not asked for.
  const CUresult result = s.driver.cuStreamGetCaptureInfo_v3(
      stream, &status, nullptr, &graph, &found->nodes, &found->data, &found->count);
  if (result != CUDA_SUCCESS) return result;
  const bool same = status == CU_STREAM_CAPTURE_STATUS_ACTIVE && graph == expected;
  return same ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}

void info(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::CaptureInfo>();
  if (!d.ok()) return s.reject("CaptureInfo is cut short");
  const GraphRef graph = find_graph(s, m.graph, "CaptureInfo");
  CUstream stream;
  if (!graph || !s.stream(m.stream, c.header.context, &stream)) return;
  Frontier frontier;
  reply.status = frontier_of(s, stream, graph->handle, &frontier);
  if (reply.status != CUDA_SUCCESS) return;
  std::vector<wire::GraphEdge> all;
  const auto [nodes, data, count] = frontier;
  for (size_t i = 0; i < count; ++i)
    all.push_back({graph->ordinal_of(nodes[i]), 0, data ? edge_bits(data[i]) : 0});
  put_list(s, all, m.first, reply);
}

void add_node(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::CaptureNode>();
  if (!d.ok()) return s.reject("CaptureNode is cut short");
  const GraphRef graph = find_graph(s, m.graph, "CaptureNode");
  CUstream stream;
  if (!graph || !s.stream(m.stream, c.header.context, &stream)) return;
  Frontier frontier;
  reply.status = frontier_of(s, stream, graph->handle, &frontier);
  if (reply.status != CUDA_SUCCESS) return;
  const auto [nodes, data, count] = frontier;
  const std::vector<CUgraphNode> after(nodes, nodes + count);  // which the driver may move
  std::vector<CUgraphEdgeData> edges(count);
  if (data) edges.assign(data, data + count);
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_EMPTY;
  CUgraphNode node = nullptr;
  reply.status = s.driver.cuGraphAddNode_v2(&node, graph->handle, after.data(),
                                            data ? edges.data() : nullptr, count, &params);
  if (reply.status != CUDA_SUCCESS) return;
  reply.status = s.driver.cuStreamUpdateCaptureDependencies_v2(stream, &node, nullptr, 1,
                                                               CU_STREAM_SET_CAPTURE_DEPENDENCIES);
  if (reply.status == CUDA_SUCCESS) reply.put(wire::GraphNodeReply{graph->ordinal_of(node), 0});
}

void update(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto m = d.fixed<wire::CaptureUpdate>();
  if (!d.ok() || m.replace > 1 || m.edge_count > wire::kMaxGraphEdges)
    return s.reject("CaptureUpdate makes no sense");
  const auto raw = d.bytes(uint64_t{m.edge_count} * sizeof(wire::GraphEdge));
  std::vector<wire::GraphEdge> edges;
  if (!d.ok()) return s.reject("CaptureUpdate is cut short");
  if (!take_edges(s, raw, m.edge_count, "CaptureUpdate", &edges)) return;
  const GraphRef graph = find_graph(s, m.graph, "CaptureUpdate");
  DriverEdges after;
  CUstream stream;
  if (!graph || !resolve_edges(s, *graph, edges, false, "CaptureUpdate", &after) ||
      !s.stream(m.stream, c.header.context, &stream))
    return;
  reply.status = s.driver.cuStreamUpdateCaptureDependencies_v2(
      stream, after.from.data(), after.edge_data(), after.from.size(),
      m.replace ? CU_STREAM_SET_CAPTURE_DEPENDENCIES : CU_STREAM_ADD_CAPTURE_DEPENDENCIES);
}

void mem_ops(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto m = d.fixed<wire::StreamMemOps>();
  if (!d.ok() || m.count == 0 || m.count > wire::kMaxMemOps)
    return s.reject("StreamMemOps makes no sense");
  const auto raw = d.bytes(uint64_t{m.count} * sizeof(wire::MemOp));
  if (!d.ok()) return s.reject("StreamMemOps is cut short");
  std::vector<CUstreamBatchMemOpParams> operations;
  CUstream stream;
  if (!s.stream(m.stream, c.header.context, &stream) ||
      !take_mem_ops(s, raw, m.count, "StreamMemOps", &operations))
    return;
  reply.status = s.driver.cuStreamBatchMemOp_v2(stream, m.count, operations.data(), 0);
}

}  // namespace

bool take_mem_ops(Session& s, std::span<const std::byte> raw, uint32_t count, const char* what,
                  std::vector<CUstreamBatchMemOpParams>* operations) {
  const auto refuse = [&](const char* why) {
    s.reject(std::string(what) + why);
    return false;
  };
  for (uint32_t i = 0; i < count; ++i) {
    wire::MemOp m;
    std::memcpy(&m, raw.data() + size_t{i} * sizeof m, sizeof m);
    CUstreamBatchMemOpParams op{};
    op.operation = static_cast<CUstreamBatchMemOpType>(m.operation);
    uint64_t bytes = 0;
    switch (m.operation) {
      case CU_STREAM_MEM_OP_WAIT_VALUE_32:
      case CU_STREAM_MEM_OP_WAIT_VALUE_64:
        bytes = m.operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 ? 4 : 8;
        if (m.flags > CU_STREAM_WAIT_VALUE_NOR) return refuse(" waits in a way that there is not");
        op.waitValue.address = m.address;
        op.waitValue.value64 = m.value;
        op.waitValue.flags = m.flags;
        break;
      case CU_STREAM_MEM_OP_WRITE_VALUE_32:
      case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        bytes = m.operation == CU_STREAM_MEM_OP_WRITE_VALUE_32 ? 4 : 8;
        if (m.flags != 0) return refuse(" writes in a way that there is not");
        op.writeValue.address = m.address;
        op.writeValue.value64 = m.value;
        break;
      case CU_STREAM_MEM_OP_BARRIER:
        if (m.flags > CU_STREAM_MEMORY_BARRIER_TYPE_GPU) return refuse(" has no such barrier");
        op.memoryBarrier.flags = m.flags;
        break;
      default:
        return refuse(" carries an operation that there is not");
    }
    if (bytes && bytes == sizeof(uint64_t) && wire::is_signal(m.address)) {
      op.waitValue.address = s.signals.at(s, m.address);
      if (!op.waitValue.address) return refuse(" names words for which there is no memory");
    } else if (bytes && (m.address % bytes || !s.device_range(m.address, bytes))) {
      return refuse(" names memory that the session does not have");
    }
    operations->push_back(op);
  }
  return true;
}

void add_capture_handlers(DispatchTable& t) {
  t[wire::kCaptureBegin].run = begin;
  t[wire::kCaptureEnd].run = end;
  t[wire::kCaptureInfo].run = info;
  t[wire::kCaptureUpdate].run = update;
  t[wire::kCaptureNode].run = add_node;
  t[wire::kStreamMemOps].run = mem_ops;
}

}  // namespace sluice::worker
