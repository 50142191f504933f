// SPDX-License-Identifier: Apache-2.0
// Stream-ordered allocation. Memory is taken at the call, so that it can fail there, and given back
// when the stream reaches the free. Pools can be shared with other processes.
#include "softgpu/runtime/pool.h"

#include <cstring>

#include "softgpu/api/api.h"
#include "softgpu/memory/allocations.h"
#include "softgpu/memory/range_map.h"

namespace sluice::softgpu {
namespace {

// The allocation is the pool's from now on.
void enter(uintptr_t address, uint64_t size, Device& device, Context& context, CUmemoryPool pool) {
  uint64_t rounded = (size + kAlignment - 1) / kAlignment * kAlignment;
  uint64_t mask = 1ull << device.ordinal | device.peers.load();
  Allocations::instance().add({address, size, AllocationKind::kPool, device.ordinal, &context, 0,
                               reinterpret_cast<uintptr_t>(pool)});
  Pools::instance().took(pool, size);
  RangeMap::instance().grant(address, rounded, mask, mask);
}

CUresult allocate(Stream& stream, Context& context, CUmemoryPool pool, size_t size,
                  CUdeviceptr* pointer) {
  int ordinal = Pools::instance().device_of(pool);
  if (!pointer || ordinal < 0) return CUDA_ERROR_INVALID_VALUE;
  if (size == 0) {
    *pointer = 0;
    return CUDA_SUCCESS;
  }
  Device& device = *device_at(ordinal);
  std::shared_ptr<PoolFile> file = Pools::instance().file_of(pool);
  if (file && file->foreign()) return CUDA_ERROR_INVALID_VALUE;
  auto take = [&] { return file ? PoolFile::allocate(file, size) : device.memory.allocate(size); };
  uintptr_t address = take();
  if (address == 0) {
    stream.tail().wait();  // frees that are queued ahead make room
    address = take();
  }
  if (address == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  enter(address, size, device, context, pool);
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
    bool shared = properties->handleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        (!shared && properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE)) {
      return CUDA_ERROR_NOT_SUPPORTED;
    }
    Device* device = device_at(properties->location.id);
    if (!device) return CUDA_ERROR_INVALID_DEVICE;
    std::shared_ptr<PoolFile> file = shared ? PoolFile::create(*device) : nullptr;
    if (shared && !file) return CUDA_ERROR_OPERATING_SYSTEM;
    *pool = Pools::instance().create(device->ordinal, std::move(file));
    return CUDA_SUCCESS;
  });
}

CUresult cuMemPoolExportToShareableHandle(void* shareable, CUmemoryPool pool,
                                          CUmemAllocationHandleType type,
                                          unsigned long long flags) {
  return with_driver([&]() -> CUresult {
    std::shared_ptr<PoolFile> file = Pools::instance().file_of(pool);
    if (!shareable || flags != 0 || !file || file->foreign()) return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
    int fd = file->descriptor();
    if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    *static_cast<int*>(shareable) = fd;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool* pool, void* shareable,
                                            CUmemAllocationHandleType type,
                                            unsigned long long flags) {
  return with_driver([&]() -> CUresult {
    if (!pool || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
    auto file = PoolFile::import(static_cast<int>(reinterpret_cast<intptr_t>(shareable)));
    if (!file) return CUDA_ERROR_INVALID_VALUE;
    int ordinal = file->device().ordinal;
    *pool = Pools::instance().create(ordinal, std::move(file));
    return CUDA_SUCCESS;
  });
}

CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData* data, CUdeviceptr pointer) {
  return with_driver([&]() -> CUresult {
    std::optional<Allocation> known = Allocations::instance().find(pointer);
    if (!data || !known || known->base != pointer || known->kind != AllocationKind::kPool) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    auto file = Pools::instance().file_of(reinterpret_cast<CUmemoryPool>(known->handle));
    PoolFile::Ticket ticket;
    if (!file || !file->ticket(pointer, known->size, &ticket)) return CUDA_ERROR_INVALID_VALUE;
    std::memset(data, 0, sizeof *data);
    std::memcpy(data, &ticket, sizeof ticket);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemPoolImportPointer(CUdeviceptr* pointer, CUmemoryPool pool,
                                CUmemPoolPtrExportData* data) {
  return with_context([&](Context& context) -> CUresult {
    std::shared_ptr<PoolFile> file = Pools::instance().file_of(pool);
    if (!pointer || !data || !file || !file->foreign()) return CUDA_ERROR_INVALID_VALUE;
    PoolFile::Ticket ticket;
    std::memcpy(static_cast<void*>(&ticket), data, sizeof ticket);
    uintptr_t address = PoolFile::map(file, ticket);
    if (address == 0) return CUDA_ERROR_INVALID_VALUE;
    enter(address, ticket.size, file->device(), context, pool);
    *pointer = address;
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
    const auto file = Pools::instance().file_of(pool);
    const bool ours = Pools::instance().device_of(pool) >= 0 && !(file && file->foreign());
    return ours ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
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
