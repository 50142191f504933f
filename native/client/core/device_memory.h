// SPDX-License-Identifier: Apache-2.0
// Device memory of one vGPU, decided in the client (rule 3): addresses come from the vGPU's window,
// small allocations are cut from 2 MiB slabs with 512-byte alignment, and every slab is charged to
// the memory that the grant gives, so that an allocation is local and so is its refusal. What
// changes on the node is told to a sink in order: map before first use, unmap after last.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>

#include "client/core/range_allocator.h"

namespace sluice::client {

class DeviceMemory {
 public:
  static constexpr uint64_t kSlab = 2ull << 20;
  static constexpr uint64_t kAlignment = 512;
  static constexpr uint64_t kSmall = 1ull << 20;  // up to here an allocation shares a slab

  struct Sink {
    std::function<bool(uint64_t address, uint64_t bytes)> map;
    std::function<bool(uint64_t address, uint64_t bytes)> unmap;
  };
  enum class Result { kDone, kOutOfMemory, kUnknown, kSessionLost };

  void open(uint64_t window, uint64_t window_bytes, uint64_t limit, Sink sink);

  Result allocate(uint64_t bytes, uint64_t* address);
  // The caller has made sure that nothing on the device still uses it.
  Result free(uint64_t address);
  // The allocation that contains `address`.
  bool find(uint64_t address, uint64_t* start, uint64_t* bytes);
  // Whether [address, address + bytes) lies in one mapping of the node.
  bool covers(uint64_t address, uint64_t bytes);
  // What cuMemGetInfo reports.
  void info(uint64_t* free_bytes, uint64_t* total_bytes);
  bool in_window(uint64_t address) const { return address - window_ < window_bytes_; }
  // Gives everything back (device reset).
  void clear();

 private:
  bool take_slab(uint64_t bytes, uint64_t* address, Result* result);
  void drop_spare();

  std::mutex mutex_;
  Sink sink_;
  uint64_t window_ = 0, window_bytes_ = 0, limit_ = 0;
  uint64_t charged_ = 0;                      // mapped on the node
  RangeAllocator ranges_;                     // of the window, in slabs
  std::map<uint64_t, RangeAllocator> slabs_;  // small allocations, by slab
  uint64_t spare_ =
      0;  // one empty slab is kept mapped, so that allocate and free in turn stay local
};

}  // namespace sluice::client
