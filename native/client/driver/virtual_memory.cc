// SPDX-License-Identifier: Apache-2.0
// The virtual memory API: what CUDA's documentation says of arguments; the accounts are
// core/virtual_memory.h.
#include "client/core/virtual_memory.h"

#include "client/core/device_memory.h"
#include "client/core/enter.h"
#include "client/core/session.h"
#include "client/driver/across_nodes.h"
#include "client/driver/location.h"
#include "client/driver/transfer.h"
#include "client/driver/wait.h"
#include "client/objects/device.h"
#include "client/unsupported.h"

using namespace sluice::client;

namespace {

constexpr uint64_t kGranularity = DeviceMemory::kSlab;
constexpr uint64_t kHostPage = 4096;

bool whole(uint64_t n) { return n != 0 && n % kGranularity == 0; }

// The device that a location names.
CUresult locate(Session* s, const CUmemLocation& location, Device** device) {
  if (location.type != CU_MEM_LOCATION_TYPE_DEVICE)
    return location.type == CU_MEM_LOCATION_TYPE_INVALID ? CUDA_ERROR_INVALID_VALUE
                                                         : CUDA_ERROR_NOT_SUPPORTED;
  auto& all = s->devices();
  if (location.id < 0 || static_cast<size_t>(location.id) >= all.size())
    return CUDA_ERROR_INVALID_DEVICE;
  *device = all[static_cast<size_t>(location.id)].get();
  return CUDA_SUCCESS;
}

// Reservations lie in the window of the device at hand; any device's memory can be mapped there.
Device* home_of(Session* s) {
  Session* same;
  Device* d;
  return enter(&same, &d) == CUDA_SUCCESS ? d : s->devices()[0].get();
}

// Host memory is the vGPU's at hand, seen as managed memory is (docs/managed-memory.md): so it has
// no descriptor, which would be a view of its own for another process.
CUresult check_host(Session* s, const CUmemAllocationProp& p, Device** device) {
  if (p.location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA && p.location.id < 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (p.requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE || s->spans_nodes())
    return CUDA_ERROR_NOT_SUPPORTED;
  *device = home_of(s);
  return CUDA_SUCCESS;
}

CUresult check(Session* s, const CUmemAllocationProp& p, Device** device) {
  if (p.type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  if (p.requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE &&
      p.requestedHandleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return CUDA_ERROR_NOT_SUPPORTED;
  if (p.win32HandleMetaData || p.allocFlags.compressionType > CU_MEM_ALLOCATION_COMP_GENERIC)
    return CUDA_ERROR_INVALID_VALUE;
  if (p.allocFlags.usage & CU_MEM_CREATE_USAGE_TILE_POOL) return CUDA_ERROR_NOT_SUPPORTED;
  return is_on_host(p.location) ? check_host(s, p, device) : locate(s, p.location, device);
}

// Whether the program sees it by way of this device.
bool is_seen(Session* s, CUdeviceptr pointer, const Device* d) {
  uint64_t start;
  VirtualMemory::Mapping mapping;
  return s->virtual_memory.find(pointer, &start, &mapping) && mapping.seen && mapping.device == d;
}

// The program's own access. What its memory is moved by is the vGPU's access, which comes with it.
CUresult set_host_access(Session* s, CUdeviceptr pointer, size_t bytes, unsigned flags) {
  uint64_t start;
  VirtualMemory::Mapping mapping;
  if (flags == CU_MEM_ACCESS_FLAGS_PROT_READ) return CUDA_ERROR_NOT_SUPPORTED;
  if (!s->virtual_memory.find(pointer, &start, &mapping)) return CUDA_ERROR_INVALID_VALUE;
  if (!mapping.of_host) return CUDA_ERROR_NOT_SUPPORTED;
  const bool seen = flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  for (auto& d : s->devices())
    if (const CUresult e = seen ? CUDA_SUCCESS : wait_idle(s, d.get()); e != CUDA_SUCCESS) return e;
  if (seen)
    if (const CUresult e = s->virtual_memory.set_access(pointer, bytes, *mapping.device,
                                                        CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        e != CUDA_SUCCESS)
      return e;
  return s->virtual_memory.show(pointer, bytes, seen);
}

}  // namespace

extern "C" {

CUresult cuMemAddressReserve(CUdeviceptr* pointer, size_t bytes, size_t alignment,
                             CUdeviceptr requested, unsigned long long flags) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  if (!pointer || bytes == 0 || bytes % kHostPage || requested % kHostPage || flags != 0 ||
      alignment & (alignment - 1))
    return CUDA_ERROR_INVALID_VALUE;
  uint64_t address = 0;
  const CUresult e = s->virtual_memory.reserve(*home_of(s), bytes, alignment, requested, &address);
  if (e == CUDA_SUCCESS) *pointer = address;
  return e;
}

CUresult cuMemAddressFree(CUdeviceptr pointer, size_t bytes) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  return s->virtual_memory.unreserve(pointer, bytes);
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes,
                     const CUmemAllocationProp* properties, unsigned long long flags) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  if (!handle || !properties || flags != 0 || !whole(bytes)) return CUDA_ERROR_INVALID_VALUE;
  Device* d;
  if (const CUresult e = check(s, *properties, &d); e != CUDA_SUCCESS) return e;
  CUmemAllocationProp granted = *properties;
  granted.allocFlags.gpuDirectRDMACapable = 0;
  uint64_t id;
  CUresult e = s->virtual_memory.create(*d, bytes, granted, &id);
  for (const bool wait : {false, true})
    if (e == CUDA_ERROR_OUT_OF_MEMORY && d->make_room(wait))
      e = s->virtual_memory.create(*d, bytes, granted, &id);
  if (e == CUDA_SUCCESS) *handle = id;
  return e;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  return s->virtual_memory.release(handle);
}

CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  if (flags != 0 || offset != 0 || !whole(bytes) || pointer % kGranularity)
    return CUDA_ERROR_INVALID_VALUE;
  return s->virtual_memory.map(pointer, bytes, handle);
}

// Of memory in use it would end the context, so it comes behind the work of the GPU: at once where
// that is known to be done, as it is when the program has synchronised.
CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  VirtualMemory::Mapping mapping;
  uint64_t start;
  if (!s->virtual_memory.whole_mappings(pointer, bytes) ||
      !s->virtual_memory.find(pointer, &start, &mapping))
    return CUDA_ERROR_INVALID_VALUE;
  for (auto& d : s->devices())
    if (const CUresult e = wait_idle(s, d.get()); e != CUDA_SUCCESS) return e;
  if (const CUresult e = s->managed.disown(pointer, bytes); e != CUDA_SUCCESS) return e;
  return s->virtual_memory.unmap(pointer, bytes);
}

CUresult cuMemSetAccess(CUdeviceptr pointer, size_t bytes, const CUmemAccessDesc* access,
                        size_t count) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  if (!access || count == 0) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    const unsigned flags = access[i].flags;
    if (flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
        flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
      return CUDA_ERROR_INVALID_VALUE;
    if (is_on_host(access[i].location)) {
      if (const CUresult e = set_host_access(s, pointer, bytes, flags); e != CUDA_SUCCESS) return e;
      continue;
    }
    Device* d;
    if (const CUresult e = locate(s, access[i].location, &d); e != CUDA_SUCCESS) return e;
    if (flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE && is_seen(s, pointer, d))
      return CUDA_ERROR_NOT_SUPPORTED;
    if (flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
      if (const CUresult e = wait_idle(s, d); e != CUDA_SUCCESS) return e;
    if (const CUresult e = s->virtual_memory.set_access(pointer, bytes, *d, access[i].flags);
        e != CUDA_SUCCESS)
      return e;
  }
  return CUDA_SUCCESS;
}

CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location,
                        CUdeviceptr pointer) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  if (!flags || !location) return CUDA_ERROR_INVALID_VALUE;
  VirtualMemory::Mapping mapping;
  uint64_t start;
  const bool mapped = s->virtual_memory.find(pointer, &start, &mapping);
  if (is_on_host(*location)) {
    if (!mapped) return CUDA_ERROR_INVALID_VALUE;
    *flags = mapping.seen ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
  }
  Device* d;
  if (const CUresult e = locate(s, *location, &d); e != CUDA_SUCCESS) return e;
  if (!mapped) return CUDA_ERROR_INVALID_VALUE;
  const auto it = mapping.access.find(d->index);
  *flags = it == mapping.access.end() ? CU_MEM_ACCESS_FLAGS_PROT_NONE : it->second;
  return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* properties,
                                       CUmemAllocationGranularity_flags option) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  if (!granularity || !properties ||
      (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM &&
       option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED))
    return CUDA_ERROR_INVALID_VALUE;
  Device* d;
  if (const CUresult e = check(s, *properties, &d); e != CUDA_SUCCESS) return e;
  *granularity = kGranularity;
  return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties,
                                                CUmemGenericAllocationHandle handle) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  if (!properties) return CUDA_ERROR_INVALID_VALUE;
  return s->virtual_memory.properties(handle, properties);
}

CUresult cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  if (!can_share(s)) return CUDA_ERROR_NOT_SUPPORTED;
  if (!shareable || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  return s->virtual_memory.export_to(handle, static_cast<int*>(shareable));
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shareable,
                                        CUmemAllocationHandleType type) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  if (!can_share(s)) return CUDA_ERROR_NOT_SUPPORTED;
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  uint64_t id;
  const CUresult e =
      s->virtual_memory.import_from(static_cast<int>(reinterpret_cast<intptr_t>(shareable)), &id);
  if (e == CUDA_SUCCESS) *handle = id;
  return e;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  uint64_t id;
  const CUresult e = s->virtual_memory.retain(reinterpret_cast<uint64_t>(address), &id);
  if (e == CUDA_SUCCESS) *handle = id;
  return e;
}

}  // extern "C"
