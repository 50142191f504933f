// SPDX-License-Identifier: Apache-2.0
#include "client/core/device_memory.h"

#include <vector>

namespace sluice::client {

namespace {
constexpr uint64_t round_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }
}  // namespace

void DeviceMemory::open(uint64_t window, uint64_t window_bytes, uint64_t limit, Sink sink) {
  window_ = window;
  window_bytes_ = window_bytes;
  limit_ = limit;
  sink_ = std::move(sink);
  // The first slab stays unused: address arithmetic that runs below an allocation should fault, not
  // hit a neighbour window.
  ranges_.add(window + kSlab, window_bytes - 2 * kSlab);
}

void DeviceMemory::drop_spare() {
  if (!spare_) return;
  sink_.unmap(spare_, kSlab);
  slabs_.erase(spare_);
  ranges_.release(spare_);
  charged_ -= kSlab;
  spare_ = 0;
}

bool DeviceMemory::take_slab(uint64_t bytes, uint64_t* address, Result* result) {
  if (bytes > limit_ - charged_) drop_spare();
  if (bytes > limit_ - charged_) {
    *result = Result::kOutOfMemory;
    return false;
  }
  const uint64_t start = ranges_.allocate(bytes);
  if (start == RangeAllocator::kNone) {
    *result = Result::kOutOfMemory;
    return false;
  }
  if (!sink_.map(start, bytes)) {
    ranges_.release(start);
    *result = Result::kSessionLost;
    return false;
  }
  charged_ += bytes;
  *address = start;
  return true;
}

DeviceMemory::Result DeviceMemory::allocate(uint64_t bytes, uint64_t* address) {
  std::lock_guard lock(mutex_);
  Result result = Result::kDone;
  if (bytes > limit_) return Result::kOutOfMemory;
  if (bytes > kSmall) {
    take_slab(round_up(bytes, kSlab), address, &result);
    return result;
  }
  bytes = round_up(bytes ? bytes : 1, kAlignment);
  for (auto& [start, slab] : slabs_) {
    const uint64_t at = slab.allocate(bytes);
    if (at == RangeAllocator::kNone) continue;
    if (start == spare_) spare_ = 0;
    *address = at;
    return result;
  }
  uint64_t start;
  if (!take_slab(kSlab, &start, &result)) return result;
  RangeAllocator& slab = slabs_[start];
  slab.add(start, kSlab);
  *address = slab.allocate(bytes);
  return result;
}

DeviceMemory::Result DeviceMemory::free(uint64_t address) {
  std::lock_guard lock(mutex_);
  if (const auto it = slabs_.find(address / kSlab * kSlab); it != slabs_.end()) {
    if (!it->second.release(address)) return Result::kUnknown;
    if (it->second.used_count() == 0) {
      drop_spare();
      spare_ = it->first;
    }
    return Result::kDone;
  }
  const uint64_t bytes = ranges_.release(address);
  if (!bytes) return Result::kUnknown;
  charged_ -= bytes;
  return sink_.unmap(address, bytes) ? Result::kDone : Result::kSessionLost;
}

bool DeviceMemory::find(uint64_t address, uint64_t* start, uint64_t* bytes) {
  std::lock_guard lock(mutex_);
  if (const auto it = slabs_.find(address / kSlab * kSlab); it != slabs_.end())
    return it->second.find(address, start, bytes);
  return ranges_.find(address, start, bytes);
}

bool DeviceMemory::covers(uint64_t address, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  uint64_t start, size;
  return ranges_.find(address, &start, &size) && bytes <= size - (address - start);
}

void DeviceMemory::info(uint64_t* free_bytes, uint64_t* total_bytes) {
  std::lock_guard lock(mutex_);
  *total_bytes = limit_;
  *free_bytes = limit_ - charged_ + (spare_ ? kSlab : 0);
}

void DeviceMemory::clear() {
  std::lock_guard lock(mutex_);
  std::vector<uint64_t> starts;
  uint64_t start, bytes;
  for (auto& [slab, unused] : slabs_) starts.push_back(slab);
  for (uint64_t at : starts) {
    sink_.unmap(at, kSlab);
    ranges_.release(at);
  }
  slabs_.clear();
  spare_ = 0;
  while (ranges_.used_count() && ranges_.first(&start, &bytes)) {
    sink_.unmap(start, bytes);
    ranges_.release(start);
  }
  charged_ = 0;
}

}  // namespace sluice::client
