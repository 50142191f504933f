// SPDX-License-Identifier: Apache-2.0
#include "client/core/imported_pool.h"

#include <algorithm>
#include <cstring>

#include "client/core/device_memory.h"
#include "client/core/memory_pools.h"
#include "client/core/session.h"
#include "client/objects/device.h"

namespace sluice::client {

namespace {

bool makes_sense(const PointerTicket& t, const Device& d) {
  return t.mapped_bytes != 0 && t.mapped_bytes % DeviceMemory::kSlab == 0 &&
         t.mapped_bytes <= d.record.window_bytes && t.bytes != 0 &&
         t.offset % DeviceMemory::kAlignment == 0 && t.offset < t.mapped_bytes &&
         t.bytes <= t.mapped_bytes - t.offset;
}

}  // namespace

// The very vGPU where the job shares it, else one on the same GPU.
Device* ImportedPools::device_of(const PoolBadge& badge) {
  for (auto& d : session_.devices())
    if (std::memcmp(d->record.uuid, badge.uuid, sizeof badge.uuid) == 0) return d.get();
  for (auto& d : session_.devices())
    if (std::memcmp(d->record.physical_uuid, badge.physical_uuid, sizeof badge.physical_uuid) == 0)
      return d.get();
  return nullptr;
}

CUresult ImportedPools::open(int descriptor, ImportedPool** pool) {
  auto roster = RosterView::open(descriptor);
  if (!roster) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(mutex_);
  for (auto& known : pools_)
    if (known->roster->same_file(*roster)) {
      ++known->imports;
      *pool = known.get();
      return CUDA_SUCCESS;
    }
  Device* d = device_of(roster->badge());
  if (!d) return CUDA_ERROR_INVALID_DEVICE;
  pools_.push_back(std::make_unique<ImportedPool>());
  pools_.back()->roster = std::move(roster);
  pools_.back()->device = d;
  *pool = pools_.back().get();
  return CUDA_SUCCESS;
}

bool ImportedPools::close(ImportedPool* pool) {
  std::lock_guard lock(mutex_);
  if (--pool->imports) return false;
  pool->handle = 0;  // whoever imports it while slabs of it are still open gets another
  settle(*pool);
  bury();
  return true;
}

void ImportedPools::bury() {
  std::erase_if(pools_,
                [](const auto& p) { return !p->imports && !p->pointers && p->slabs.empty(); });
}

CUresult ImportedPools::want_slab(ImportedPool& pool, const PointerTicket& t,
                                  ImportedPool::Slab** slab) {
  if (const auto it = pool.slabs.find(t.key); it != pool.slabs.end()) {
    *slab = &it->second;
    // The worker has checked the size that the ticket named when it was opened first.
    return it->second.bytes == t.mapped_bytes ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }
  Device& d = *pool.device;
  uint64_t address = 0;
  const auto hold = [&] {
    return session_.shared_memory.hold(d, t.key, t.mapped_bytes, wire::kOwnToo, &address);
  };
  CUresult e = hold();
  // What others have freed may still be open.
  if (e == CUDA_ERROR_OUT_OF_MEMORY && d.pools.wait_idle()) {
    for (auto& other : pools_) settle(*other);
    e = hold();
  }
  if (e != CUDA_SUCCESS) return e;
  *slab = &pool.slabs.emplace(t.key, ImportedPool::Slab{address, t.mapped_bytes}).first->second;
  return CUDA_SUCCESS;
}

CUresult ImportedPools::import(ImportedPool* pool, const PointerTicket& t, uint64_t* address) {
  std::lock_guard lock(mutex_);
  if (!makes_sense(t, *pool->device) || !pool->roster->lists(t)) return CUDA_ERROR_INVALID_VALUE;
  ImportedPool::Slab* slab;
  if (const CUresult e = want_slab(*pool, t, &slab); e != CUDA_SUCCESS) return e;
  const uint64_t at = slab->address + t.offset;
  const auto next = pointers_.lower_bound(at);
  if (next != pointers_.end() && next->first == at) {
    if (next->second.pool != pool || next->second.bytes != t.bytes) return CUDA_ERROR_INVALID_VALUE;
    ++next->second.times;
    *address = at;
    return CUDA_SUCCESS;
  }
  // Whoever exported it has freed what was there before, but this process has not.
  if ((next != pointers_.end() && next->first - at < t.bytes) ||
      (next != pointers_.begin() && at - std::prev(next)->first < std::prev(next)->second.bytes))
    return CUDA_ERROR_INVALID_VALUE;
  pointers_.emplace(at, Pointer{pool, t.key, t.bytes, 1});
  ++slab->uses;
  ++pool->pointers;
  *address = at;
  return CUDA_SUCCESS;
}

bool ImportedPools::free(uint64_t address) {
  std::lock_guard lock(mutex_);
  const auto it = pointers_.find(address);
  if (it == pointers_.end()) return false;
  Pointer& pointer = it->second;
  ImportedPool& pool = *pointer.pool;
  ImportedPool::Slab& slab = pool.slabs.at(pointer.key);
  slab.freed = StreamPoint{session_.work().issued(*pool.device), true};
  if (--pointer.times) return true;
  --slab.uses;
  --pool.pointers;
  pointers_.erase(it);
  settle(pool);
  bury();
  return true;
}

void ImportedPools::settle(ImportedPool& pool) {
  MemoryPools& order = pool.device->pools;
  for (auto it = pool.slabs.begin(); it != pool.slabs.end();) {
    ImportedPool::Slab& slab = it->second;
    if (slab.freed && order.passed(nullptr, *slab.freed)) slab.freed.reset();
    if (slab.uses || slab.freed) {
      if (!slab.uses) holds_ = true;
      ++it;
      continue;
    }
    session_.shared_memory.let_go(it->first);
    it = pool.slabs.erase(it);
  }
}

void ImportedPools::settle_all() {
  std::lock_guard lock(mutex_);
  holds_ = false;
  for (auto& pool : pools_) settle(*pool);
  bury();
}

bool ImportedPools::find(uint64_t address, uint64_t* start, uint64_t* bytes, ImportedPool** pool) {
  std::lock_guard lock(mutex_);
  auto it = pointers_.upper_bound(address);
  if (it == pointers_.begin()) return false;
  --it;
  if (address - it->first >= it->second.bytes) return false;
  *start = it->first;
  *bytes = it->second.bytes;
  if (pool) *pool = it->second.pool;
  return true;
}

void ImportedPools::clear(Device& device) {
  std::lock_guard lock(mutex_);
  std::erase_if(pointers_, [&](const auto& p) { return p.second.pool->device == &device; });
  for (auto& pool : pools_) {
    if (pool->device != &device) continue;
    for (const auto& [key, slab] : pool->slabs) session_.shared_memory.let_go(key);
    pool->slabs.clear();
    pool->pointers = 0;
  }
  bury();
}

}  // namespace sluice::client
