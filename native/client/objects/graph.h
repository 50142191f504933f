// SPDX-License-Identifier: Apache-2.0
// Graphs as the application holds them. What is in a graph is the worker's driver's to know; here
// are the handles, and what has to happen in this process when a graph runs: host functions, and
// copies whose host side the worker cannot reach.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "abi/cuda_driver.h"
#include "client/core/graph_memory.h"

namespace sluice::client {

struct Device;
struct Stream;

// Two words of the arena (over a network: of the worker's) that a node of a graph and this process
// shake hands by: the node writes `ready`, waits for `done` and takes it back; whoever runs the
// function takes `ready` back before he sets `done`. So the same words serve every run, as runs of
// one executable graph follow one another; two executable graphs must not share them.
struct Handshake {
  uint64_t address = 0;                    // of `ready`, as commands name it; `done` follows
  std::atomic<uint64_t>* ready = nullptr;  // where memory is shared
  std::atomic<uint64_t>* done = nullptr;
  uint32_t execs = 0;             // executable graphs that have these words: one at most
  std::atomic<uint32_t> runs{0};  // calls that are to come
  bool busy() const { return execs || runs.load(std::memory_order_acquire); }
  Handshake() = default;
  Handshake(const Handshake&) = delete;
  Handshake& operator=(const Handshake&) = delete;
  ~Handshake();
};

// A function that a graph calls in this process: the application's, or one of Sluice's that moves
// the bytes of a copy whose host side the worker cannot reach.
struct HostCall {
  enum class Kind { kFunction, kToDevice, kToHost, kHostToHost };
  Kind kind = Kind::kFunction;
  uint64_t key = 0;  // the node's, in a graph and in what is made of it
  std::shared_ptr<Handshake> words;
  CUhostFn function = nullptr;
  void* data = nullptr;
  std::shared_ptr<const CUDA_MEMCPY3D> copy;  // as the application gave it
  std::function<void()> run;
};

// Counted by the application and by graphs; ends by the application's function.
struct UserObject {
  CUhostFn destroy = nullptr;
  void* data = nullptr;
  uint64_t count = 0;
};
// A graph's references to one. Graphs made of one another share them.
struct UserReferences {
  uint64_t object = 0;
  uint32_t count = 0;
  UserReferences() = default;
  UserReferences(const UserReferences&) = delete;
  UserReferences& operator=(const UserReferences&) = delete;
  ~UserReferences();
};

// What happens around a run, in the order of its stream: over a network, for copies with pinned
// memory inside of conditions, where a graph can call nobody.
struct HostAround {
  std::function<void()> before, after;  // `after` may be none
};

// What a run of a graph needs of this process.
struct HostSide {
  std::vector<HostCall> calls;
  std::vector<HostAround> around;
  bool stale = false;  // nodes were destroyed, perhaps some of these
  std::vector<std::shared_ptr<UserReferences>> objects;
};

struct Graph {
  Device* device = nullptr;
  std::shared_ptr<GraphPlanRef> memory;  // what its nodes allocate and free, if any do
  uint64_t parent = 0;                   // the graph that it lies in, as the child of a node
  std::vector<uint64_t> nodes;           // handles by ordinal; 0: not asked for yet
  std::vector<std::pair<uint32_t, uint64_t>> children;  // by ordinal: handles given out
  HostSide host;
  bool body = false;         // inside a conditional node, filled after that was added
  bool conditional = false;  // has conditional nodes, or lies over one that has
  std::vector<CUgraphConditionalHandle> conditions;  // values made for it
  std::weak_ptr<void> instance;  // of the executable graph, where there may be one only
};

struct GraphNode {
  uint64_t graph = 0;
  uint32_t ordinal = 0;
  // What pointers handed out with its parameters point to.
  std::vector<std::byte> params;
  std::vector<void*> pointers;
  std::vector<CUstreamBatchMemOpParams> operations;
  std::vector<CUgraph> bodies;  // of a conditional node
};

struct GraphExec {
  Device* device = nullptr;
  std::shared_ptr<GraphPlanRef> memory;
  unsigned long long flags = 0;
  std::vector<uint64_t> disabled;  // nodes that it leaves out
  HostSide host;
  std::shared_ptr<void> instance;  // held while it is the one of its graph
  uint64_t stream = 0;             // of the last launch with `around`; 0: none
};

}  // namespace sluice::client
