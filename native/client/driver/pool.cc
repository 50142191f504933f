// SPDX-License-Identifier: Apache-2.0
// Stream-ordered allocation and memory pools: arguments and handles; what is reused when is decided
// in core/memory_pools.h. Which pools of the host's memory there are is driver/host_pool.h.
#include "client/objects/pool.h"

#include "client/core/addresses.h"
#include "client/core/log.h"
#include "client/driver/graph.h"
#include "client/driver/host_pool.h"
#include "client/driver/location.h"
#include "client/driver/peer.h"
#include "client/driver/wait.h"

using namespace sluice::client;

namespace {

CUmemoryPool as_handle(uint64_t id) { return reinterpret_cast<CUmemoryPool>(id); }

CUresult device_of(CUdevice ordinal, Session** s, Device** device) {
  if (const CUresult e = enter(s); e != CUDA_SUCCESS) return e;
  auto& all = (*s)->devices();
  if (ordinal < 0 || static_cast<size_t>(ordinal) >= all.size()) return CUDA_ERROR_INVALID_DEVICE;
  *device = all[static_cast<size_t>(ordinal)].get();
  return CUDA_SUCCESS;
}

CUresult find(CUmemoryPool handle, Session** s, PoolHandle** pool) {
  if (const CUresult e = enter(s); e != CUDA_SUCCESS) return e;
  *pool = (*s)->pools.find(handle);
  return *pool ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// One of this process's own.
CUresult find_own(CUmemoryPool handle, Session** s, PoolHandle** pool) {
  if (const CUresult e = find(handle, s, pool); e != CUDA_SUCCESS) return e;
  return (*pool)->imported ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

// Of its device, or of the host.
MemoryPools& home_of(Session* s, const PoolHandle& pool) {
  return pool.device ? pool.device->pools : s->host_pools.all();
}

// Whether a location and a kind of memory mean pools of pinned host memory.
bool means_host(const CUmemLocation* location, CUmemAllocationType type) {
  return location && is_on_host(*location) && type == CU_MEM_ALLOCATION_TYPE_PINNED;
}

// The device whose pools they mean.
CUresult locate(const CUmemLocation* location, CUmemAllocationType type, Session** s,
                Device** device) {
  if (!location || location->type == CU_MEM_LOCATION_TYPE_INVALID ||
      type == CU_MEM_ALLOCATION_TYPE_INVALID)
    return CUDA_ERROR_INVALID_VALUE;
  if (location->type != CU_MEM_LOCATION_TYPE_DEVICE || type != CU_MEM_ALLOCATION_TYPE_PINNED)
    return CUDA_ERROR_NOT_SUPPORTED;
  return device_of(location->id, s, device);
}

CUresult allocate(Session* s, const PoolHandle& from, Stream* stream, size_t bytes,
                  CUdeviceptr* pointer) {
  if (!pointer || (from.device && from.device != stream->device)) return CUDA_ERROR_INVALID_VALUE;
  if (bytes == 0) {  // no memory, which cuMemFreeAsync takes back
    *pointer = 0;
    return s->sticky();
  }
  uint64_t address = 0;
  auto result = from.device ? from.device->pools.allocate(from.pool, stream, bytes, &address)
                            : s->host_pools.allocate(from.pool, stream, bytes, &address);
  if (result == DeviceMemory::Result::kOutOfMemory && from.device &&
      from.device->graph_memory.trim())
    result = from.device->pools.allocate(from.pool, stream, bytes, &address);
  if (result == DeviceMemory::Result::kDone) *pointer = address;
  return s->sticky() != CUDA_SUCCESS ? s->sticky() : as_result(result);
}

// In a capture: a node of the graph, which owns the memory; the pool says where it is and who may
// use it.
CUresult record(Session* s, const PoolHandle& from, Stream* stream, size_t bytes,
                CUdeviceptr* pointer) {
  if (!pointer || (from.device && from.device != stream->device)) return CUDA_ERROR_INVALID_VALUE;
  if (bytes == 0) {  // no node either
    *pointer = 0;
    return CUDA_SUCCESS;
  }
  if (!from.device) {
    log_once(LogLevel::kError,
             "allocation from a pool of host memory in a stream capture is not supported");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = static_cast<int>(from.device->index);
  return capture_allocation(s, stream, properties, from.users, bytes, pointer);
}

}  // namespace

extern "C" {

CUresult cuMemAllocAsync(CUdeviceptr* pointer, size_t bytes, CUstream handle) {
  Session* s;
  Device* d;
  Stream* stream;
  if (const CUresult e = enter(&s, &d); e != CUDA_SUCCESS) return e;
  if (const CUresult e = stream_for_work(s, d, handle, &stream); e != CUDA_SUCCESS) return e;
  const PoolHandle* pool = s->pools.find(stream->device->current_pool.load());
  if (pool && stream->capture) return record(s, *pool, stream, bytes, pointer);
  return pool ? allocate(s, *pool, stream, bytes, pointer) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* pointer, size_t bytes, CUmemoryPool handle,
                                 CUstream stream_handle) {
  Session* s;
  Device* d;
  Stream* stream;
  if (const CUresult e = enter(&s, &d); e != CUDA_SUCCESS) return e;
  if (const CUresult e = stream_for_work(s, d, stream_handle, &stream); e != CUDA_SUCCESS) return e;
  const PoolHandle* pool = s->pools.find(handle);
  if (pool && pool->imported) return CUDA_ERROR_INVALID_VALUE;
  if (pool && stream->capture) return record(s, *pool, stream, bytes, pointer);
  return pool ? allocate(s, *pool, stream, bytes, pointer) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream handle) {
  Session* s;
  Device* d;
  Stream* stream;
  if (const CUresult e = enter(&s, &d); e != CUDA_SUCCESS) return e;
  if (const CUresult e = stream_for_work(s, d, handle, &stream); e != CUDA_SUCCESS) return e;
  if (pointer == 0) return CUDA_SUCCESS;
  if (stream->capture) return capture_free(s, stream, pointer);
  if (s->host_pools.free(pointer, stream)) return CUDA_SUCCESS;
  AddressRange range;
  if (!find_range(s, pointer, &range) || range.start != pointer) return CUDA_ERROR_INVALID_VALUE;
  // Others wait, as CUDA allows here.
  if (!range.pooled && !range.graphs && !range.imported) return cuMemFree_v2(pointer);
  // Another device's stream: its order means nothing to this device's.
  Stream* const order = stream->device == range.device ? stream : nullptr;
  if (!order)
    if (const CUresult e = synchronize_stream(s, stream); e != CUDA_SUCCESS) return e;
  MemoryPools& pools = range.device->pools;
  const bool done = range.graphs     ? range.device->graph_memory.free(pointer, order)
                    : range.imported ? s->imported_pools.free(pointer)
                    : order          ? pools.free(pointer, order)
                                     : pools.free_now(pointer);
  return done ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device) {
  Session* s;
  Device* d;
  if (const CUresult e = device_of(device, &s, &d); e != CUDA_SUCCESS) return e;
  if (!pool) return CUDA_ERROR_INVALID_VALUE;
  *pool = as_handle(d->standard_pool);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice device) {
  Session* s;
  Device* d;
  if (const CUresult e = device_of(device, &s, &d); e != CUDA_SUCCESS) return e;
  if (!pool) return CUDA_ERROR_INVALID_VALUE;
  *pool = as_handle(d->current_pool.load());
  return CUDA_SUCCESS;
}

CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool handle) {
  Session* s;
  Device* d;
  PoolHandle* pool;
  if (const CUresult e = device_of(device, &s, &d); e != CUDA_SUCCESS) return e;
  if (const CUresult e = find_own(handle, &s, &pool); e != CUDA_SUCCESS) return e;
  if (pool->device != d) return CUDA_ERROR_INVALID_VALUE;
  d->current_pool = reinterpret_cast<uint64_t>(handle);
  return CUDA_SUCCESS;
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool* pool, CUmemLocation* location,
                                CUmemAllocationType type) {
  Session* s;
  Device* d;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  if (means_host(location, type)) return standard_host_pool(s, *location, pool);
  if (const CUresult e = locate(location, type, &s, &d); e != CUDA_SUCCESS) return e;
  return cuDeviceGetDefaultMemPool(pool, location->id);
}

CUresult cuMemGetMemPool(CUmemoryPool* pool, CUmemLocation* location, CUmemAllocationType type) {
  Session* s;
  Device* d;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  if (means_host(location, type)) return current_host_pool(s, *location, pool);
  if (const CUresult e = locate(location, type, &s, &d); e != CUDA_SUCCESS) return e;
  return cuDeviceGetMemPool(pool, location->id);
}

CUresult cuMemSetMemPool(CUmemLocation* location, CUmemAllocationType type, CUmemoryPool pool) {
  Session* s;
  Device* d;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  if (means_host(location, type)) return choose_host_pool(s, *location, pool);
  if (const CUresult e = locate(location, type, &s, &d); e != CUDA_SUCCESS) return e;
  return cuDeviceSetMemPool(location->id, pool);
}

CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* properties) {
  Session* s;
  Device* d;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  if (!pool || !properties) return CUDA_ERROR_INVALID_VALUE;
  if (means_host(&properties->location, properties->allocType))
    return create_host_pool(s, *properties, pool);
  if (const CUresult e = locate(&properties->location, properties->allocType, &s, &d);
      e != CUDA_SUCCESS)
    return e;
  // Shared as file descriptors, if at all (the device attribute says so).
  const auto types = properties->handleTypes;
  const bool shareable = types == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  if (types != CU_MEM_HANDLE_TYPE_NONE && !shareable) return CUDA_ERROR_NOT_SUPPORTED;
  if (properties->win32SecurityAttributes) return CUDA_ERROR_INVALID_VALUE;
  auto roster = shareable ? PoolRoster::create(d->record) : nullptr;
  if (shareable && !roster) return CUDA_ERROR_OPERATING_SYSTEM;
  uint64_t id;
  PoolHandle* made = s->pools.create(&id);
  if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
  *made = {d, d->pools.create(whole_limit(properties->maxSize), std::move(roster))};
  *pool = as_handle(id);
  return CUDA_SUCCESS;
}

// Its memory stays until the last allocation is freed.
CUresult cuMemPoolDestroy(CUmemoryPool handle) {
  Session* s;
  PoolHandle* pool;
  if (const CUresult e = find(handle, &s, &pool); e != CUDA_SUCCESS) return e;
  const PoolHandle gone = *pool;
  uint64_t id = reinterpret_cast<uint64_t>(handle);
  if (!gone.device) {
    if (!s->host_pools.forget(gone.node, id) || !s->pools.destroy(id))
      return CUDA_ERROR_INVALID_VALUE;
    s->host_pools.all().destroy(gone.pool);
    return CUDA_SUCCESS;
  }
  if (!gone.imported && gone.pool == gone.device->pools.standard()) return CUDA_ERROR_INVALID_VALUE;
  if (gone.imported) {
    if (s->imported_pools.close(gone.imported)) s->pools.destroy(id);
    return CUDA_SUCCESS;
  }
  if (!s->pools.destroy(id)) return CUDA_ERROR_INVALID_VALUE;
  gone.device->current_pool.compare_exchange_strong(id, gone.device->standard_pool);
  gone.device->pools.destroy(gone.pool);
  return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep) {
  Session* s;
  PoolHandle* pool;
  if (const CUresult e = find(handle, &s, &pool); e != CUDA_SUCCESS) return e;
  if (pool->imported) return CUDA_ERROR_INVALID_VALUE;
  home_of(s, *pool).trim(pool->pool, keep);
  return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  Session* s;
  PoolHandle* pool;
  if (const CUresult e = find(handle, &s, &pool); e != CUDA_SUCCESS) return e;
  if (!value || pool->imported) return CUDA_ERROR_INVALID_VALUE;
  return home_of(s, *pool).set(pool->pool, attribute, value);
}

CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  Session* s;
  PoolHandle* pool;
  if (const CUresult e = find(handle, &s, &pool); e != CUDA_SUCCESS) return e;
  if (!value || pool->imported) return CUDA_ERROR_INVALID_VALUE;
  return home_of(s, *pool).get(pool->pool, attribute, value);
}

CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc* access, size_t count) {
  Session* s;
  PoolHandle* pool;
  if (const CUresult e = find(handle, &s, &pool); e != CUDA_SUCCESS) return e;
  if (!access && count) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    Device* d;
    const auto flags = access[i].flags;
    const bool all = flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    if (!pool->device && is_on_host(access[i].location)) {  // which always has access
      if (!all) return CUDA_ERROR_INVALID_VALUE;
      continue;
    }
    if (access[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult e = device_of(access[i].location.id, &s, &d); e != CUDA_SUCCESS) return e;
    if (d == pool->device) {  // which always has access
      if (!all) return CUDA_ERROR_INVALID_VALUE;
      continue;
    }
    if (!all && flags != CU_MEM_ACCESS_FLAGS_PROT_NONE) return CUDA_ERROR_INVALID_VALUE;
    if (all && pool->device && !(d->record.peers >> pool->device->index & 1))
      return CUDA_ERROR_INVALID_DEVICE;
    // The worker opens whole windows, so closing one pool of several takes nothing away. Pinned
    // memory is every device's.
    const uint64_t bit = 1ull << d->index;
    if (!all) {
      pool->users &= ~bit;
    } else if (!pool->device) {
      pool->users |= bit;
    } else if (!(pool->users & bit)) {
      if (!(pool->device->pool_users.fetch_or(bit) & bit) &&
          !(d->peers_enabled.load() >> pool->device->index & 1))
        if (const CUresult e = use_memory_of(s, d, pool->device); e != CUDA_SUCCESS) return e;
      pool->users |= bit;
    }
  }
  return CUDA_SUCCESS;
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool handle,
                            CUmemLocation* location) {
  Session* s;
  PoolHandle* pool;
  if (const CUresult e = find(handle, &s, &pool); e != CUDA_SUCCESS) return e;
  if (!flags || !location) return CUDA_ERROR_INVALID_VALUE;
  if (!pool->device && is_on_host(*location)) {
    *flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return CUDA_SUCCESS;
  }
  if (location->type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
  Device* d;
  if (const CUresult e = device_of(location->id, &s, &d); e != CUDA_SUCCESS) return e;
  const bool may = d == pool->device || pool->users >> d->index & 1;
  *flags = may ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return CUDA_SUCCESS;
}

}  // extern "C"
