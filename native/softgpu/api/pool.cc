// SPDX-License-Identifier: Apache-2.0
// Stream-ordered allocation. Memory is taken at the call, so that it can fail there, and given back
// when the stream reaches the free. Pools on devices can be shared with other processes.
#include "softgpu/runtime/pool.h"

#include <sys/mman.h>

#include <cstring>

#include "softgpu/align.h"
#include "softgpu/api/api.h"
#include "softgpu/memory/allocations.h"
#include "softgpu/memory/host_node.h"
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

// Memory of the host's that every device reaches.
uintptr_t map_host(Context& context, CUmemoryPool pool, size_t size) {
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 0;
  uintptr_t address = reinterpret_cast<uintptr_t>(memory);
  Allocations::instance().add({address, size, AllocationKind::kHostPool, context.device().ordinal,
                               &context, 0, reinterpret_cast<uintptr_t>(pool)});
  uint64_t rounded = (size + kAlignment - 1) / kAlignment * kAlignment;
  RangeMap::instance().grant(address, rounded, kEveryDevice, kEveryDevice);
  return address;
}

CUresult allocate_on_host(Stream& stream, Context& context, CUmemoryPool pool, size_t size,
                          CUdeviceptr* pointer) {
  if (!Pools::instance().took(pool, size)) {
    stream.tail().wait();  // frees that are queued ahead make room
    if (!Pools::instance().took(pool, size)) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  uintptr_t address = map_host(context, pool, size);
  if (address == 0) {
    Pools::instance().gone(
        {0, size, AllocationKind::kHostPool, 0, nullptr, 0, reinterpret_cast<uintptr_t>(pool)});
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *pointer = address;
  return CUDA_SUCCESS;
}

CUresult allocate(Stream& stream, Context& context, CUmemoryPool pool, size_t size,
                  CUdeviceptr* pointer) {
  int ordinal = Pools::instance().place_of(pool);
  if (!pointer || ordinal == Pools::kNowhere) return CUDA_ERROR_INVALID_VALUE;
  if (size == 0) {
    *pointer = 0;
    return CUDA_SUCCESS;
  }
  if (Pools::on_host(ordinal)) return allocate_on_host(stream, context, pool, size, pointer);
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

// What a limit of a pool is a multiple of, as with NVIDIA's driver 580.
constexpr uint64_t kLimitGrain = 32ull << 20;

// Of pinned memory at that location; kNowhere: there are none.
int place_of(const CUmemLocation& location) {
  switch (location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      return device_at(location.id) ? location.id : Pools::kNowhere;
    case CU_MEM_LOCATION_TYPE_HOST:
      return Pools::kHost;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
      return has_host_node(location.id) ? Pools::node(location.id) : Pools::kNowhere;
    default:
      return Pools::kNowhere;
  }
}

bool is_device(const CUmemLocation& location) {
  return location.type == CU_MEM_LOCATION_TYPE_DEVICE;
}

// The same for a function that is told location and kind of memory.
template <class F>
CUresult with_place(const CUmemLocation* location, CUmemAllocationType type, F&& body) {
  return with_driver([&]() -> CUresult {
    if (!location) return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_NOT_SUPPORTED;
    const int place = place_of(*location);
    if (place == Pools::kNowhere)
      return is_device(*location) ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
    return body(place);
  });
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
        (!known->pooled() && known->kind != AllocationKind::kDevice)) {
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

CUresult cuMemGetDefaultMemPool(CUmemoryPool* pool, CUmemLocation* location,
                                CUmemAllocationType type) {
  return with_place(location, type, [&](int place) -> CUresult {
    if (!pool) return CUDA_ERROR_INVALID_VALUE;
    *pool = Pools::instance().standard(place);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemGetMemPool(CUmemoryPool* pool, CUmemLocation* location, CUmemAllocationType type) {
  return with_place(location, type, [&](int place) -> CUresult {
    if (!pool) return CUDA_ERROR_INVALID_VALUE;
    *pool = Pools::instance().current(place);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemSetMemPool(CUmemLocation* location, CUmemAllocationType type, CUmemoryPool pool) {
  return with_place(location, type, [&](int place) -> CUresult {
    return Pools::instance().set_current(place, pool) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* properties) {
  return with_driver([&]() -> CUresult {
    if (!pool || !properties) return CUDA_ERROR_INVALID_VALUE;
    bool shared = properties->handleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if (const int place = place_of(properties->location); Pools::on_host(place)) {
      if (properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE)
        return place == Pools::kHost ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_SUPPORTED;
      *pool = Pools::instance().create(place, nullptr, align_up(properties->maxSize, kLimitGrain));
      return CUDA_SUCCESS;
    }
    if (properties->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
        properties->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT)
      return CUDA_ERROR_INVALID_VALUE;
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
    const bool ours =
        Pools::instance().place_of(pool) != Pools::kNowhere && !(file && file->foreign());
    return ours ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

// Of pools on the host; one on a device is the device's, and its peers'.
CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc* access, size_t count) {
  return with_driver([&]() -> CUresult {
    const int place = Pools::instance().place_of(pool);
    if (place == Pools::kNowhere || (!access && count)) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; ++i) {
      const bool all = access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
      const int user = place_of(access[i].location);
      if (user == place || (Pools::on_host(place) && Pools::on_host(user))) {
        if (!all) return CUDA_ERROR_INVALID_VALUE;
        continue;
      }
      if (!is_device(access[i].location)) return CUDA_ERROR_INVALID_VALUE;
      if (user == Pools::kNowhere) return CUDA_ERROR_INVALID_DEVICE;
      if (!all && access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE) return CUDA_ERROR_INVALID_VALUE;
      if (!Pools::on_host(place)) return CUDA_ERROR_NOT_SUPPORTED;
      Pools::instance().set_user(pool, user, all);
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool pool, CUmemLocation* location) {
  return with_driver([&]() -> CUresult {
    const int place = Pools::instance().place_of(pool);
    if (!flags || !location || place == Pools::kNowhere) return CUDA_ERROR_INVALID_VALUE;
    const int user = place_of(*location);
    if (user == Pools::kNowhere)
      return is_device(*location) ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
    if (Pools::on_host(user) && !Pools::on_host(place)) return CUDA_ERROR_INVALID_VALUE;
    bool may = user == place || Pools::on_host(user);
    if (!may)
      may = Pools::on_host(place) ? Pools::instance().used_by(pool, user)
                                  : (device_at(place)->peers.load() >> user & 1) != 0;
    *flags = may ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
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
