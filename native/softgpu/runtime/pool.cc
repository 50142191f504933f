// SPDX-License-Identifier: Apache-2.0
#include "softgpu/runtime/pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>

#include "softgpu/memory/range_map.h"
#include "softgpu/runtime/device.h"

namespace sluice::softgpu {

struct Pools::State {
  struct Pool {
    int place = 0;
    uint64_t used = 0;
    uint64_t most = 0;
    uint64_t limit = 0;
    uint64_t users = 0;
    std::shared_ptr<PoolFile> file;
    std::map<int, uint64_t> set;
  };

  std::mutex mutex;
  std::map<CUmemoryPool, std::unique_ptr<Pool>> pools;
  std::map<int, CUmemoryPool> standard;  // by place
  std::map<int, CUmemoryPool> current;

  CUmemoryPool create(int place, std::shared_ptr<PoolFile> file = nullptr, uint64_t limit = 0) {
    auto pool = std::make_unique<Pool>();
    pool->place = place;
    pool->limit = limit;
    pool->file = std::move(file);
    auto handle = reinterpret_cast<CUmemoryPool>(pool.get());
    pools[handle] = std::move(pool);
    return handle;
  }
  Pool* find(CUmemoryPool handle) {
    auto found = pools.find(handle);
    return found == pools.end() ? nullptr : found->second.get();
  }
};

Pools::Pools() : state_(new State) {}

Pools& Pools::instance() {
  static auto* pools = new Pools;
  return *pools;
}

CUmemoryPool Pools::create(int place, std::shared_ptr<PoolFile> file, uint64_t limit) {
  std::lock_guard lock(state_->mutex);
  return state_->create(place, std::move(file), limit);
}

std::shared_ptr<PoolFile> Pools::file_of(CUmemoryPool handle) {
  std::lock_guard lock(state_->mutex);
  State::Pool* pool = state_->find(handle);
  return pool ? pool->file : nullptr;
}

bool Pools::destroy(CUmemoryPool handle) {
  std::lock_guard lock(state_->mutex);
  for (const auto& [place, pool] : state_->standard) {
    if (pool == handle) return false;
  }
  std::erase_if(state_->current, [&](const auto& entry) { return entry.second == handle; });
  return state_->pools.erase(handle) != 0;
}

CUmemoryPool Pools::standard(int place) {
  std::lock_guard lock(state_->mutex);
  auto found = state_->standard.find(place);
  if (found != state_->standard.end()) return found->second;
  return state_->standard[place] = state_->create(place);
}

CUmemoryPool Pools::current(int place) {
  {
    std::lock_guard lock(state_->mutex);
    auto found = state_->current.find(place);
    if (found != state_->current.end()) return found->second;
  }
  return standard(place);
}

bool Pools::set_current(int place, CUmemoryPool handle) {
  std::lock_guard lock(state_->mutex);
  State::Pool* pool = state_->find(handle);
  if (!pool || pool->place != place || (pool->file && pool->file->foreign())) return false;
  state_->current[place] = handle;
  return true;
}

int Pools::place_of(CUmemoryPool handle) {
  std::lock_guard lock(state_->mutex);
  State::Pool* pool = state_->find(handle);
  return pool ? pool->place : kNowhere;
}

bool Pools::set_user(CUmemoryPool handle, int device, bool on) {
  std::lock_guard lock(state_->mutex);
  State::Pool* pool = state_->find(handle);
  if (!pool) return false;
  const uint64_t bit = 1ull << device;
  pool->users = on ? pool->users | bit : pool->users & ~bit;
  return true;
}

bool Pools::used_by(CUmemoryPool handle, int device) {
  std::lock_guard lock(state_->mutex);
  State::Pool* pool = state_->find(handle);
  return pool && (pool->users >> device & 1) != 0;
}

bool Pools::set_attribute(CUmemoryPool handle, CUmemPool_attribute which, uint64_t value) {
  std::lock_guard lock(state_->mutex);
  State::Pool* pool = state_->find(handle);
  if (!pool || (pool->file && pool->file->foreign())) return false;
  switch (which) {
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      if (value != 0) return false;  // marks can only be reset
      pool->most = pool->used;
      return true;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      return false;
    default:
      pool->set[which] = value;
      return true;
  }
}

bool Pools::attribute(CUmemoryPool handle, CUmemPool_attribute which, uint64_t& value) {
  std::lock_guard lock(state_->mutex);
  State::Pool* pool = state_->find(handle);
  if (!pool || (pool->file && pool->file->foreign())) return false;
  switch (which) {
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      value = pool->used;
      return true;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      value = pool->most;
      return true;
    default: {
      auto held = pool->set.find(which);
      bool reuse = which <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES;
      value = held != pool->set.end() ? held->second : reuse ? 1 : 0;
      return true;
    }
  }
}

bool Pools::took(CUmemoryPool handle, uint64_t bytes) {
  std::lock_guard lock(state_->mutex);
  State::Pool* pool = state_->find(handle);
  if (!pool) return true;
  if (pool->limit && bytes > pool->limit - std::min(pool->used, pool->limit)) return false;
  pool->used += bytes;
  pool->most = std::max(pool->most, pool->used);
  return true;
}

void Pools::gone(const Allocation& allocation) {
  if (!allocation.pooled()) return;
  std::lock_guard lock(state_->mutex);
  State::Pool* pool = state_->find(reinterpret_cast<CUmemoryPool>(allocation.handle));
  if (pool) pool->used -= std::min(pool->used, allocation.size);
}

void release_device_allocation(const Allocation& allocation) {
  uint64_t rounded = (allocation.size + kAlignment - 1) / kAlignment * kAlignment;
  RangeMap::instance().retract(allocation.base, rounded);
  Pools::instance().gone(allocation);
  if (allocation.kind == AllocationKind::kHostPool) {
    munmap(reinterpret_cast<void*>(allocation.base), rounded);
    return;
  }
  if (!PoolFile::release(allocation.base))
    device_at(allocation.device)->memory.release(allocation.base);
}

}  // namespace sluice::softgpu
