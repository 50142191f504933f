// SPDX-License-Identifier: Apache-2.0
#include "worker/graph_size.h"

#include <algorithm>

#include "worker/session.h"

namespace sluice::worker {

namespace {

template <class F>
void for_all_around(Session& s, GraphRef graph, F&& f) {
  while (graph) {
    f(*graph);
    GraphRef around;
    if (!graph->parent || !s.objects.graphs.get(graph->parent, &around)) return;
    graph = std::move(around);
  }
}

}  // namespace

GraphSize size_of(Session& s, GraphRef graph) {
  GraphSize size;
  for_all_around(s, std::move(graph), [&](const GraphObject& g) { size = g.size; });
  return size;
}

bool may_grow(Session& s, GraphRef graph, const GraphSize& by) {
  if (by.nodes > kMaxNodesOfSession - std::min(kMaxNodesOfSession, s.objects.graph_nodes))
    return false;
  const uint32_t depth = graph->depth;
  const uint64_t nodes = size_of(s, std::move(graph)).nodes;
  return by.nodes <= 1 ||
         (nodes + by.nodes <= kMaxNodesOfGraph && depth + by.height <= wire::kMaxGraphDepth);
}

void note_grown(Session& s, GraphRef graph, const GraphSize& by) {
  s.objects.graph_nodes += by.nodes;
  for_all_around(s, std::move(graph),
                 [height = by.height, nodes = by.nodes](GraphObject& g) mutable {
                   g.size.nodes += nodes;
                   g.size.height = std::max(g.size.height, height);
                   ++height;
                 });
}

void note_shrunk(Session& s, GraphRef graph, uint64_t nodes) {
  s.objects.graph_nodes -= nodes;
  for_all_around(s, std::move(graph), [nodes](GraphObject& g) { g.size.nodes -= nodes; });
}

void count_captured(Session& s, const GraphRef& graph) {
  size_t now = 0;
  if (s.driver.cuGraphGetNodes(graph->handle, nullptr, &now) != CUDA_SUCCESS) return;
  if (now > graph->own_nodes) note_grown(s, graph, {now - graph->own_nodes, 0});
  graph->own_nodes = std::max<uint64_t>(graph->own_nodes, now);
}

bool take_nodes(Session& s, uint64_t nodes) {
  if (nodes > kMaxNodesOfSession - std::min(kMaxNodesOfSession, s.objects.graph_nodes))
    return false;
  s.objects.graph_nodes += nodes;
  return true;
}

void give_nodes(Session& s, uint64_t nodes) { s.objects.graph_nodes -= nodes; }

GraphRef captured_on(Session& s, CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  CUgraph handle = nullptr;
  GraphRef found;
  if (s.driver.cuStreamGetCaptureInfo_v2(stream, &status, nullptr, &handle, nullptr, nullptr) ==
          CUDA_SUCCESS &&
      status == CU_STREAM_CAPTURE_STATUS_ACTIVE && handle)
    s.objects.graphs.for_each([&](uint64_t, const GraphRef& g) {
      if (g->handle == handle) found = g;
    });
  return found;
}

}  // namespace sluice::worker
