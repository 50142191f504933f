// SPDX-License-Identifier: Apache-2.0
// Staged copies: a copy and a host function beside it, one node to the application and a child
// graph to the driver. Nodes of a capture that are made by hand, and the words of host functions.
#include <algorithm>
#include <cstring>

#include "worker/dispatch.h"
#include "worker/graph_node.h"
#include "worker/graph_size.h"

namespace sluice::worker {

namespace {

constexpr int kMaxDepth = wire::kMaxGraphDepth;

// The two nodes of a staged copy.
CUresult furnish(Session& s, CUgraph graph, NodeParams* p) {
  CUgraphNode first = nullptr, second = nullptr;
  CUgraphNodeParams* order[] = {&p->call, &p->copy};
  if (!p->call_first) std::swap(order[0], order[1]);
  CUresult e = s.driver.cuGraphAddNode_v2(&first, graph, nullptr, nullptr, 0, order[0]);
  if (e == CUDA_SUCCESS)
    e = s.driver.cuGraphAddNode_v2(&second, graph, &first, nullptr, 1, order[1]);
  return e;
}

// Calls f() with the child graph of a staged copy in its parameters, if it is one.
template <class F>
CUresult with_child(Session& s, NodeParams* p, F&& f) {
  if (!p->staged) return f();
  CUgraph child = nullptr;
  CUresult e = s.driver.cuGraphCreate(&child, 0);
  if (e != CUDA_SUCCESS) return e;
  e = furnish(s, child, p);
  p->all.graph.graph = child;
  if (e == CUDA_SUCCESS) e = f();
  s.driver.cuGraphDestroy(child);  // the node has a copy of its own
  return e;
}

// Puts another node in the place of one, between the same others.
CUresult replace(Session& s, GraphObject& graph, uint32_t ordinal, NodeParams* p) {
  if (graph.capturing) return CUDA_ERROR_INVALID_VALUE;
  const CUgraphNode old = graph.nodes[ordinal];
  DriverEdges before, behind;
  for (const bool up : {true, false}) {
    const auto ask =
        up ? s.driver.cuGraphNodeGetDependencies_v2 : s.driver.cuGraphNodeGetDependentNodes_v2;
    DriverEdges& edges = up ? before : behind;
    size_t count = 0;
    CUresult e = ask(old, nullptr, nullptr, &count);
    edges.from.resize(count);
    edges.data.resize(count);
    if (e == CUDA_SUCCESS && count) e = ask(old, edges.from.data(), edges.data.data(), &count);
    if (e != CUDA_SUCCESS) return e;
    for (const CUgraphEdgeData& data : edges.data) edges.plain &= edge_bits(data) == 0;
  }
  CUgraphNode node = nullptr;
  CUresult e = add_node(s, graph.handle, before, p, &node);
  if (e != CUDA_SUCCESS) return e;
  behind.to = behind.from;
  behind.from.assign(behind.to.size(), node);
  if (!behind.to.empty())
    e = s.driver.cuGraphAddDependencies_v2(graph.handle, behind.from.data(), behind.to.data(),
                                           behind.edge_data(), behind.to.size());
  if (e == CUDA_SUCCESS) e = s.driver.cuGraphDestroyNode(old);
  if (e != CUDA_SUCCESS) {
    s.driver.cuGraphDestroyNode(node);
    return e;
  }
  graph.ordinals.erase(old);
  graph.nodes[ordinal] = node;
  graph.ordinals[node] = ordinal;
  return CUDA_SUCCESS;
}

CUresult walk(Session& s, CUgraph graph, const std::function<CUresult(CUgraphNode)>& f, int depth) {
  std::vector<CUgraphNode> nodes;
  CUresult e = depth > kMaxDepth ? CUDA_ERROR_NOT_SUPPORTED : nodes_of(s, graph, &nodes);
  for (size_t i = 0; e == CUDA_SUCCESS && i < nodes.size(); ++i) {
    CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
    e = s.driver.cuGraphNodeGetType(nodes[i], &type);
    CUgraph child = nullptr;
    if (e == CUDA_SUCCESS && type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP) e = f(nodes[i]);
    if (e == CUDA_SUCCESS && type == CU_GRAPH_NODE_TYPE_GRAPH) {
      e = s.driver.cuGraphChildGraphNodeGetGraph(nodes[i], &child);
      if (e == CUDA_SUCCESS) e = walk(s, child, f, depth + 1);
    }
  }
  return e;
}

void capture_copy(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto m = d.fixed<wire::CaptureCopy>();
  if (!d.ok() || m.body_bytes % 8) return s.reject("CaptureCopy makes no sense");
  const auto body = d.bytes(m.body_bytes);
  if (!d.ok()) return s.reject("CaptureCopy is cut short");
  if (m.type != CU_GRAPH_NODE_TYPE_MEMCPY && m.type != CU_GRAPH_NODE_TYPE_BATCH_MEM_OP &&
      m.type != wire::kStagedCopyNode)
    return s.reject("CaptureCopy carries a node of a type that captures record themselves");
  CUstream stream;
  Vgpu* v;
  NodeParams params;
  if (!s.stream(m.stream, c.header.context, &stream, &v) ||
      !take_node(s, *v, m.type, body, &params))
    return;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  CUgraph graph = nullptr;
  const CUgraphNode* nodes = nullptr;
  const CUgraphEdgeData* data = nullptr;
  size_t count = 0;
  reply.status =
      s.driver.cuStreamGetCaptureInfo_v3(stream, &status, nullptr, &graph, &nodes, &data, &count);
  if (reply.status != CUDA_SUCCESS) return;
  if (status != CU_STREAM_CAPTURE_STATUS_ACTIVE || !graph) {
    reply.status = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    return;
  }
  // The node itself is counted with all others when the capture ends.
  const GraphRef into = params.inside.nodes ? captured_on(s, stream) : nullptr;
  if (into && !may_grow(s, into, params.inside)) {
    reply.status = CUDA_ERROR_OUT_OF_MEMORY;
    return;
  }
  DriverEdges after;
  after.from.assign(nodes, nodes + count);
  for (size_t i = 0; data && i < count; ++i) {
    after.data.push_back(data[i]);
    after.plain &= edge_bits(data[i]) == 0;
  }
  CUgraphNode node = nullptr;
  reply.status = add_node(s, graph, after, &params, &node);
  if (into && reply.status == CUDA_SUCCESS) note_grown(s, into, params.inside);
  if (reply.status == CUDA_SUCCESS)
    reply.status = s.driver.cuStreamUpdateCaptureDependencies_v2(
        stream, &node, nullptr, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES);
}

void words(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto m = d.fixed<wire::GraphWords>();
  if (!d.ok() || m.count > wire::kMaxWordsChanges) return s.reject("GraphWords makes no sense");
  const auto raw = d.bytes(uint64_t{m.count} * sizeof(wire::WordsChange));
  if (!d.ok()) return s.reject("GraphWords is cut short");
  const GraphRef graph = find_graph(s, m.graph, "GraphWords");
  if (!graph || !s.use_context(c.header.context)) return;
  // The addresses as the driver has them.
  std::map<uint64_t, uint64_t> changes;
  for (uint32_t i = 0; i < m.count; ++i) {
    wire::WordsChange change;
    std::memcpy(&change, raw.data() + size_t{i} * sizeof change, sizeof change);
    const uint64_t from = s.signals.at(s, change.from), to = s.signals.at(s, change.to);
    if (change.to % 16 || !to || !(wire::is_signal(change.to) || s.device_range(to, 16)))
      return s.reject("GraphWords names memory that the session does not have");
    changes[from] = to;
  }
  reply.status = for_each_call(s, graph->handle, [&](CUgraphNode node) {
    CUDA_BATCH_MEM_OP_NODE_PARAMS p{};
    const CUresult e = s.driver.cuGraphBatchMemOpNodeGetParams(node, &p);
    if (e != CUDA_SUCCESS || p.count != 3) return e;
    std::vector<CUstreamBatchMemOpParams> operations(p.paramArray, p.paramArray + p.count);
    const auto to = changes.find(operations[0].writeValue.address);
    if (operations[0].operation != CU_STREAM_MEM_OP_WRITE_VALUE_64 || to == changes.end()) return e;
    operations[0].writeValue.address = to->second;
    operations[1].waitValue.address = operations[2].writeValue.address =
        to->second + sizeof(uint64_t);
    p.paramArray = operations.data();
    return s.driver.cuGraphBatchMemOpNodeSetParams(node, &p);
  });
}

}  // namespace

CUresult nodes_of(Session& s, CUgraph graph, std::vector<CUgraphNode>* nodes) {
  size_t count = 0;
  CUresult e = s.driver.cuGraphGetNodes(graph, nullptr, &count);
  nodes->resize(count);
  if (e == CUDA_SUCCESS && count) e = s.driver.cuGraphGetNodes(graph, nodes->data(), &count);
  return e;
}

CUresult add_node(Session& s, CUgraph graph, const DriverEdges& after, NodeParams* p,
                  CUgraphNode* node) {
  return with_child(s, p, [&] {
    return s.driver.cuGraphAddNode_v2(node, graph, after.from.data(), after.edge_data(),
                                      after.from.size(), &p->all);
  });
}

CUresult set_node(Session& s, GraphObject& graph, uint32_t ordinal, NodeParams* p) {
  const CUgraphNode node = graph.nodes[ordinal];
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  if (const CUresult e = s.driver.cuGraphNodeGetType(node, &type); e != CUDA_SUCCESS) return e;
  const bool copies = p->staged || p->all.type == CU_GRAPH_NODE_TYPE_MEMCPY ||
                      p->all.type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
  if (type != p->all.type && copies) return replace(s, graph, ordinal, p);
  if (!p->staged) return s.driver.cuGraphNodeSetParams(node, &p->all);
  // In its place: executable graphs know the node.
  CUgraph child = nullptr;
  std::vector<CUgraphNode> inside;
  CUresult e = s.driver.cuGraphChildGraphNodeGetGraph(node, &child);
  if (e == CUDA_SUCCESS) e = nodes_of(s, child, &inside);
  for (size_t i = 0; e == CUDA_SUCCESS && i < inside.size(); ++i)
    e = s.driver.cuGraphDestroyNode(inside[i]);
  return e == CUDA_SUCCESS ? furnish(s, child, p) : e;
}

CUresult set_exec_node(Session& s, CUgraphExec exec, CUgraphNode node, NodeParams* p) {
  return with_child(s, p, [&] {
    return p->staged ? s.driver.cuGraphExecChildGraphNodeSetParams(exec, node, p->all.graph.graph)
                     : s.driver.cuGraphExecNodeSetParams(exec, node, &p->all);
  });
}

CUgraphNode call_inside(Session& s, CUgraphNode child) {
  CUgraph graph = nullptr;
  std::vector<CUgraphNode> inside;
  if (s.driver.cuGraphChildGraphNodeGetGraph(child, &graph) != CUDA_SUCCESS ||
      nodes_of(s, graph, &inside) != CUDA_SUCCESS || inside.size() != 2)
    return nullptr;
  CUgraphNode call = nullptr;
  uint32_t copies = 0;
  for (CUgraphNode node : inside) {
    CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
    if (s.driver.cuGraphNodeGetType(node, &type) != CUDA_SUCCESS) return nullptr;
    copies += type == CU_GRAPH_NODE_TYPE_MEMCPY;
    if (type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP) call = node;
  }
  return copies == 1 ? call : nullptr;
}

CUresult for_each_call(Session& s, CUgraph graph, const std::function<CUresult(CUgraphNode)>& f) {
  return walk(s, graph, f, 0);
}

void add_graph_copy_handlers(DispatchTable& t) {
  t[wire::kCaptureCopy].run = capture_copy;
  t[wire::kGraphWords].run = words;
}

}  // namespace sluice::worker
