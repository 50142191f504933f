// SPDX-License-Identifier: Apache-2.0
// What moves between the GPU and memory that the client shares. That passes neither ring nor
// socket, so no endpoint sees it; counted here, a session's bytes mean the same over every channel.
// Where no memory is shared there is nothing to count. A copy counts when the driver has taken it;
// one that is captured, and one that is a node of a graph, with each launch.
#pragma once

#include <atomic>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "worker/driver.h"

namespace sluice::worker {

class Session;
struct NodeParams;

struct Traffic {
  uint64_t in = 0, out = 0;  // from the client's memory, to it
  explicit operator bool() const { return in || out; }
  void operator+=(const Traffic& o) { in += o.in, out += o.out; }
  void operator-=(const Traffic& o) { in -= o.in, out -= o.out; }
};

// Of a copy or a fill (`from` 0) between these addresses.
Traffic traffic_of(Session& s, uint64_t to, uint64_t from, uint64_t bytes);
Traffic traffic_of(Session& s, const CUDA_MEMCPY3D& copy);
Traffic traffic_of(Session& s, const NodeParams& p);

// A stream has been given this. One addition for a way that it moves, none where nothing is shared.
void count(Session& s, CUstream stream, const Traffic& moved);

// What a launch of each executable graph moves. Costs nothing until shared memory gets into a graph
// for the first time; from then on the nodes of what is instantiated or updated are looked at, and
// a launch looks its graph up. What single nodes are changed to counts, and whether they are
// switched on. Not followed: bodies of conditions, as only the GPU knows how often they run, and
// changes of nodes inside of child graphs of an executable graph. The leader's alone, but for
// note().
class GraphTraffic {
 public:
  void note() { any_.store(true, std::memory_order_relaxed); }
  void instantiated(Session& s, uint64_t exec, CUgraph graph);
  void updated(Session& s, uint64_t exec, CUgraph graph);
  // `graph`: the one that the node is of.
  void changed(Session& s, uint64_t exec, CUgraph graph, CUgraphNode node, const NodeParams& p);
  void switched(uint64_t exec, CUgraphNode node, bool on);
  void launched(Session& s, uint64_t exec);
  void destroyed(uint64_t exec) { execs_.erase(exec); }

 private:
  struct Node {
    Traffic moves;
    bool on = true;
  };
  struct Exec {
    std::unordered_map<CUgraphNode, size_t> places;  // of the graph that it was made from
    std::vector<Node> nodes;
    Traffic all;  // of the nodes that are on
    void set(size_t place, const Node& node);
  };
  std::atomic<bool> any_{false};
  std::unordered_map<uint64_t, Exec> execs_;

  Exec* find(uint64_t exec, CUgraphNode node, size_t* place);
};

}  // namespace sluice::worker
