// SPDX-License-Identifier: Apache-2.0
// Device memory of one vGPU, decided in the client (rule 3): addresses come from the vGPU's window,
// small allocations are cut from 2 MiB slabs with 512-byte alignment, and every slab is charged to
// the memory that the grant gives, so that an allocation is local and so is its refusal. What
// changes on the node is told to a sink in order: map before first use, unmap after last.
// Where other sessions of a job use the same vGPU, credit for what is charged is asked for, exactly
// as much as is lacking, and is gone with what is given back: nothing is hoarded, so that a refusal
// means that the job's memory is in use.
// Memory pools take whole slabs from it; the virtual memory API takes addresses and credit, each
// for itself, and says what has become backed.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>

#include "abi/cuda_driver.h"
#include "client/core/pool_memory.h"
#include "client/core/range_allocator.h"

namespace sluice::client {

class DeviceMemory : public PoolMemory {
 public:
  static constexpr uint64_t kSlab = 2ull << 20;
  static constexpr uint64_t kAlignment = 512;
  static constexpr uint64_t kSmall = 1ull << 20;  // up to here an allocation shares a slab

  struct Sink {
    std::function<bool(uint64_t address, uint64_t bytes)> map;
    std::function<bool(uint64_t address, uint64_t bytes)> unmap;
    // Asks for credit of a job's memory, and how much of it nobody has. Absent: all of the limit is
    // this session's own.
    std::function<Result(uint64_t bytes, uint64_t* left)> credit = {};
  };

  // `used`: where what is taken of the limit is counted, together with others who take of it;
  // nullptr: nobody else does, but for what note_libraries() says.
  void open(uint64_t window, uint64_t window_bytes, uint64_t limit, Sink sink,
            std::atomic<uint64_t>* used = nullptr);
  // What libraries hold on the node now. On one thread at a time, which may hold anything.
  void note_libraries(uint64_t order, uint64_t bytes);

  Result allocate(uint64_t bytes, uint64_t* address);
  // The caller has made sure that nothing on the device still uses it.
  Result free(uint64_t address);
  // The allocation that contains `address`.
  bool find(uint64_t address, uint64_t* start, uint64_t* bytes);
  // Whether every byte of [address, address + bytes) is backed on the node and may be accessed.
  bool covers(uint64_t address, uint64_t bytes);
  // What cuMemGetInfo reports: a job's free memory where it is shared.
  void info(uint64_t* free_bytes, uint64_t* total_bytes);
  // What this session has of it.
  uint64_t used();
  bool in_window(uint64_t address) const { return address - window_ < window_bytes_; }
  // Gives back what allocate() gave out (device reset).
  void clear();

  // For pools.
  Result take(uint64_t bytes, uint64_t* address) override;
  Result give(uint64_t address) override;

  // Addresses that nothing backs yet, in whole slabs, at `requested` when it is free; 0: there are
  // none.
  uint64_t reserve(uint64_t bytes, uint64_t alignment, uint64_t requested);
  void release(uint64_t address);
  // Credit for memory that is mapped by others.
  bool charge(uint64_t bytes);
  void refund(uint64_t bytes);
  // Reserved addresses become accessible, and stop being so. Neighbours count as one piece, as they
  // do to the GPU.
  void note_backed(uint64_t address, uint64_t bytes);
  void note_gone(uint64_t address);

 private:
  bool shared() const { return static_cast<bool>(sink_.credit); }
  void give_back(uint64_t bytes);
  void settle();
  Result take_slabs(uint64_t bytes, uint64_t* address);
  Result give_slabs(uint64_t address);
  void drop_spare();
  Result claim(uint64_t bytes);  // of what is left, a spare slab included
  bool try_claim(uint64_t bytes);

  std::mutex mutex_;
  Sink sink_;
  uint64_t window_ = 0, window_bytes_ = 0, limit_ = 0;
  // What may be taken without asking: all of the limit, or a job's credit. Under the mutex.
  uint64_t credit_ = 0;
  // Bytes of the limit that are taken: mapped on the node, promised, or the libraries'.
  std::atomic<uint64_t> own_used_{0};
  std::atomic<uint64_t>* used_ = &own_used_;
  uint64_t libraries_ = 0, libraries_order_ = 0;
  RangeAllocator ranges_;  // of the window, in slabs
  struct Backed {
    uint64_t bytes;
    bool joins;  // may be used together with its neighbours
  };
  std::map<uint64_t, Backed> backed_;
  std::map<uint64_t, uint64_t> large_;        // allocations of whole slabs: start, bytes
  std::map<uint64_t, RangeAllocator> slabs_;  // small allocations, by slab
  uint64_t spare_ =
      0;  // one empty slab is kept mapped, so that allocate and free in turn stay local
};

inline CUresult as_result(DeviceMemory::Result r) {
  switch (r) {
    case DeviceMemory::Result::kDone:
      return CUDA_SUCCESS;
    case DeviceMemory::Result::kOutOfMemory:
      return CUDA_ERROR_OUT_OF_MEMORY;
    case DeviceMemory::Result::kUnknown:
      return CUDA_ERROR_INVALID_VALUE;
    case DeviceMemory::Result::kSessionLost:
      break;
  }
  return CUDA_ERROR_UNKNOWN;
}

}  // namespace sluice::client
