// SPDX-License-Identifier: Apache-2.0
// Memory that graphs allocate. A graph's allocations have addresses from the day that their nodes
// are added (GraphPlan), a piece of the vGPU's window that only this graph uses; memory is there
// from a launch on, in blocks that one vGPU's graphs share: a block is another graph's once the
// stream that wants it is ordered behind its last use, and is then mapped at that graph's addresses
// too. Nothing else is done between launches of the same graphs in the same stream. Until the first
// launch one slab of memory stands behind all addresses, as the driver takes no copy to or from
// addresses that nothing is mapped at; no run ever sees it. All of it is mapped by the virtual
// memory API's accounts (virtual_memory.h), so that it is charged and nothing takes a round trip.
//
// In the worker's driver allocations and frees are empty nodes: places in the graph's order.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "abi/cuda_driver.h"
#include "client/core/stream_order.h"

namespace sluice::client {

class GraphMemory;

// What one graph allocates and frees. Under the lock of its GraphMemory.
class GraphPlan {
 public:
  struct Node {
    bool allocates = false;
    uint64_t address = 0, bytes = 0;  // `bytes` as they were asked for
    CUmemPoolProps properties{};
  };

  explicit GraphPlan(GraphMemory& home) : home(home) {}

  GraphMemory& home;

 private:
  friend class GraphMemory;
  struct Block {
    uint64_t id = 0;  // of VirtualMemory
    uint64_t bytes = 0;
    Stream* owner = nullptr;  // that may use it at once; nullptr: everybody
    StreamPoint point;        // of the owner when it was last used
    uint64_t exec = 0;        // the executable graph that used it last, if nothing came after
    uint64_t claim = 0;       // the launch that has it
    bool held = false;        // has an allocation that outlived its graph's run
  };
  struct Slot {
    uint64_t address, bytes;
    Block* block = nullptr;  // nullptr: the slab that stands behind all
  };
  struct Chunk {
    uint64_t address, bytes;
    std::vector<Slot> slots;
    uint32_t live = 0;  // allocations that outlived a run and have not been freed
  };
  struct Allocation {
    uint64_t address, bytes;  // whole units
    size_t chunk;
    bool freed_inside = false, freed_elsewhere = false;
    bool live = false;
  };
  // Addresses that are free again behind a node.
  struct Extent {
    uint64_t address, bytes;
    size_t chunk;
    uint32_t node;
  };

  std::vector<Chunk> chunks_;
  std::vector<Allocation> allocations_;
  std::vector<Extent> extents_;
  std::map<uint32_t, Node> nodes_;      // by ordinal
  std::vector<uint64_t> frees_;         // other graphs' allocations that a run of this one ends
  uint64_t tail_ = 0, tail_bytes_ = 0;  // unused rest of the newest chunk of small allocations
  std::set<uint32_t> peers_;            // other vGPUs that may use it
  Stream* stream_ = nullptr;            // of the newest run
  StreamPoint point_;
  bool gone_ = false;  // neither graph nor executable graph has it
};

// Holds a plan for a graph or an executable graph.
class GraphPlanRef {
 public:
  explicit GraphPlanRef(GraphPlan* plan) : plan_(plan) {}
  ~GraphPlanRef();
  GraphPlanRef(const GraphPlanRef&) = delete;
  GraphPlanRef& operator=(const GraphPlanRef&) = delete;
  GraphPlan& operator*() const { return *plan_; }
  GraphPlan* operator->() const { return plan_; }

 private:
  GraphPlan* plan_;
};

// The graph memory of one vGPU.
class GraphMemory {
 public:
  void open(Session* session, Device* device) { session_ = session, device_ = device; }

  std::shared_ptr<GraphPlanRef> make_plan();

  // ---- building
  // Whether addresses could be used again, for which allocate() wants to know what lies before.
  bool reusable(GraphPlan& plan);
  // For node `ordinal`, which comes behind the nodes `before`.
  CUresult allocate(GraphPlan& plan, uint32_t ordinal, uint64_t bytes,
                    const CUmemPoolProps& properties, const std::set<uint32_t>& peers,
                    const std::set<uint32_t>& before, uint64_t* address);
  // Whether a node of a graph with that plan, if it has one, may free `address`.
  CUresult check_free(const GraphPlan* plan, uint64_t address);
  void free(GraphPlan& plan, uint32_t ordinal, uint64_t address);
  // The node of that ordinal, if it is one of these.
  bool node(GraphPlan& plan, uint32_t ordinal, GraphPlan::Node* node);
  // Whether two graphs allocate and free the same, one after the other.
  static bool alike(GraphPlan& a, GraphPlan& b);

  // ---- running
  // A run of an executable graph in `stream`, which `send` sends once there is memory behind all of
  // the graph's addresses; `upload`: the memory alone.
  CUresult run(GraphPlan& plan, uint64_t exec, Stream* stream, bool auto_free, bool upload,
               const std::function<CUresult()>& send);

  // ---- outside of graphs
  // In the stream's order; nullptr: nothing uses it any more. False: no allocation that is there
  // begins at that address.
  bool free(uint64_t address, Stream* stream);
  bool find(uint64_t address, uint64_t* start, uint64_t* bytes);
  void forget_stream(Stream* stream);
  // Gives back what no run uses and no allocation holds. Whether there was anything.
  bool trim();
  void drop(GraphPlan* plan);
  // Device reset.
  void clear();
  CUresult get(CUgraphMem_attribute attribute, uint64_t* value);
  CUresult reset(CUgraphMem_attribute attribute);

 private:
  using Block = GraphPlan::Block;
  using Slot = GraphPlan::Slot;
  using Chunk = GraphPlan::Chunk;

  CUresult add_chunk(GraphPlan& plan, uint64_t bytes);
  CUresult back(const GraphPlan& plan, uint64_t address, uint64_t bytes, uint64_t id);
  CUresult back_by_placeholder(GraphPlan& plan, Slot& slot);
  void unback(Slot& slot);
  bool passed(Stream* stream, StreamPoint point);
  bool available(Block& block, uint64_t exec, Stream* stream);
  CUresult fill(GraphPlan& plan, Slot& slot, uint64_t exec, Stream* stream);
  Block* find_block(uint64_t bytes, uint64_t exec, Stream* stream);
  Block* borrow(uint64_t bytes, Stream* stream);
  Block* make_block(uint64_t bytes, CUresult* result);
  bool trim_locked();
  CUresult prepare(GraphPlan& plan, uint64_t exec, Stream* stream, bool auto_free, bool upload);
  void launched(GraphPlan& plan, uint64_t exec, Stream* stream, bool upload);
  void release(GraphPlan& plan, Chunk& chunk, Stream* stream);
  bool free_locked(uint64_t address, Stream* stream);
  GraphPlan::Allocation* live_at(uint64_t address, GraphPlan** plan);
  void bury();

  Session* session_ = nullptr;
  Device* device_ = nullptr;
  std::mutex mutex_;
  std::atomic<bool> active_{false};  // there has been a plan
  std::vector<std::unique_ptr<GraphPlan>> plans_;
  std::vector<std::unique_ptr<Block>> blocks_;
  uint64_t placeholder_ = 0;  // a slab, while there are plans with addresses
  uint64_t claims_ = 0;
  uint64_t bytes_ = 0, most_ = 0;  // of blocks
};

}  // namespace sluice::client
