// SPDX-License-Identifier: Apache-2.0
#include "worker/traffic.h"

#include "worker/graph_node.h"

namespace sluice::worker {

namespace {

template <class Fill>
Traffic of_fill(Session& s, const Fill& f) {
  return traffic_of(s, f.dst, 0, f.width * f.elementSize * f.height);
}

Traffic of_graph(Session& s, CUgraph graph, int depth);

Traffic of_node(Session& s, CUgraphNode node, int depth) {
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  if (s.driver.cuGraphNodeGetType(node, &type) != CUDA_SUCCESS) return {};
  if (type == CU_GRAPH_NODE_TYPE_MEMCPY) {
    CUDA_MEMCPY3D c{};
    if (s.driver.cuGraphMemcpyNodeGetParams(node, &c) == CUDA_SUCCESS) return traffic_of(s, c);
  }
  if (type == CU_GRAPH_NODE_TYPE_MEMSET) {
    CUDA_MEMSET_NODE_PARAMS f{};
    if (s.driver.cuGraphMemsetNodeGetParams(node, &f) == CUDA_SUCCESS) return of_fill(s, f);
  }
  CUgraph child = nullptr;
  if (type == CU_GRAPH_NODE_TYPE_GRAPH &&
      s.driver.cuGraphChildGraphNodeGetGraph(node, &child) == CUDA_SUCCESS)
    return of_graph(s, child, depth + 1);
  return {};
}

Traffic of_graph(Session& s, CUgraph graph, int depth) {
  Traffic all;
  std::vector<CUgraphNode> nodes;
  if (depth > static_cast<int>(wire::kMaxGraphDepth) || nodes_of(s, graph, &nodes) != CUDA_SUCCESS)
    return all;
  for (CUgraphNode node : nodes) all += of_node(s, node, depth);
  return all;
}

}  // namespace

Traffic traffic_of(Session& s, uint64_t to, uint64_t from, uint64_t bytes) {
  return {s.arena_range(from, 1) ? bytes : 0, s.arena_range(to, 1) ? bytes : 0};
}

Traffic traffic_of(Session& s, const CUDA_MEMCPY3D& c) {
  const auto end = [&](CUmemorytype type, const void* host, CUdeviceptr device) -> uint64_t {
    if (type == CU_MEMORYTYPE_ARRAY) return 0;
    return s.arena_views.original(type == CU_MEMORYTYPE_HOST ? reinterpret_cast<uint64_t>(host)
                                                             : device);
  };
  return traffic_of(s, end(c.dstMemoryType, c.dstHost, c.dstDevice),
                    end(c.srcMemoryType, c.srcHost, c.srcDevice),
                    c.WidthInBytes * c.Height * c.Depth);
}

Traffic traffic_of(Session& s, const NodeParams& p) {
  if (p.staged) return traffic_of(s, p.copy.memcpy.copyParams);
  switch (p.all.type) {
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return traffic_of(s, p.all.memcpy.copyParams);
    case CU_GRAPH_NODE_TYPE_MEMSET:
      return of_fill(s, p.all.memset);
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return of_graph(s, p.all.graph.graph, 1);
    default:
      return {};
  }
}

void count(Session& s, const Traffic& moved) {
  if (moved.in) s.figures.shared_in.fetch_add(moved.in, std::memory_order_relaxed);
  if (moved.out) s.figures.shared_out.fetch_add(moved.out, std::memory_order_relaxed);
}

void count(Session& s, CUstream stream, const Traffic& moved) {
  if (!moved) return;
  capturing(s, stream) ? s.graph_traffic.note() : count(s, moved);
}

void GraphTraffic::Exec::set(size_t place, const Node& node) {
  Node& old = nodes[place];
  if (old.on) all -= old.moves;
  if (node.on) all += node.moves;
  old = node;
}

void GraphTraffic::instantiated(Session& s, uint64_t exec, CUgraph graph) {
  std::vector<CUgraphNode> nodes;
  if (!any_.load(std::memory_order_relaxed) || nodes_of(s, graph, &nodes) != CUDA_SUCCESS) return;
  Exec& made = execs_[exec] = {};
  made.nodes.resize(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    made.places.emplace(nodes[i], i);
    made.set(i, {of_node(s, nodes[i], 0)});
  }
}

// The driver has found that the two graphs have the same shape, so nodes that were made in the same
// order are the same.
void GraphTraffic::updated(Session& s, uint64_t exec, CUgraph graph) {
  const auto known = execs_.find(exec);
  std::vector<CUgraphNode> nodes;
  if (known == execs_.end() || nodes_of(s, graph, &nodes) != CUDA_SUCCESS ||
      nodes.size() != known->second.nodes.size())
    return instantiated(s, exec, graph);
  Exec& e = known->second;
  for (size_t i = 0; i < nodes.size(); ++i) e.set(i, {of_node(s, nodes[i], 0), e.nodes[i].on});
}

void GraphTraffic::changed(Session& s, uint64_t exec, CUgraph graph, CUgraphNode node,
                           const NodeParams& p) {
  if (!any_.load(std::memory_order_relaxed)) return;
  const Traffic moves = traffic_of(s, p);
  if (moves && !execs_.contains(exec)) {
    // Made when no shared memory was in any graph: its other nodes move nothing.
    std::vector<CUgraphNode> nodes;
    if (nodes_of(s, graph, &nodes) != CUDA_SUCCESS) return;
    Exec& made = execs_[exec];
    made.nodes.resize(nodes.size());
    for (size_t i = 0; i < nodes.size(); ++i) made.places.emplace(nodes[i], i);
  }
  size_t place = 0;
  if (Exec* e = find(exec, node, &place)) e->set(place, {moves, e->nodes[place].on});
}

void GraphTraffic::switched(uint64_t exec, CUgraphNode node, bool on) {
  size_t place = 0;
  if (Exec* e = find(exec, node, &place)) e->set(place, {e->nodes[place].moves, on});
}

void GraphTraffic::launched(Session& s, uint64_t exec) {
  if (execs_.empty()) return;
  if (const auto known = execs_.find(exec); known != execs_.end()) count(s, known->second.all);
}

GraphTraffic::Exec* GraphTraffic::find(uint64_t exec, CUgraphNode node, size_t* place) {
  const auto known = execs_.find(exec);
  if (known == execs_.end()) return nullptr;
  const auto at = known->second.places.find(node);
  if (at == known->second.places.end()) return nullptr;
  *place = at->second;
  return &known->second;
}

}  // namespace sluice::worker
