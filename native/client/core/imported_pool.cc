// SPDX-License-Identifier: Apache-2.0
#include "client/core/imported_pool.h"

#include <algorithm>
#include <cstring>

#include "client/core/session.h"

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
      ++known->handles;
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

void ImportedPools::close(ImportedPool* pool) {
  std::lock_guard lock(mutex_);
  if (--pool->handles) return;
  pool->threshold = 0;
  settle(*pool, 0);
  bury();
}

void ImportedPools::bury() {
  std::erase_if(pools_,
                [](const auto& p) { return !p->handles && !p->pointers && p->slabs.empty(); });
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
    for (auto& other : pools_) settle(*other, 0);
    e = hold();
  }
  if (e != CUDA_SUCCESS) return e;
  *slab = &pool.slabs.emplace(t.key, ImportedPool::Slab{address, t.mapped_bytes}).first->second;
  pool.reserved += t.mapped_bytes;
  pool.reserved_high = std::max(pool.reserved_high, pool.reserved);
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
  pool->in_use += t.bytes;
  pool->in_use_high = std::max(pool->in_use_high, pool->in_use);
  *address = at;
  return CUDA_SUCCESS;
}

bool ImportedPools::free(uint64_t address, Stream* stream) {
  std::lock_guard lock(mutex_);
  const auto it = pointers_.find(address);
  if (it == pointers_.end()) return false;
  Pointer& pointer = it->second;
  ImportedPool& pool = *pointer.pool;
  ImportedPool::Slab& slab = pool.slabs.at(pointer.key);
  Device& d = *pool.device;
  const StreamPoint now = stream ? d.pools.point(stream) : StreamPoint{session_.issued(d), true};
  StreamPoint& point = slab.freed[stream];
  point = {std::max(point.work, now.work), point.whole_device || now.whole_device};
  if (--pointer.times) return true;
  --slab.uses;
  --pool.pointers;
  pool.in_use -= pointer.bytes;
  pointers_.erase(it);
  settle(pool, pool.threshold);
  bury();
  return true;
}

void ImportedPools::settle(ImportedPool& pool, uint64_t keep) {
  MemoryPools& order = pool.device->pools;
  for (auto it = pool.slabs.begin(); it != pool.slabs.end() && pool.reserved > keep;) {
    ImportedPool::Slab& slab = it->second;
    std::erase_if(slab.freed, [&](const auto& f) { return order.passed(f.first, f.second); });
    if (slab.uses || !slab.freed.empty()) {
      if (!slab.uses) holds_ = true;
      ++it;
      continue;
    }
    pool.reserved -= slab.bytes;
    session_.shared_memory.let_go(it->first);
    it = pool.slabs.erase(it);
  }
}

void ImportedPools::settle_all() {
  std::lock_guard lock(mutex_);
  holds_ = false;
  for (auto& pool : pools_) settle(*pool, pool->threshold);
  bury();
}

void ImportedPools::trim(ImportedPool* pool, uint64_t keep) {
  std::lock_guard lock(mutex_);
  settle(*pool, keep);
}

void ImportedPools::forget_stream(Stream* stream) {
  std::lock_guard lock(mutex_);
  for (auto& pool : pools_)
    for (auto& [key, slab] : pool->slabs) {
      const auto it = slab.freed.find(stream);
      if (it == slab.freed.end()) continue;
      // Nobody asks the stream any more: only the device's coming to rest tells.
      StreamPoint& rest = slab.freed[nullptr];
      rest = {std::max(rest.work, it->second.work), true};
      slab.freed.erase(stream);
    }
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
    pool->pointers = pool->reserved = pool->in_use = 0;
  }
  bury();
}

CUresult ImportedPools::get(ImportedPool* pool, CUmemPool_attribute attribute, void* value) {
  std::lock_guard lock(mutex_);
  const auto bytes = [&](cuuint64_t number) {
    std::memcpy(value, &number, sizeof number);
    return CUDA_SUCCESS;
  };
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: {
      const int on = pool->reuse[attribute - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES];
      std::memcpy(value, &on, sizeof on);
      return CUDA_SUCCESS;
    }
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      return bytes(pool->threshold);
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
      return bytes(pool->reserved);
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      return bytes(pool->reserved_high);
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      return bytes(pool->in_use);
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      return bytes(pool->in_use_high);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult ImportedPools::set(ImportedPool* pool, CUmemPool_attribute attribute, const void* value) {
  std::lock_guard lock(mutex_);
  cuuint64_t bytes = 0;
  int flag = 0;
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      std::memcpy(&flag, value, sizeof flag);
      pool->reuse[attribute - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES] = flag != 0;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      std::memcpy(&pool->threshold, value, sizeof pool->threshold);
      if (pool->reserved > pool->threshold) holds_ = true;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:  // high-water marks can be reset, no more
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      std::memcpy(&bytes, value, sizeof bytes);
      if (bytes != 0) return CUDA_ERROR_INVALID_VALUE;
      (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH ? pool->in_use_high : pool->reserved_high) =
          attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH ? pool->in_use : pool->reserved;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace sluice::client
