// SPDX-License-Identifier: Apache-2.0
// The memory of one software GPU: how much there is, and the allocations of cuMemAlloc inside it.
// Owned by the device. Small allocations share 2 MiB slabs, as on the real driver, and a slab is
// given back when its last allocation goes; addresses are host addresses of this process.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "softgpu/memory/shared_use.h"

namespace sluice::softgpu {

constexpr uint64_t kSlab = 2ull << 20;  // granularity of physical memory
constexpr uint64_t kAlignment = 512;    // of cuMemAlloc

class DeviceMemory {
 public:
  // `shared`: what other processes have of it counts, too.
  explicit DeviceMemory(uint64_t total, SharedUse* shared = nullptr)
      : total_(total), shared_(shared) {}

  uint64_t total() const { return total_; }
  uint64_t free() const;
  // Physical memory charged to whoever asks; false if there is not that much left.
  bool charge(uint64_t bytes);
  void refund(uint64_t bytes);

  // Of a process that is checkpointed (runtime/checkpoint.h), where processes share the device: all
  // but so much is nobody's from now on; returns how much that is. And all of it again, where there
  // is room for it, and for so much `besides`.
  uint64_t put_aside(uint64_t staying);
  bool bring_back(uint64_t bytes, uint64_t besides);
  // Of one that has nothing there: it is another device's from now on.
  void move(SharedUse* shared);

  // Zero if there is no room. The result is kAlignment-aligned and backed.
  uintptr_t allocate(uint64_t size);
  void release(uintptr_t address);

 private:
  struct Slab {
    uint64_t size;
    std::map<uintptr_t, uint64_t> gaps;  // free pieces by address
  };
  // The caller holds the mutex.
  bool take(uint64_t bytes);
  void give(uint64_t bytes);
  uintptr_t map(uint64_t bytes);
  void unmap(uintptr_t address, uint64_t bytes);

  const uint64_t total_;
  SharedUse* shared_;  // with the mutex
  mutable std::mutex mutex_;
  uint64_t used_ = 0;
  std::map<uintptr_t, Slab> slabs_;
  std::map<uintptr_t, uint64_t> allocations_;  // size in slabs' units, by address
};

}  // namespace sluice::softgpu
