// SPDX-License-Identifier: Apache-2.0
// Stream-ordered allocation. Memory is taken at the call, so that it can fail there, and given back
// when the stream reaches the free.
#include <map>
#include <mutex>

#include "softgpu/api/api.h"
#include "softgpu/memory/allocations.h"
#include "softgpu/memory/range_map.h"

namespace sluice::softgpu {
namespace {

// A pool is its attributes; the memory is the device's.
struct Pool {
  int device;
  std::map<int, uint64_t> attributes;
};

struct PoolTable {
  std::mutex mutex;
  std::map<const void*, std::unique_ptr<Pool>> pools;
  std::map<int, Pool*> standard;  // the default pool of each device
  std::map<int, Pool*> current;
};

PoolTable& table() {
  static auto* all = new PoolTable;
  return *all;
}

Pool* make_pool_locked(int device) {
  auto pool = std::make_unique<Pool>(Pool{device, {}});
  Pool* made = pool.get();
  table().pools[made] = std::move(pool);
  return made;
}

Pool* default_pool(int device) {
  std::lock_guard lock(table().mutex);
  Pool*& pool = table().standard[device];
  if (!pool) pool = make_pool_locked(device);
  return pool;
}

Pool* pool_from(CUmemoryPool handle) {
  std::lock_guard lock(table().mutex);
  auto found = table().pools.find(handle);
  return found == table().pools.end() ? nullptr : found->second.get();
}

CUresult allocate(Context& context, Stream& stream, int ordinal, size_t size,
                  CUdeviceptr* pointer) {
  if (!pointer) return CUDA_ERROR_INVALID_VALUE;
  if (size == 0) {
    *pointer = 0;
    return CUDA_SUCCESS;
  }
  Device& device = *device_at(ordinal);
  uintptr_t address = device.memory.allocate(size);
  if (address == 0) {
    stream.tail().wait();  // frees that are queued ahead make room
    address = device.memory.allocate(size);
  }
  if (address == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  uint64_t rounded = (size + kAlignment - 1) / kAlignment * kAlignment;
  uint64_t mask = 1ull << ordinal | device.peers.load();
  Allocations::instance().add({address, size, AllocationKind::kPool, ordinal, &context});
  RangeMap::instance().grant(address, rounded, mask, mask);
  *pointer = address;
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace sluice::softgpu

using namespace sluice::softgpu;

CUresult cuMemAllocAsync(CUdeviceptr* pointer, size_t size, CUstream handle) {
  return with_stream(handle, [&](Context& context, Stream& stream) {
    return allocate(context, stream, context.device().ordinal, size, pointer);
  });
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* pointer, size_t size, CUmemoryPool pool_handle,
                                 CUstream handle) {
  return with_stream(handle, [&](Context& context, Stream& stream) -> CUresult {
    Pool* pool = pool_from(pool_handle);
    if (!pool) return CUDA_ERROR_INVALID_VALUE;
    return allocate(context, stream, pool->device, size, pointer);
  });
}

CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream handle) {
  return with_stream(handle, [&](Context& context, Stream& stream) -> CUresult {
    if (pointer == 0) return CUDA_SUCCESS;
    std::optional<Allocation> known = Allocations::instance().find(pointer);
    if (!known || known->base != pointer ||
        (known->kind != AllocationKind::kPool && known->kind != AllocationKind::kDevice)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    context.submit_always(stream, [pointer] {
      std::optional<Allocation> freed = Allocations::instance().remove(pointer);
      if (!freed) return;
      uint64_t rounded = (freed->size + kAlignment - 1) / kAlignment * kAlignment;
      RangeMap::instance().retract(pointer, rounded);
      device_at(freed->device)->memory.release(pointer);
    });
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice dev) {
  return with_device(dev, [&](Device& device) -> CUresult {
    if (!pool) return CUDA_ERROR_INVALID_VALUE;
    *pool = reinterpret_cast<CUmemoryPool>(default_pool(device.ordinal));
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice dev) {
  return with_device(dev, [&](Device& device) -> CUresult {
    if (!pool) return CUDA_ERROR_INVALID_VALUE;
    Pool* standard = default_pool(device.ordinal);
    std::lock_guard lock(table().mutex);
    auto chosen = table().current.find(device.ordinal);
    *pool = reinterpret_cast<CUmemoryPool>(chosen == table().current.end() ? standard
                                                                           : chosen->second);
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool handle) {
  return with_device(dev, [&](Device& device) -> CUresult {
    Pool* pool = pool_from(handle);
    if (!pool || pool->device != device.ordinal) return CUDA_ERROR_INVALID_VALUE;
    std::lock_guard lock(table().mutex);
    table().current[device.ordinal] = pool;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* properties) {
  return with_driver([&]() -> CUresult {
    if (!pool || !properties) return CUDA_ERROR_INVALID_VALUE;
    if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE) {
      return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (!device_at(properties->location.id)) return CUDA_ERROR_INVALID_DEVICE;
    std::lock_guard lock(table().mutex);
    *pool = reinterpret_cast<CUmemoryPool>(make_pool_locked(properties->location.id));
    return CUDA_SUCCESS;
  });
}

CUresult cuMemPoolDestroy(CUmemoryPool handle) {
  return with_driver([&]() -> CUresult {
    std::lock_guard lock(table().mutex);
    for (const auto& [device, pool] : table().standard) {
      if (pool == reinterpret_cast<Pool*>(handle)) return CUDA_ERROR_INVALID_VALUE;
    }
    std::erase_if(table().current, [&](const auto& entry) {
      return entry.second == reinterpret_cast<Pool*>(handle);
    });
    return table().pools.erase(handle) != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t) {
  return with_driver([&]() -> CUresult {  // nothing is kept back that could be trimmed
    return pool_from(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute which, void* value) {
  return with_driver([&]() -> CUresult {
    Pool* pool = pool_from(handle);
    if (!pool || !value) return CUDA_ERROR_INVALID_VALUE;
    bool narrow = which <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES;
    std::lock_guard lock(table().mutex);
    pool->attributes[which] = narrow ? *static_cast<unsigned*>(value)
                                     : *static_cast<cuuint64_t*>(value);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute which, void* value) {
  return with_driver([&]() -> CUresult {
    Pool* pool = pool_from(handle);
    if (!pool || !value) return CUDA_ERROR_INVALID_VALUE;
    bool narrow = which <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES;
    std::lock_guard lock(table().mutex);
    auto held = pool->attributes.find(which);
    uint64_t result = held != pool->attributes.end() ? held->second : narrow ? 1 : 0;
    if (narrow) {
      *static_cast<unsigned*>(value) = static_cast<unsigned>(result);
    } else {
      *static_cast<cuuint64_t*>(value) = result;
    }
    return CUDA_SUCCESS;
  });
}
