// SPDX-License-Identifier: Apache-2.0
// Graphs of a session: what the worker keeps for the ids that the client minted, and what the
// handlers of capture.cc, graph.cc, graph_node.cc and shadow.cc share. All of them run on the
// leading thread, one after the other, so that these need no lock; only the watchdog and the
// handlers that wait look on (Captures).
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "wire/graph_commands.h"
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
};

// Which streams began captures that have not ended. The worker's own calls must not touch a stream
// that captures: whoever does so without knowing holds the lock and finds that nobody captures.
class Captures {
 public:
  std::mutex mutex;
  bool any() const { return count_.load(std::memory_order_acquire) != 0; }

  // Under the lock.
  bool begin(uint64_t stream, uint64_t graph) {
    const bool fresh = graphs_.try_emplace(stream, graph).second;
    count_.store(static_cast<uint32_t>(graphs_.size()), std::memory_order_release);
    return fresh;
  }
  void end(uint64_t stream) {
    graphs_.erase(stream);
    count_.store(static_cast<uint32_t>(graphs_.size()), std::memory_order_release);
  }
  uint64_t graph_of(uint64_t stream) const {
    const auto it = graphs_.find(stream);
    return it == graphs_.end() ? 0 : it->second;
  }

 private:
  std::atomic<uint32_t> count_{0};
  std::map<uint64_t, uint64_t> graphs_;
};

// Host memory of the worker's for copies of graphs (wire::ShadowMake). Reading one waits and so
// runs beside the leader: whoever has found a shadow keeps its memory.
class Shadows {
 public:
  struct Memory {
    std::byte* at = nullptr;
    uint64_t bytes = 0;
    std::function<void()> release;
    ~Memory() {
      if (release) release();
    }
  };
  using Shadow = std::shared_ptr<Memory>;

  Shadow find(uint64_t id) const;
  // The shadow that an address lies in; 0: none.
  uint64_t holder(const void* at) const;
  bool room(uint64_t bytes) const;
  void add(uint64_t id, Shadow shadow);
  void drop(uint64_t id);

 private:
  mutable std::mutex mutex_;
  std::map<uint64_t, Shadow> all_;
  uint64_t held_ = 0;
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
