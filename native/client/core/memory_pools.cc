// SPDX-License-Identifier: Apache-2.0
#include "client/core/memory_pools.h"

#include <algorithm>
#include <cstring>

#include "client/core/memory_pool.h"
#include "wire/frame.h"

namespace sluice::client {

MemoryPools::MemoryPools() { standard_ = create(0); }
MemoryPools::~MemoryPools() = default;

void MemoryPools::open(PoolMemory* memory, std::unique_ptr<StreamOrder> order) {
  memory_ = memory;
  order_ = std::move(order);
}

MemoryPool* MemoryPools::create(uint64_t most, std::unique_ptr<PoolRoster> roster) {
  std::lock_guard lock(mutex_);
  pools_.push_back(std::make_unique<MemoryPool>(*this, most, std::move(roster)));
  return pools_.back().get();
}

bool MemoryPools::destroy(MemoryPool* pool) {
  if (pool == standard_) return false;
  std::lock_guard lock(mutex_);
  pool->destroyed_ = true;
  pool->threshold_ = 0;
  bury();
  return true;
}

// Destroyed pools end when nothing of theirs is in use, by the application or by the device.
void MemoryPools::bury() {
  for (auto it = pools_.begin(); it != pools_.end();) {
    MemoryPool& pool = **it;
    if (!pool.destroyed_ || !pool.used_.empty()) {
      ++it;
      continue;
    }
    pool.settle(nullptr, true);
    pool.release(0);
    if (pool.chunks_.empty()) {
      it = pools_.erase(it);
    } else {
      holds_ = true;
      ++it;
    }
  }
}

bool MemoryPools::waits_for(Stream* later, Stream* earlier, StreamPoint point) const {
  if (point.whole_device) return false;
  const auto of = waits_.find(later);
  if (of == waits_.end()) return false;
  const auto upto = of->second.find(earlier);
  return upto != of->second.end() && upto->second >= point.work;
}

DeviceMemory::Result MemoryPools::try_allocate(MemoryPool* pool, Stream* stream, uint64_t bytes,
                                               uint64_t* address) {
  using Result = DeviceMemory::Result;
  const auto take = [&] {
    return pool->take_block(stream, bytes, address) || pool->take_block(nullptr, bytes, address);
  };
  if (take()) return Result::kDone;
  pool->settle(stream, pool->opportunistic_);
  if (take()) return Result::kDone;
  // Others have memory that would do: next time it is known whether they are done with it.
  if (pool->opportunistic_)
    for (const auto& [owner, sizes] : pool->by_size_)
      if (owner && owner != stream && sizes.rbegin()->first >= bytes &&
          !pool->free_.at(sizes.rbegin()->second).point.whole_device)
        order_->probe(owner);
  Result result;
  if (pool->grow(bytes, &result) && take()) return Result::kDone;
  if (result == Result::kSessionLost) return result;
  // Free chunks of other pools, and of this one where none is large enough.
  for (auto& other : pools_) {
    other->settle(nullptr, true);
    other->release(0);
  }
  if (pool->grow(bytes, &result) && take()) return Result::kDone;
  if (pool->by_waits_ && pool->borrow(stream, bytes) && take()) return Result::kDone;
  return result;
}

DeviceMemory::Result MemoryPools::allocate(MemoryPool* pool, Stream* stream, uint64_t bytes,
                                           uint64_t* address) {
  using Result = DeviceMemory::Result;
  if (bytes > uint64_t{1} << 62) return Result::kOutOfMemory;
  bytes = wire::round_up(bytes, DeviceMemory::kAlignment);
  {
    std::lock_guard lock(mutex_);
    const Result result = try_allocate(pool, stream, bytes, address);
    if (result != Result::kOutOfMemory) return result;
  }
  // Freed memory that the device still uses may be what is missing.
  if (!make_room(true)) return Result::kOutOfMemory;
  std::lock_guard lock(mutex_);
  return try_allocate(pool, stream, bytes, address);
}

MemoryPool* MemoryPools::owner_of(uint64_t address) {
  for (auto& pool : pools_)
    if (pool->used_.contains(address)) return pool.get();
  return nullptr;
}

bool MemoryPools::free(uint64_t address, Stream* stream) {
  std::lock_guard lock(mutex_);
  MemoryPool* pool = owner_of(address);
  if (!pool) return false;
  const StreamPoint point = order_->point(stream);
  active_ = true;
  if (order_->passed(stream, point))
    pool->take_back(address, nullptr, {});
  else
    pool->take_back(address, stream, point);
  return true;
}

bool MemoryPools::free_now(uint64_t address) {
  std::lock_guard lock(mutex_);
  MemoryPool* pool = owner_of(address);
  if (!pool) return false;
  pool->take_back(address, nullptr, {});
  return true;
}

bool MemoryPools::find(uint64_t address, uint64_t* start, uint64_t* bytes, MemoryPool** of) {
  std::lock_guard lock(mutex_);
  for (auto& pool : pools_) {
    auto it = pool->used_.upper_bound(address);
    if (it == pool->used_.begin()) continue;
    --it;
    if (address - it->first >= it->second) continue;
    *start = it->first;
    *bytes = it->second;
    if (of) *of = pool.get();
    return true;
  }
  return false;
}

void MemoryPools::note_wait(Stream* later, Stream* earlier, uint64_t upto) {
  // What is freed from now on lies behind every wait of before.
  if (later == earlier || !active_.load(std::memory_order_relaxed)) return;
  std::lock_guard lock(mutex_);
  uint64_t& known = waits_[later][earlier];
  known = std::max(known, upto);
}

StreamPoint MemoryPools::point(Stream* stream) {
  std::lock_guard lock(mutex_);
  return order_->point(stream);
}

bool MemoryPools::passed(Stream* stream, StreamPoint point) {
  std::lock_guard lock(mutex_);
  return order_->passed(stream, point);
}

bool MemoryPools::waited(Stream* later, Stream* earlier, StreamPoint point) {
  std::lock_guard lock(mutex_);
  return waits_for(later, earlier, point);
}

bool MemoryPools::follow(Stream* later, Stream* earlier) {
  std::lock_guard lock(mutex_);
  return order_->follow(later, earlier);
}

void MemoryPools::forget_stream(Stream* stream) {
  if (!active_.load(std::memory_order_relaxed)) return;
  std::lock_guard lock(mutex_);
  waits_.erase(stream);
  for (auto& [later, of] : waits_) of.erase(stream);
  StreamPoint now = order_->point(stream);
  now.whole_device = true;
  for (auto& pool : pools_) pool->give_up_stream(stream, now);
}

void MemoryPools::trim(MemoryPool* pool, uint64_t keep) {
  std::lock_guard lock(mutex_);
  pool->settle(nullptr, true);
  pool->release(keep, keep);
}

void MemoryPools::release_excess() {
  std::lock_guard lock(mutex_);
  holds_ = false;
  for (auto& pool : pools_) {
    if (pool->reserved_ <= pool->threshold_ || pool->free_.empty()) continue;
    pool->settle(nullptr, true);
    pool->release(pool->threshold_);
    // What is free and not known to be unused yet may go next time.
    if (pool->reserved_ > pool->threshold_ && !pool->free_.empty()) holds_ = true;
  }
  bury();
}

bool MemoryPools::make_room(bool wait) {
  bool waiting = false;  // there is free memory that the device may still use
  const auto give_back = [&] {
    std::lock_guard lock(mutex_);
    uint64_t before = 0, after = 0;
    for (auto& pool : pools_) {
      before += pool->reserved_;
      pool->settle(nullptr, true);
      pool->release(0);
      after += pool->reserved_;
      for (const auto& [owner, sizes] : pool->by_size_) waiting |= owner != nullptr;
    }
    bury();
    return after < before;
  };
  const bool came_back = give_back();
  if (!wait || !waiting || !order_->wait_idle()) return came_back;
  give_back();
  return true;
}

void MemoryPools::clear() {
  std::lock_guard lock(mutex_);
  for (auto& pool : pools_) {
    for (const auto& [chunk, bytes] : pool->chunks_) memory_->give(chunk);
    pool->chunks_.clear();
    pool->used_.clear();
    pool->free_.clear();
    pool->by_size_.clear();
    pool->reserved_ = pool->in_use_ = 0;
    if (!pool->roster_) continue;
    pool->roster_->strike_all();
    pool->roster_->keys.clear();
  }
  waits_.clear();
  bury();
}

CUresult MemoryPools::get(MemoryPool* pool, CUmemPool_attribute attribute, void* value) {
  std::lock_guard lock(mutex_);
  const auto flag = [&](bool on) {
    const int number = on;
    std::memcpy(value, &number, sizeof number);
    return CUDA_SUCCESS;
  };
  const auto bytes = [&](cuuint64_t number) {
    std::memcpy(value, &number, sizeof number);
    return CUDA_SUCCESS;
  };
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
      return flag(pool->by_events_);
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
      return flag(pool->opportunistic_);
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      return flag(pool->by_waits_);
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      return bytes(pool->threshold_);
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
      return bytes(pool->reserved_);
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      return bytes(pool->reserved_high_);
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      return bytes(pool->in_use_);
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      return bytes(pool->in_use_high_);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult MemoryPools::set(MemoryPool* pool, CUmemPool_attribute attribute, const void* value) {
  std::lock_guard lock(mutex_);
  int flag = 0;
  cuuint64_t bytes = 0;
  const bool narrow = attribute <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES;
  if (narrow)
    std::memcpy(&flag, value, sizeof flag);
  else
    std::memcpy(&bytes, value, sizeof bytes);
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
      pool->by_events_ = flag != 0;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
      pool->opportunistic_ = flag != 0;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      pool->by_waits_ = flag != 0;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      pool->threshold_ = bytes;
      if (pool->reserved_ > bytes) holds_ = true;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:  // high-water marks can be reset, no more
      if (bytes != 0) return CUDA_ERROR_INVALID_VALUE;
      pool->reserved_high_ = pool->reserved_;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      if (bytes != 0) return CUDA_ERROR_INVALID_VALUE;
      pool->in_use_high_ = pool->in_use_;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace sluice::client
