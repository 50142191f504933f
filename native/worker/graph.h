// SPDX-License-Identifier: Apache-2.0
// Graphs of a session: what the worker keeps for the ids that the client minted, and what the
// handlers of capture.cc, graph.cc, graph_node.cc and shadow.cc share. All of them run on the
// leading thread, one after the other, so that these need no lock; only the watchdog and the
// handlers that wait look on (captures.h).
#pragma once

#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "wire/graph_commands.h"
#include "worker/collectives.h"
#include "worker/driver.h"
#include "worker/objects.h"

namespace sluice::worker {

class Session;
struct Vgpu;

// Nodes, those of graphs inside of nodes included, and how deep such graphs lie in one another.
struct GraphSize {
  uint64_t nodes = 0;
  uint32_t height = 0;
};

struct GraphObject {
  CUgraph handle = nullptr;
  uint64_t parent = 0;  // the graph whose node `node` it lies in: it is that graph's, not ours
  uint32_t node = wire::kNoNode;
  uint32_t depth = 0;  // how many graphs it lies in
  bool capturing = false;
  bool existing = false;           // made otherwise than by a capture that is under way
  std::vector<CUgraphNode> nodes;  // by ordinal; nullptr: destroyed
  std::unordered_map<CUgraphNode, uint32_t> ordinals;
  std::vector<CUgraphConditionalHandle> conditionals;  // made for it
  GraphSize size;                                      // worker/graph_size.h
  uint64_t own_nodes = 0;                         // that lie in it and in no graph inside of it
  std::unordered_map<uint32_t, uint64_t> inside;  // nodes inside of a node, by ordinal
  // That were captured into it, and with graphs inside of it; not those in bodies of conditions, as
  // only the GPU knows how often they run. Nodes that are taken out stay counted.
  Collectives::Many collectives;

  uint32_t ordinal_of(CUgraphNode n) {
    const auto [it, fresh] = ordinals.try_emplace(n, static_cast<uint32_t>(nodes.size()));
    if (fresh) nodes.push_back(n);
    return it->second;
  }
  CUgraphNode node_at(uint32_t ordinal) const {
    return ordinal < nodes.size() ? nodes[ordinal] : nullptr;
  }
};
using GraphRef = std::shared_ptr<GraphObject>;

struct GraphExecObject {
  CUgraphExec handle = nullptr;
  uint32_t nodes = 1;  // how much a launch of it weighs
  GraphSize size;
  std::shared_ptr<const Collectives::Many> collectives{};  // of a launch; null: none
};

// The graph with this id; nullptr: there is none (rejected).
GraphRef find_graph(Session& s, uint64_t id, const char* what);
// Learns of nodes that the driver has made, as capture does.
CUresult learn_nodes(Session& s, GraphObject& graph, std::vector<CUgraphNode>* now = nullptr);
// Edges that follow a command's fixed part. False: cut short or too many (rejected).
bool take_edges(Session& s, std::span<const std::byte> raw, uint32_t count, const char* what,
                std::vector<wire::GraphEdge>* edges);
// Both ends as the driver knows them; `to` is left out where a list has nodes only. False: a node
// that there is not (rejected).
struct DriverEdges {
  std::vector<CUgraphNode> from, to;
  std::vector<CUgraphEdgeData> data;
  bool plain = true;  // no edge carries data
  const CUgraphEdgeData* edge_data() const { return plain ? nullptr : data.data(); }
};
bool resolve_edges(Session& s, const GraphObject& graph, const std::vector<wire::GraphEdge>& edges,
                   bool both_ends, const char* what, DriverEdges* out);
// Answers as much of a list as fits, from `first` on.
struct Reply;
void put_list(Session& s, const std::vector<wire::GraphEdge>& all, uint32_t first, Reply& reply);
uint64_t edge_bits(const CUgraphEdgeData& data);

// Stream memory operations out of a command: addresses are the session's, operations and flags
// such that there are. False: rejected.
bool take_mem_ops(Session& s, std::span<const std::byte> raw, uint32_t count, const char* what,
                  std::vector<CUstreamBatchMemOpParams>* operations);

}  // namespace sluice::worker
