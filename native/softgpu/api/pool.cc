// SPDX-License-Identifier: Apache-2.0
// Stream-ordered allocation. Memory is taken at the call, so that it can fail there, and given back
// when the stream reaches the free.
#include "softgpu/runtime/pool.h"

#include "softgpu/api/api.h"
#include "softgpu/memory/allocations.h"
#include "softgpu/memory/range_map.h"

namespace sluice::softgpu {
namespace {

CUresult allocate(Stream& stream, Context& context, CUmemoryPool pool, size_t size,
                  CUdeviceptr* pointer) {
  int ordinal = Pools::instance().device_of(pool);
  if (!pointer || ordinal < 0) return CUDA_ERROR_INVALID_VALUE;
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
  Allocations::instance().add({address, size, AllocationKind::kPool, ordinal, &context, 0,
                               reinterpret_cast<uintptr_t>(pool)});
  Pools::instance().took(pool, size);
  RangeMap::instance().grant(address, rounded, mask, mask);
  *pointer = address;
  return CUDA_SUCCESS;
}

bool narrow(CUmemPool_attribute which) {
  return which <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES;
}

}  // namespace
}  // namespace sluice::softgpu

using namespace sluice::softgpu;

CUresult cuMemAllocAsync(CUdeviceptr* pointer, size_t size, CUstream handle) {
  return with_stream(handle, [&](Context& context, Stream& stream) {
    CUmemoryPool pool = Pools::instance().current(context.device().ordinal);
    return allocate(stream, context, pool, size, pointer);
  });
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* pointer, size_t size, CUmemoryPool pool,
                                 CUstream handle) {
  return with_stream(handle, [&](Context& context, Stream& stream) {
    return allocate(stream, context, pool, size, pointer);
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
      if (freed) release_device_allocation(*freed);
    });
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice dev) {
  return with_device(dev, [&](Device& device) -> CUresult {
    if (!pool) return CUDA_ERROR_INVALID_VALUE;
    *pool = Pools::instance().standard(device.ordinal);
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice dev) {
  return with_device(dev, [&](Device& device) -> CUresult {
    if (!pool) return CUDA_ERROR_INVALID_VALUE;
    *pool = Pools::instance().current(device.ordinal);
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool) {
  return with_device(dev, [&](Device& device) -> CUresult {
    return Pools::instance().set_current(device.ordinal, pool) ? CUDA_SUCCESS
                                                               : CUDA_ERROR_INVALID_VALUE;
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
    *pool = Pools::instance().create(properties->location.id);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  return with_driver([&]() -> CUresult {
    return Pools::instance().destroy(pool) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t) {
  return with_driver([&]() -> CUresult {  // nothing is kept back that could be trimmed
    return Pools::instance().device_of(pool) >= 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute which, void* value) {
  return with_driver([&]() -> CUresult {
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    uint64_t number =
        narrow(which) ? *static_cast<unsigned*>(value) : *static_cast<cuuint64_t*>(value);
    return Pools::instance().set_attribute(pool, which, number) ? CUDA_SUCCESS
                                                                : CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute which, void* value) {
  return with_driver([&]() -> CUresult {
    uint64_t number = 0;
    if (!value || !Pools::instance().attribute(pool, which, number)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (narrow(which)) {
      *static_cast<unsigned*>(value) = static_cast<unsigned>(number);
    } else {
      *static_cast<cuuint64_t*>(value) = number;
    }
    return CUDA_SUCCESS;
  });
}
