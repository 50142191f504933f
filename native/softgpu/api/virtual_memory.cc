// SPDX-License-Identifier: Apache-2.0
// The virtual memory API: reserve, create, map, access, export and import.
#include "softgpu/memory/virtual_memory.h"

#include "softgpu/api/api.h"
#include "softgpu/memory/host_node.h"

using namespace sluice::softgpu;

CUresult cuMemAddressReserve(CUdeviceptr* ptr, size_t size, size_t alignment, CUdeviceptr addr,
                             unsigned long long flags) {
  return with_driver([&]() -> CUresult {
    if (!ptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    uint64_t address = 0;
    CUresult result = VirtualMemory::instance().reserve(size, alignment, addr, address);
    if (result == CUDA_SUCCESS) *ptr = address;
    return result;
  });
}

CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size) {
  return with_driver([&] { return VirtualMemory::instance().free(ptr, size); });
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size,
                     const CUmemAllocationProp* properties, unsigned long long flags) {
  return with_driver([&]() -> CUresult {
    if (!handle || !properties || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    uint64_t made = 0;
    CUresult result = VirtualMemory::instance().create(size, *properties, made);
    if (result == CUDA_SUCCESS) *handle = made;
    return result;
  });
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  return with_driver([&] { return VirtualMemory::instance().release(handle); });
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  return with_driver([&]() -> CUresult {
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    return VirtualMemory::instance().map(ptr, size, offset, handle);
  });
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size) {
  return with_driver([&] { return VirtualMemory::instance().unmap(ptr, size); });
}

CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc* access, size_t count) {
  return with_driver([&]() -> CUresult {
    if (!access || count == 0) return CUDA_ERROR_INVALID_VALUE;
    return VirtualMemory::instance().set_access(ptr, size, access, count);
  });
}

CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr ptr) {
  return with_driver([&]() -> CUresult {
    if (!flags || !location) return CUDA_ERROR_INVALID_VALUE;
    return VirtualMemory::instance().get_access(ptr, *location, *flags);
  });
}

CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* properties,
                                       CUmemAllocationGranularity_flags) {
  return with_driver([&]() -> CUresult {
    if (!granularity || !properties) return CUDA_ERROR_INVALID_VALUE;
    const CUmemLocation& at = properties->location;
    if (at.type == CU_MEM_LOCATION_TYPE_HOST_NUMA) {
      if (!has_host_node(at.id)) return CUDA_ERROR_INVALID_VALUE;
    } else {
      if (at.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
      if (!device_at(at.id)) return CUDA_ERROR_INVALID_DEVICE;
    }
    *granularity = kSlab;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties,
                                                CUmemGenericAllocationHandle handle) {
  return with_driver([&]() -> CUresult {
    if (!properties) return CUDA_ERROR_INVALID_VALUE;
    return VirtualMemory::instance().properties(handle, *properties);
  });
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* addr) {
  return with_driver([&]() -> CUresult {
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    uint64_t found = 0;
    CUresult result = VirtualMemory::instance().retain(reinterpret_cast<uintptr_t>(addr), found);
    if (result == CUDA_SUCCESS) *handle = found;
    return result;
  });
}

CUresult cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
  return with_driver([&]() -> CUresult {
    if (!shareable || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
    return VirtualMemory::instance().export_fd(handle, *static_cast<int*>(shareable));
  });
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shareable,
                                        CUmemAllocationHandleType type) {
  return with_driver([&]() -> CUresult {
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
    uint64_t made = 0;
    int fd = static_cast<int>(reinterpret_cast<intptr_t>(shareable));
    CUresult result = VirtualMemory::instance().import_fd(fd, made);
    if (result == CUDA_SUCCESS) *handle = made;
    return result;
  });
}
