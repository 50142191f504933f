// SPDX-License-Identifier: Apache-2.0
// Pools of pinned host memory: what MemoryPools decides, over chunks of the session's pinned memory
// (core/host_memory.h) and for the streams of all its vGPUs. An allocation is pinned memory like
// any other, in the arena while that lasts. There is nothing of this before a program asks for it.
// Used by driver/host_pool.cc and by what ends waits and streams.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "client/core/memory_pools.h"

namespace sluice::client {

class Session;

class HostPools {
 public:
  // The places that pools are asked for: a NUMA node by its number, or wherever there is memory.
  static constexpr int kAnyNode = -1;

  explicit HostPools(Session& session) : session_(session) {}

  // Whether there has ever been one.
  bool any() const { return all_.load(std::memory_order_acquire) != nullptr; }
  MemoryPools& all();
  // Handles of a place's pools: what it has from the beginning, and what was chosen since; 0: there
  // are no handles left.
  uint64_t standard(int node);
  uint64_t current(int node);
  void choose(int node, uint64_t handle);
  // False: it is a place's standard pool.
  bool forget(int node, uint64_t handle);

  DeviceMemory::Result allocate(MemoryPool* pool, Stream* stream, uint64_t bytes,
                                uint64_t* address);
  // In the stream's order; nullptr: nothing uses it any more. False: no allocation of these pools
  // begins there.
  bool free(uint64_t address, Stream* stream);

  void forget_stream(Stream* stream) {
    if (any()) all().forget_stream(stream);
  }
  void after_synchronisation() {
    if (any()) all().after_synchronisation();
  }

 private:
  struct Place {
    uint64_t standard = 0, current = 0;
  };
  class Chunks : public PoolMemory {
   public:
    explicit Chunks(Session& session) : session_(session) {}
    Result take(uint64_t bytes, uint64_t* address) override;
    Result give(uint64_t address) override;

   private:
    Session& session_;
  };
  Place* place(int node);

  Session& session_;
  std::mutex mutex_;
  std::unique_ptr<Chunks> chunks_;
  std::unique_ptr<MemoryPools> owned_;
  std::atomic<MemoryPools*> all_{nullptr};
  std::map<int, Place> places_;
};

}  // namespace sluice::client
