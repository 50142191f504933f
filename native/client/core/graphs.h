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

// Two words of the arena that a node of a graph and this process shake hands by: the node writes
// `ready`, waits for `done` and takes it back; whoever runs the function takes `ready` back before
// he sets `done`. So the same words serve every run, as runs of one executable graph follow one
// another; two executable graphs must not share them.
struct Handshake {
  std::atomic<uint64_t>* ready = nullptr;
  std::atomic<uint64_t>* done = nullptr;
  uint32_t execs = 0;  // executable graphs that have these words: one at most
  Handshake() = default;
  Handshake(const Handshake&) = delete;
  Handshake& operator=(const Handshake&) = delete;
  ~Handshake();
};

// A function that a graph calls in this process.
struct HostCall {
  std::shared_ptr<Handshake> words;
  CUhostFn function = nullptr;  // the application's, if it is one of its own
  void* data = nullptr;
  std::function<void()> run;
};

// A copy whose host side is this process's alone (over a network): the graph copies to or from a
// shadow of it in the worker, which is written before each launch and read after it.
struct ShadowCopy {
  uint64_t id = 0;
  bool to_device = false;
  std::byte* host = nullptr;
  uint64_t pitch = 0, width = 0, rows = 1;
  uint32_t context = 0;
  uint64_t node = 0;     // added by hand: its handle
  bool perhaps = false;  // in the body of a condition: what does not run must change nothing
  ShadowCopy() = default;
  ShadowCopy(const ShadowCopy&) = delete;
  ShadowCopy& operator=(const ShadowCopy&) = delete;
  ~ShadowCopy();
};
using ShadowRef = std::shared_ptr<ShadowCopy>;

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

// What a run of a graph needs of this process.
struct HostSide {
  std::vector<HostCall> calls;
  std::vector<ShadowRef> shadows;
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
  bool running = false;            // a run may still read shadows
  uint64_t stream = 0;             // in this stream, as the wire names it
};

}  // namespace sluice::client
