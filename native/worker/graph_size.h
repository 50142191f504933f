// SPDX-License-Identifier: Apache-2.0
// How large graphs are, with the graphs inside of their nodes: a graph that is put into another, or
// into itself, is copied by the driver, so that a few commands could make as much as there is
// memory for; and the driver goes into graphs inside of one another by recursion. So copies are
// counted before they are made. What is refused is out of memory to the program. The leader's
// alone.
#pragma once

#include "worker/graph.h"

namespace sluice::worker {

// Together with wire::kMaxGraphDepth. Of one graph (nothing of that size is made but by copies; one
// made node by node may have more), and of all graphs and executable graphs of a session.
inline constexpr uint64_t kMaxNodesOfGraph = 1 << 18, kMaxNodesOfSession = 1 << 20;

// As a child of others; what lies inside counts as the graph around it.
GraphSize size_of(Session& s, GraphRef graph);

// Whether so much may be put into the graph.
bool may_grow(Session& s, GraphRef graph, const GraphSize& by);
// It was. Counts for it and all graphs around it.
void note_grown(Session& s, GraphRef graph, const GraphSize& by);
void note_shrunk(Session& s, GraphRef graph, uint64_t nodes);
// What a capture has left in the graph, which nobody counted one by one.
void count_captured(Session& s, const GraphRef& graph);

// Whether a graph of that size may be made; if so, it counts.
bool take_nodes(Session& s, uint64_t nodes);
void give_nodes(Session& s, uint64_t nodes);

// The graph that the stream captures into; nullptr: none of the session's.
GraphRef captured_on(Session& s, CUstream stream);

}  // namespace sluice::worker
