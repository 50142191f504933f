// SPDX-License-Identifier: Apache-2.0
// Stream-ordered allocation (rule 3): pools over whole slabs of a vGPU's memory, or of pinned
// memory (core/host_pools.h), decided in the client. What a stream frees is at once the same
// stream's again; another stream's once it is known to have waited for the free (an event), or once
// the free's point is known to have passed (the completion page, a synchronisation), or, when no
// more memory is to be had, after a wait that is put into it. CU_MEMPOOL_ATTR_REUSE_* switch these
// three. Nothing of this takes a round trip until memory runs out. Pools made for it share their
// allocations with other processes (core/pool_roster.h); importers of these are
// core/imported_pool.h.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "abi/cuda_driver.h"
#include "client/core/device_memory.h"
#include "client/core/pool_roster.h"
#include "client/core/stream_order.h"
#include "wire/frame.h"

namespace sluice::client {

class MemoryPool;

// A pool's limit as the driver takes it, of a device's pools and the host's: up to whole 32 MiB
// (measured with driver 580). 0: there is none.
constexpr uint64_t kPoolGrain = 32ull << 20;
constexpr uint64_t whole_limit(uint64_t asked) {
  return asked > UINT64_MAX - kPoolGrain ? asked : wire::round_up(asked, kPoolGrain);
}

// The pools of one vGPU, or of the host.
class MemoryPools {
 public:
  MemoryPools();
  ~MemoryPools();
  void open(PoolMemory* memory, std::unique_ptr<StreamOrder> order);

  MemoryPool* standard() { return standard_; }
  // `roster`: the pool can be shared with other processes.
  MemoryPool* create(uint64_t most, std::unique_ptr<PoolRoster> roster = nullptr);
  // False: the standard pool stays.
  bool destroy(MemoryPool* pool);

  DeviceMemory::Result allocate(MemoryPool* pool, Stream* stream, uint64_t bytes,
                                uint64_t* address);
  // In the stream's order. False: no allocation of these pools begins there.
  bool free(uint64_t address, Stream* stream);
  // Nothing uses it any more.
  bool free_now(uint64_t address);
  bool find(uint64_t address, uint64_t* start, uint64_t* bytes, MemoryPool** pool = nullptr);

  // A descriptor of the pool's for other processes.
  CUresult export_pool(const MemoryPool* pool, int* descriptor);
  // The allocation that begins there, for whoever has such a descriptor. `share` asks the worker to
  // put the slabs that begin at `chunk` under a key; once for each.
  using Share = std::function<CUresult(uint64_t chunk, wire::SharedMemory* shared)>;
  CUresult export_pointer(uint64_t address, const Share& share, PointerTicket* ticket);

  // `later` has been made to wait for what `earlier` had been given up to issue number `upto`.
  void note_wait(Stream* later, Stream* earlier, uint64_t upto);
  // The stream goes, its work may not have ended. Before its place can be another's.
  void forget_stream(Stream* stream);

  // What is free and unused goes back, but for so much that `keep` stays where it is there.
  void trim(MemoryPool* pool, uint64_t keep);
  // After a synchronisation: what pools hold beyond their thresholds goes back.
  void after_synchronisation() {
    if (holds_.load(std::memory_order_relaxed)) release_excess();
  }
  // For the memory of graphs, which goes by the same order of streams.
  void watch_waits() { active_ = true; }
  StreamPoint point(Stream* stream);
  bool passed(Stream* stream, StreamPoint point);
  // Whether `later` is known to have been made to wait for that point of `earlier`.
  bool waited(Stream* later, Stream* earlier, StreamPoint point);
  bool follow(Stream* later, Stream* earlier);
  bool wait_idle() { return order_->wait_idle(); }

  // For others who run out of memory; `wait`: even if the device has to come to rest first.
  // Whether anything came back.
  bool make_room(bool wait);
  // Device reset: all allocations end.
  void clear();

  CUresult get(MemoryPool* pool, CUmemPool_attribute attribute, void* value);
  CUresult set(MemoryPool* pool, CUmemPool_attribute attribute, const void* value);

 private:
  friend class MemoryPool;
  DeviceMemory::Result try_allocate(MemoryPool* pool, Stream* stream, uint64_t bytes,
                                    uint64_t* address);
  MemoryPool* owner_of(uint64_t address);
  void release_excess();
  void bury();
  bool waits_for(Stream* later, Stream* earlier, StreamPoint point) const;

  std::mutex mutex_;
  PoolMemory* memory_ = nullptr;
  std::unique_ptr<StreamOrder> order_;
  std::vector<std::unique_ptr<MemoryPool>> pools_;
  MemoryPool* standard_ = nullptr;
  std::map<Stream*, std::map<Stream*, uint64_t>> waits_;  // later, earlier, up to
  std::atomic<bool> holds_{false};   // some pool may have memory that could go back
  std::atomic<bool> active_{false};  // streams have freed something
};

}  // namespace sluice::client
