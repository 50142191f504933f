// SPDX-License-Identifier: Apache-2.0
// Device memory, pinned and registered host memory, and what is known about a pointer.
#include <sys/mman.h>

#include <algorithm>

#include "softgpu/api/api.h"
#include "softgpu/memory/allocations.h"
#include "softgpu/memory/range_map.h"
#include "softgpu/runtime/pool.h"

namespace sluice::softgpu {
namespace {

constexpr uint64_t kPage = 4096;

CUresult allocate(Context& context, size_t size, CUdeviceptr* pointer) {
  Device& device = context.device();
  uintptr_t address = device.memory.allocate(size);
  if (address == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  uint64_t rounded = (size + kAlignment - 1) / kAlignment * kAlignment;
  uint64_t mask = 1ull << device.ordinal | device.peers.load();
  Allocations::instance().add({address, size, AllocationKind::kDevice, device.ordinal, &context});
  RangeMap::instance().grant(address, rounded, mask, mask);
  *pointer = address;
  return CUDA_SUCCESS;
}

CUresult allocate_host(Context& context, size_t size, unsigned flags, void** pointer) {
  if (!pointer || size == 0) return CUDA_ERROR_INVALID_VALUE;
  uint64_t rounded = (size + kPage - 1) / kPage * kPage;
  if (rounded < size) return CUDA_ERROR_OUT_OF_MEMORY;
  void* memory = mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  uintptr_t address = reinterpret_cast<uintptr_t>(memory);
  Allocations::instance().add(
      {address, rounded, AllocationKind::kHost, context.device().ordinal, &context, 0, 0, flags});
  RangeMap::instance().grant(address, rounded, kEveryDevice, kEveryDevice);
  *pointer = memory;
  return CUDA_SUCCESS;
}

// One attribute of a pointer; false if it does not apply to this one.
bool attribute(const Allocation& known, CUpointer_attribute which, uintptr_t pointer, void* out) {
  bool legacy = known.kind == AllocationKind::kDevice;
  switch (which) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      *static_cast<CUcontext*>(out) = known.context ? handle_of(known.context) : nullptr;
      return known.context != nullptr;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<unsigned*>(out) = known.host() ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
      return true;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      *static_cast<CUdeviceptr*>(out) = pointer;
      return true;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      *static_cast<void**>(out) = known.host() ? reinterpret_cast<void*>(pointer) : nullptr;
      return known.host();
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      *static_cast<unsigned*>(out) =
          std::any_of(known.managed.begin(), known.managed.end(), [&](const auto& variable) {
            return pointer >= variable.first && pointer < variable.second;
          });
      return true;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      *static_cast<unsigned*>(out) = 0;
      return true;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      *static_cast<unsigned long long*>(out) = known.id;
      return true;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *static_cast<int*>(out) = known.device;
      return true;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      *static_cast<CUdeviceptr*>(out) = known.base;
      return true;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      *static_cast<size_t*>(out) = known.size;
      return true;
    case CU_POINTER_ATTRIBUTE_MAPPED:
      *static_cast<unsigned*>(out) = 1;
      return true;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      *static_cast<unsigned long long*>(out) =
          known.kind == AllocationKind::kMapped ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : 0;
      return true;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      *static_cast<unsigned*>(out) = CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
      return true;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      *static_cast<CUmemoryPool*>(out) =
          known.pooled() ? reinterpret_cast<CUmemoryPool>(known.handle) : nullptr;
      return true;
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      *static_cast<unsigned long long*>(out) = legacy ? known.id : known.handle;
      return true;
    default:
      return false;
  }
}

size_t attribute_size(CUpointer_attribute which) {
  switch (which) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      return 8;
    default:
      return 4;
  }
}

}  // namespace
}  // namespace sluice::softgpu

using namespace sluice::softgpu;

CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
  return with_context([&](Context& context) -> CUresult {
    if (!free || !total) return CUDA_ERROR_INVALID_VALUE;
    *free = context.device().memory.free();
    *total = context.device().memory.total();
    return CUDA_SUCCESS;
  });
}

CUresult cuMemAlloc_v2(CUdeviceptr* pointer, size_t size) {
  return with_safe_context([&](Context& context) -> CUresult {
    if (!pointer || size == 0) return CUDA_ERROR_INVALID_VALUE;
    return allocate(context, size, pointer);
  });
}

CUresult cuMemAllocPitch_v2(CUdeviceptr* pointer, size_t* pitch, size_t width, size_t height,
                            unsigned int element) {
  return with_safe_context([&](Context& context) -> CUresult {
    if (!pointer || !pitch || width == 0 || height == 0) return CUDA_ERROR_INVALID_VALUE;
    if (element != 4 && element != 8 && element != 16) return CUDA_ERROR_INVALID_VALUE;
    size_t row = (width + kAlignment - 1) / kAlignment * kAlignment;
    if (row < width || row > SIZE_MAX / height) return CUDA_ERROR_INVALID_VALUE;
    *pitch = row;
    return allocate(context, row * height, pointer);
  });
}

CUresult cuMemFree_v2(CUdeviceptr pointer) {
  return with_safe_context([&](Context& context) -> CUresult {
    if (pointer == 0) return CUDA_SUCCESS;
    std::optional<Allocation> known = Allocations::instance().find(pointer);
    bool ours = known && known->base == pointer &&
                (known->kind == AllocationKind::kDevice || known->pooled());
    if (!ours) return CUDA_ERROR_INVALID_VALUE;
    synchronize_all_contexts();  // kernels may be using it: CUDA waits for them too
    if (!Allocations::instance().remove(pointer)) return CUDA_ERROR_INVALID_VALUE;
    release_device_allocation(*known);
    return outcome(context);
  });
}

CUresult cuMemAllocHost_v2(void** pointer, size_t size) {
  return with_safe_context(
      [&](Context& context) -> CUresult { return allocate_host(context, size, 0, pointer); });
}

CUresult cuMemHostAlloc(void** pointer, size_t size, unsigned int flags) {
  return with_safe_context([&](Context& context) -> CUresult {
    constexpr unsigned kKnown =
        CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
    if ((flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
    return allocate_host(context, size, flags, pointer);
  });
}

CUresult cuMemFreeHost(void* pointer) {
  return with_safe_context([&](Context& context) -> CUresult {
    if (!pointer) return CUDA_SUCCESS;
    uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
    std::optional<Allocation> known = Allocations::instance().find(address);
    if (!known || known->base != address || known->kind != AllocationKind::kHost) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    synchronize_all_contexts();
    if (!Allocations::instance().remove(address)) return CUDA_ERROR_INVALID_VALUE;
    RangeMap::instance().retract(address, known->size);
    munmap(pointer, known->size);
    return outcome(context);
  });
}

CUresult cuMemHostRegister_v2(void* pointer, size_t size, unsigned int flags) {
  return with_safe_context([&](Context& context) -> CUresult {
    constexpr unsigned kKnown =
        CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_READ_ONLY;
    if ((flags & CU_MEMHOSTREGISTER_IOMEMORY) != 0) return CUDA_ERROR_NOT_SUPPORTED;
    if (!pointer || size == 0 || (flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
    uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
    bool added = Allocations::instance().add({address, size, AllocationKind::kRegistered,
                                              context.device().ordinal, &context, 0, 0, flags});
    if (!added) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    context.device().registers.take(size);
    bool read_only = flags & CU_MEMHOSTREGISTER_READ_ONLY;
    RangeMap::instance().grant(address, size, kEveryDevice, read_only ? 0 : kEveryDevice);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemHostUnregister(void* pointer) {
  return with_safe_context([&](Context&) -> CUresult {
    uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
    std::optional<Allocation> known = Allocations::instance().find(address);
    if (!pointer || !known || known->base != address ||
        known->kind != AllocationKind::kRegistered) {
      return pointer ? CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED : CUDA_ERROR_INVALID_VALUE;
    }
    Allocations::instance().remove(address);
    RangeMap::instance().retract(address, known->size);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* device, void* host, unsigned int flags) {
  return with_context([&](Context&) -> CUresult {
    if (!device || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    uintptr_t address = reinterpret_cast<uintptr_t>(host);
    std::optional<Allocation> known = Allocations::instance().find(address);
    if (!known || !known->host()) return CUDA_ERROR_INVALID_VALUE;
    *device = address;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemHostGetFlags(unsigned int* flags, void* host) {
  return with_context([&](Context&) -> CUresult {
    uintptr_t address = reinterpret_cast<uintptr_t>(host);
    std::optional<Allocation> known = Allocations::instance().find(address);
    if (!flags || !known || known->kind != AllocationKind::kHost) return CUDA_ERROR_INVALID_VALUE;
    *flags = known->flags | CU_MEMHOSTALLOC_DEVICEMAP;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* size, CUdeviceptr pointer) {
  return with_context([&](Context&) -> CUresult {
    std::optional<Allocation> known = Allocations::instance().find(pointer);
    if (!known) return CUDA_ERROR_NOT_FOUND;
    if (base) *base = known->base;
    if (size) *size = known->size;
    return CUDA_SUCCESS;
  });
}

CUresult cuPointerGetAttribute(void* data, CUpointer_attribute which, CUdeviceptr pointer) {
  return with_driver([&]() -> CUresult {
    if (!data) return CUDA_ERROR_INVALID_VALUE;
    std::optional<Allocation> known = Allocations::instance().find(pointer);
    if (!known || !attribute(*known, which, pointer, data)) return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
  });
}

CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute* which, void** data,
                                CUdeviceptr pointer) {
  return with_driver([&]() -> CUresult {
    if (count == 0 || !which || !data) return CUDA_ERROR_INVALID_VALUE;
    std::optional<Allocation> known = Allocations::instance().find(pointer);
    for (unsigned i = 0; i < count; ++i) {
      if (!data[i]) return CUDA_ERROR_INVALID_VALUE;
      std::fill_n(static_cast<char*>(data[i]), attribute_size(which[i]), 0);
      if (which[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL && !known) {
        *static_cast<int*>(data[i]) = -2;  // as CUDA says for unknown pointers
      }
      if (known) attribute(*known, which[i], pointer, data[i]);
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuPointerSetAttribute(const void* value, CUpointer_attribute which, CUdeviceptr pointer) {
  return with_driver([&]() -> CUresult {
    if (!value || which != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) return CUDA_ERROR_INVALID_VALUE;
    // Copies of this library are never reordered, so the request is always met.
    return Allocations::instance().find(pointer) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

// Memory of cuMemAlloc is not shared between processes; cuMemCreate's descriptors are.
CUresult cuIpcGetMemHandle(CUipcMemHandle*, CUdeviceptr) {
  return with_context([](Context&) { return CUDA_ERROR_NOT_SUPPORTED; });
}
