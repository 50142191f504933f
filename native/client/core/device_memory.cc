// SPDX-License-Identifier: Apache-2.0
#include "client/core/device_memory.h"

#include <algorithm>

#include "wire/frame.h"

namespace sluice::client {

void DeviceMemory::open(uint64_t window, uint64_t window_bytes, uint64_t limit, Sink sink,
                        std::atomic<uint64_t>* used) {
  window_ = window;
  window_bytes_ = window_bytes;
  limit_ = limit;
  sink_ = std::move(sink);
  if (used) used_ = used;
  credit_ = shared() ? 0 : limit;
  // The first slab stays unused: address arithmetic that runs below an allocation should fault, not
  // hit a neighbour window.
  ranges_.add(window + kSlab, window_bytes - 2 * kSlab);
}

void DeviceMemory::drop_spare() {
  if (!spare_) return;
  const uint64_t slab = spare_;
  spare_ = 0;
  slabs_.erase(slab);
  give_slabs(slab);
}

bool DeviceMemory::try_claim(uint64_t bytes) {
  uint64_t used = used_->load();
  do {
    if (used > credit_ || bytes > credit_ - used) return false;
  } while (!used_->compare_exchange_weak(used, used + bytes));
  return true;
}

DeviceMemory::Result DeviceMemory::claim(uint64_t bytes) {
  if (try_claim(bytes)) return Result::kDone;
  drop_spare();
  if (shared()) {
    const uint64_t lacking = bytes - (credit_ - used_->load());
    uint64_t left;
    if (const Result result = sink_.credit(lacking, &left); result != Result::kDone) return result;
    credit_ += lacking;
  }
  return try_claim(bytes) ? Result::kDone : Result::kOutOfMemory;
}

// The worker takes a job's credit back with the memory.
void DeviceMemory::give_back(uint64_t bytes) {
  used_->fetch_sub(bytes);
  if (shared()) credit_ -= bytes;
}

// Whoever frees memory may tell another process of the job, which then finds it free.
void DeviceMemory::settle() {
  uint64_t left;
  if (shared()) sink_.credit(0, &left);
}

void DeviceMemory::note_libraries(uint64_t order, uint64_t bytes) {
  if (order <= libraries_order_) return;
  libraries_order_ = order;
  used_->fetch_add(bytes - libraries_);
  libraries_ = bytes;
}

DeviceMemory::Result DeviceMemory::take_slabs(uint64_t bytes, uint64_t* address) {
  if (const Result result = claim(bytes); result != Result::kDone) return result;
  const uint64_t start = ranges_.allocate(bytes);
  if (start == RangeAllocator::kNone) {
    used_->fetch_sub(bytes);
    return Result::kOutOfMemory;
  }
  if (!sink_.map(start, bytes)) {
    ranges_.release(start);
    used_->fetch_sub(bytes);
    return Result::kSessionLost;
  }
  backed_[start] = {bytes, false};
  *address = start;
  return Result::kDone;
}

DeviceMemory::Result DeviceMemory::give_slabs(uint64_t address) {
  const uint64_t bytes = ranges_.release(address);
  backed_.erase(address);
  const bool told = sink_.unmap(address, bytes);
  give_back(bytes);
  if (!told) return Result::kSessionLost;
  settle();
  return Result::kDone;
}

DeviceMemory::Result DeviceMemory::allocate(uint64_t bytes, uint64_t* address) {
  std::lock_guard lock(mutex_);
  if (bytes > limit_) return Result::kOutOfMemory;
  if (bytes > kSmall) {
    bytes = wire::round_up(bytes, kSlab);
    const Result result = take_slabs(bytes, address);
    if (result == Result::kDone) large_.emplace(*address, bytes);
    return result;
  }
  bytes = wire::round_up(bytes ? bytes : 1, kAlignment);
  for (auto& [start, slab] : slabs_) {
    const uint64_t at = slab.allocate(bytes);
    if (at == RangeAllocator::kNone) continue;
    if (start == spare_) spare_ = 0;
    *address = at;
    return Result::kDone;
  }
  uint64_t start;
  if (const Result result = take_slabs(kSlab, &start); result != Result::kDone) return result;
  RangeAllocator& slab = slabs_[start];
  slab.add(start, kSlab);
  *address = slab.allocate(bytes);
  return Result::kDone;
}

DeviceMemory::Result DeviceMemory::free(uint64_t address) {
  std::lock_guard lock(mutex_);
  if (const auto it = slabs_.find(address / kSlab * kSlab); it != slabs_.end()) {
    if (!it->second.release(address)) return Result::kUnknown;
    if (it->second.used_count() == 0) {
      drop_spare();
      spare_ = it->first;
      if (shared()) drop_spare();
    }
    return Result::kDone;
  }
  if (!large_.erase(address)) return Result::kUnknown;
  return give_slabs(address);
}

bool DeviceMemory::find(uint64_t address, uint64_t* start, uint64_t* bytes) {
  std::lock_guard lock(mutex_);
  if (const auto it = slabs_.find(address / kSlab * kSlab); it != slabs_.end())
    return it->second.find(address, start, bytes);
  auto it = large_.upper_bound(address);
  if (it == large_.begin()) return false;
  --it;
  *start = it->first;
  *bytes = it->second;
  return address - it->first < it->second;
}

bool DeviceMemory::covers(uint64_t address, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  auto it = backed_.upper_bound(address);
  if (it == backed_.begin()) return false;
  --it;
  if (address - it->first >= it->second.bytes) return false;
  for (uint64_t at = address;;) {
    const uint64_t here = it->second.bytes - (at - it->first);
    if (bytes <= here) return true;
    bytes -= here;
    at += here;
    if (!it->second.joins || ++it == backed_.end() || it->first != at || !it->second.joins)
      return false;
  }
}

void DeviceMemory::info(uint64_t* free_bytes, uint64_t* total_bytes) {
  std::lock_guard lock(mutex_);
  *total_bytes = limit_;
  const uint64_t used = used_->load() - (spare_ ? kSlab : 0);
  *free_bytes = used < credit_ ? credit_ - used : 0;
  uint64_t left;
  if (shared() && sink_.credit(0, &left) == Result::kDone)
    *free_bytes = std::min(limit_, *free_bytes + left);
}

uint64_t DeviceMemory::used() {
  std::lock_guard lock(mutex_);
  return used_->load() - (spare_ ? kSlab : 0);
}

void DeviceMemory::clear() {
  std::lock_guard lock(mutex_);
  for (auto& [slab, unused] : slabs_) give_slabs(slab);
  for (auto& [start, unused] : large_) give_slabs(start);
  slabs_.clear();
  large_.clear();
  spare_ = 0;
}

DeviceMemory::Result DeviceMemory::take(uint64_t bytes, uint64_t* address) {
  std::lock_guard lock(mutex_);
  return bytes > limit_ ? Result::kOutOfMemory : take_slabs(wire::round_up(bytes, kSlab), address);
}

DeviceMemory::Result DeviceMemory::give(uint64_t address) {
  std::lock_guard lock(mutex_);
  return give_slabs(address);
}

uint64_t DeviceMemory::reserve(uint64_t bytes, uint64_t alignment, uint64_t requested) {
  std::lock_guard lock(mutex_);
  if (bytes > window_bytes_) return 0;
  bytes = wire::round_up(bytes, kSlab);
  alignment = std::max(alignment, kSlab);
  if (requested && requested % alignment == 0 && ranges_.allocate_at(requested, bytes))
    return requested;
  const uint64_t at = ranges_.allocate(bytes, alignment);
  return at == RangeAllocator::kNone ? 0 : at;
}

void DeviceMemory::release(uint64_t address) {
  std::lock_guard lock(mutex_);
  ranges_.release(address);
}

bool DeviceMemory::charge(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  return claim(bytes) == Result::kDone;
}

void DeviceMemory::refund(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  give_back(bytes);
  settle();
}

void DeviceMemory::note_backed(uint64_t address, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  backed_[address] = {bytes, true};
}

void DeviceMemory::note_gone(uint64_t address) {
  std::lock_guard lock(mutex_);
  backed_.erase(address);
}

}  // namespace sluice::client
