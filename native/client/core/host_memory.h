// SPDX-License-Identifier: Apache-2.0
// Host memory that CUDA knows of: pinned allocations (cut from the channel's arena while it lasts,
// else ordinary memory that copies are staged from), chunks of the same that pools divide
// (core/host_pools.h), registered ranges, and the staging buffers of pageable copies. Owns the
// arena's bookkeeping.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <vector>

#include "client/core/marks.h"
#include "client/core/range_allocator.h"

namespace sluice::client {

class HostMemory {
 public:
  enum class Place { kPageable, kArena, kPlain, kRegistered };
  struct Range {
    uint64_t start = 0, bytes = 0;
    unsigned flags = 0;
    Place place = Place::kPageable;
    uint32_t device = 0;  // whose context was current
    bool pooled = false;  // in a pool's chunk, whose pool gives it back
  };
  // A piece of the arena that a copy passes through. Busy until its mark shows `value`.
  struct Staging {
    std::byte* at = nullptr;
    size_t bytes = 0;
    uint32_t mark = wire::kNoMark;
    uint64_t value = 0;
  };

  // `make_known`: tells the worker to register arena pages before their first use. False: the
  // session is lost.
  void open(std::span<std::byte> arena, Marks* marks,
            std::function<bool(uint64_t address, uint64_t bytes)> make_known);

  bool allocate(size_t bytes, unsigned flags, uint32_t device, void** at);
  bool release(void* at);
  // A chunk for pools. CUDA knows of nothing in it but what is added. give_chunk() once neither
  // device nor channel uses it.
  bool take_chunk(size_t bytes, uint64_t* start);
  void give_chunk(uint64_t start);
  void add_pooled(uint64_t start, size_t bytes, uint32_t device);
  // False: no allocation of a pool begins there, or another thread has dropped it.
  bool drop_pooled(uint64_t start);
  bool add_registered(void* at, size_t bytes, unsigned flags, uint32_t device);
  bool drop_registered(void* at);
  // kPageable when CUDA does not know the address.
  Range find(const void* at);
  // Whether CUDA knows all of it and the device does not reach it: pinned memory beyond the arena,
  // or registered memory.
  bool is_unmapped(uint64_t address, uint64_t bytes);
  // False for most addresses of which that is not so, without a lock.
  bool may_be_unmapped(uint64_t address) const {
    return address >= unmapped_from_.load(std::memory_order_relaxed) &&
           address < unmapped_to_.load(std::memory_order_relaxed);
  }
  bool in_arena(const void* at, size_t bytes) const {
    const uint64_t a = reinterpret_cast<uint64_t>(at) - reinterpret_cast<uint64_t>(arena_.data());
    return a < arena_.size() && bytes <= arena_.size() - a;
  }

  // Staging buffers, in turn. The caller holds the staging lock for the whole of its copy.
  std::mutex staging_lock;
  std::vector<Staging>& staging();

 private:
  struct Chunk {
    size_t bytes;
    Place place;
  };
  bool know(uint64_t start, uint64_t bytes);
  // Whole pages of the arena, or of ordinary memory.
  bool take(size_t rounded, uint64_t* start, Place* place);
  void give(uint64_t start, size_t rounded, Place place);
  void add_unmapped(const Range& r);

  std::mutex mutex_;
  std::span<std::byte> arena_;
  size_t staging_bytes_ = 0;
  Marks* marks_ = nullptr;
  std::function<bool(uint64_t, uint64_t)> make_known_;
  RangeAllocator free_;
  std::vector<bool> known_;  // by chunk of kKnownChunk
  std::map<uint64_t, Range> ranges_;
  std::map<uint64_t, Chunk> chunks_;
  // Around all ranges outside the arena that there have been.
  std::atomic<uint64_t> unmapped_from_{~uint64_t{0}}, unmapped_to_{0};
  std::vector<Staging> staging_;
  bool staging_ready_ = false;
};

}  // namespace sluice::client
