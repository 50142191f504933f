// SPDX-License-Identifier: Apache-2.0
#include "softgpu/memory/device_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <iterator>

#include "softgpu/align.h"

namespace sluice::softgpu {
uint64_t DeviceMemory::free() const {
  std::lock_guard lock(mutex_);
  const uint64_t used = shared_ ? shared_->used() : used_;
  return total_ - std::min(total_, used);
}

bool DeviceMemory::take(uint64_t bytes) {
  if (bytes > total_ - used_ || (shared_ && !shared_->take(bytes, total_))) return false;
  used_ += bytes;
  return true;
}

void DeviceMemory::give(uint64_t bytes) {
  used_ -= bytes;
  if (shared_) shared_->give(bytes);
}

bool DeviceMemory::charge(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  return take(bytes);
}

void DeviceMemory::refund(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  give(bytes);
}

uint64_t DeviceMemory::put_aside(uint64_t staying) {
  std::lock_guard lock(mutex_);
  if (!shared_) return 0;
  const uint64_t own = shared_->own(), bytes = own - std::min(own, staying);
  shared_->give(bytes);
  return bytes;
}

bool DeviceMemory::bring_back(uint64_t bytes, uint64_t besides) {
  std::lock_guard lock(mutex_);
  return !shared_ || shared_->take(bytes, total_, besides);
}

void DeviceMemory::move(SharedUse* shared) {
  std::lock_guard lock(mutex_);
  shared_ = shared;
}

uintptr_t DeviceMemory::map(uint64_t bytes) {
  if (!take(bytes)) return 0;
  // Over-map to align to the slab, so that neighbouring slabs do not share one.
  // Where programs have nothing: a client maps its side of a module's managed variables at the
  // addresses that they have here (native/client/managed). A wish, no more.
  static std::atomic<uintptr_t> free_place{0x640000000000};
  void* wish = reinterpret_cast<void*>(free_place.fetch_add(align_up(bytes, kSlab) + kSlab));
  void* memory = mmap(wish, bytes + kSlab, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return give(bytes), 0;
  uintptr_t start = reinterpret_cast<uintptr_t>(memory);
  uintptr_t aligned = align_up(start, kSlab);
  if (aligned > start) munmap(memory, aligned - start);
  uintptr_t tail = start + kSlab - aligned;
  if (tail != 0) munmap(reinterpret_cast<void*>(aligned + bytes), tail);
  return aligned;
}

void DeviceMemory::unmap(uintptr_t address, uint64_t bytes) {
  munmap(reinterpret_cast<void*>(address), bytes);
  give(bytes);
}

uintptr_t DeviceMemory::allocate(uint64_t size) {
  if (size == 0 || size > total_) return 0;
  size = align_up(size, kAlignment);
  std::lock_guard lock(mutex_);
  if (size < kSlab / 2) {
    for (auto& [base, slab] : slabs_) {
      if (slab.size != kSlab) continue;
      for (auto gap = slab.gaps.begin(); gap != slab.gaps.end(); ++gap) {
        if (gap->second < size) continue;
        uintptr_t address = gap->first;
        uint64_t rest = gap->second - size;
        slab.gaps.erase(gap);
        if (rest != 0) slab.gaps[address + size] = rest;
        allocations_[address] = size;
        return address;
      }
    }
  }
  uint64_t bytes = align_up(size, kSlab);
  uintptr_t base = map(bytes);
  if (base == 0) return 0;
  Slab& slab = slabs_[base];
  slab.size = bytes;
  if (bytes == kSlab && size < kSlab / 2) slab.gaps[base + size] = bytes - size;
  allocations_[base] = size;
  return base;
}

void DeviceMemory::release(uintptr_t address) {
  std::lock_guard lock(mutex_);
  auto found = allocations_.find(address);
  if (found == allocations_.end()) return;
  uint64_t size = found->second;
  allocations_.erase(found);
  auto slab = std::prev(slabs_.upper_bound(address));
  bool shared = slab->second.size == kSlab && size < kSlab / 2;
  if (!shared) {
    unmap(slab->first, slab->second.size);
    slabs_.erase(slab);
    return;
  }
  auto& gaps = slab->second.gaps;
  auto gap = gaps.emplace(address, size).first;
  auto next = std::next(gap);
  if (next != gaps.end() && gap->first + gap->second == next->first) {
    gap->second += next->second;
    gaps.erase(next);
  }
  if (gap != gaps.begin()) {
    auto previous = std::prev(gap);
    if (previous->first + previous->second == gap->first) {
      previous->second += gap->second;
      gaps.erase(gap);
      gap = previous;
    }
  }
  if (gap->second == kSlab) {
    unmap(slab->first, kSlab);
    slabs_.erase(slab);
  }
}

}  // namespace sluice::softgpu
