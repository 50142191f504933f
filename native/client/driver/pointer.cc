// SPDX-License-Identifier: Apache-2.0
// What a pointer is: answered from the windows, the arena and the registered ranges.
#include <cstring>

#include "client/core/addresses.h"
#include "client/core/enter.h"
#include "client/core/imported_pool.h"
#include "client/core/memory_pool.h"
#include "client/core/session.h"
#include "client/driver/transfer.h"
#include "client/driver/wait.h"
#include "client/objects/device.h"
#include "client/objects/pool.h"

using namespace sluice::client;

namespace {

struct Facts {
  bool known = false;
  CUmemorytype type = CU_MEMORYTYPE_HOST;
  Device* device = nullptr;
  uint64_t start = 0, bytes = 0;
  bool plain = false;  // of cuMemAlloc
  bool managed = false;
  bool same_address = false;  // device and host use the same pointer
  bool of_host_pool = false;
};

Facts facts_of(Session* s, uint64_t address) {
  Facts f;
  if (Device* d = device_of_address(s, address)) {
    AddressRange range;
    f.known = find_range(s, address, &range);
    f.type = CU_MEMORYTYPE_DEVICE;
    f.device = f.known ? range.device : d;
    f.start = range.start;
    f.bytes = range.bytes;
    f.plain = range.plain;
    f.managed = range.managed;
    return f;
  }
  if (ModuleGlobal global; s->module_globals.find(address, 1, &global)) {
    f.known = true;
    f.type = CU_MEMORYTYPE_DEVICE;
    f.device = global.device;
    f.start = global.start;
    f.bytes = global.bytes;
    f.managed = s->managed.any() && s->managed.contains(address);
    return f;
  }
  const auto range = s->host_memory().find(reinterpret_cast<void*>(address));
  if (range.place == HostMemory::Place::kPageable) return f;
  f.known = true;
  f.device = s->devices()[range.device].get();
  f.start = range.start;
  f.bytes = range.bytes;
  f.of_host_pool = range.pooled;
  f.same_address = range.place == HostMemory::Place::kArena || range.pooled;
  return f;
}

template <class T>
CUresult put(void* to, T value) {
  std::memcpy(to, &value, sizeof value);
  return CUDA_SUCCESS;
}

// The pool that stream-ordered memory came from; nullptr for other memory, and when only the memory
// is left of it.
CUmemoryPool pool_of(Session* s, const Facts& f) {
  uint64_t start, bytes, handle = 0;
  MemoryPool* pool = nullptr;
  ImportedPool* imported = nullptr;
  if (f.of_host_pool ? s->host_pools.all().find(f.start, &start, &bytes, &pool)
                     : f.type == CU_MEMORYTYPE_DEVICE &&
                           (f.device->pools.find(f.start, &start, &bytes, &pool) ||
                            s->imported_pools.find(f.start, &start, &bytes, &imported)))
    s->pools.for_each([&](uint64_t id, const PoolHandle& p) {
      if (pool ? p.pool == pool : p.imported == imported) handle = id;
    });
  return reinterpret_cast<CUmemoryPool>(handle);
}

// What is mapped at an address, and what the current device may do there: memory that no mapping of
// the application's made is one, for everybody to read and to write.
struct Mapped {
  uint64_t start, bytes;
  CUmemAccess_flags access;
};
Mapped mapping_of(Session* s, uint64_t address, const Facts& f) {
  VirtualMemory::Mapping mapping;
  uint64_t start;
  Device* current = nullptr;
  if (!s->virtual_memory.find(address, &start, &mapping))
    return {f.start, f.bytes, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  if (enter(&s, &current) != CUDA_SUCCESS) current = f.device;
  const auto it = mapping.access.find(current->index);
  return {start, mapping.bytes,
          it == mapping.access.end() ? CU_MEM_ACCESS_FLAGS_PROT_NONE
                                     : static_cast<CUmemAccess_flags>(it->second)};
}

CUresult get(void* to, CUpointer_attribute a, Session* s, uint64_t address, const Facts& f) {
  switch (a) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return put(to, reinterpret_cast<CUcontext>(f.device->primary));
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return put(to, static_cast<unsigned>(f.type));
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      if (f.type == CU_MEMORYTYPE_HOST && !f.same_address) return CUDA_ERROR_INVALID_VALUE;
      return put(to, static_cast<CUdeviceptr>(address));
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (f.type == CU_MEMORYTYPE_DEVICE && !f.managed) return CUDA_ERROR_INVALID_VALUE;
      return put(to, reinterpret_cast<void*>(address));
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return put(to, static_cast<unsigned long long>(f.start >> 9));
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return put(to, f.managed ? 1u : 0u);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return put(to, static_cast<int>(f.device->index));
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return put(to, f.plain ? 1u : 0u);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return put(to, static_cast<CUdeviceptr>(f.start));
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return put(to, static_cast<size_t>(f.bytes));
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return put(to, 1u);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return put(to, 0ull);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return put(to, pool_of(s, f));
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      return put(to, static_cast<size_t>(mapping_of(s, address, f).bytes));
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      return put(to, static_cast<CUdeviceptr>(mapping_of(s, address, f).start));
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return put(to, mapping_of(s, address, f).access);
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      return put(to, 0u);
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      return put(to, s->sync_memops.any() && s->sync_memops.has(f.start) ? 1u : 0u);
    default:
      break;
  }
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace

extern "C" {

CUresult cuPointerGetAttribute(void* to, CUpointer_attribute a, CUdeviceptr pointer) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  if (!to) return CUDA_ERROR_INVALID_VALUE;
  const Facts f = facts_of(s, pointer);
  return f.known ? get(to, a, s, pointer, f) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuPointerSetAttribute(const void* value, CUpointer_attribute a, CUdeviceptr pointer) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  if (!value || a != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) return CUDA_ERROR_INVALID_VALUE;
  unsigned on;
  std::memcpy(&on, value, sizeof on);
  const Facts f = facts_of(s, pointer);
  if (!f.known || on > 1) return CUDA_ERROR_INVALID_VALUE;
  // What such functions have begun before is over when this returns.
  if (on)
    if (const CUresult e = wait_idle(s, f.device); e != CUDA_SUCCESS) return e;
  s->sync_memops.set(f.start, on);
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute* attributes, void** data,
                                CUdeviceptr pointer) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  if (!attributes || !data) return CUDA_ERROR_INVALID_VALUE;
  const Facts f = facts_of(s, pointer);
  for (unsigned i = 0; i < count; ++i) {
    if (f.known && get(data[i], attributes[i], s, pointer, f) == CUDA_SUCCESS) continue;
    // CUDA answers unknown pointers with zeros here, and with -2 as the ordinal.
    switch (attributes[i]) {
      case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        put(data[i], -2);
        break;
      case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      case CU_POINTER_ATTRIBUTE_MAPPED:
        put(data[i], 0u);
        break;
      default:
        put(data[i], uint64_t{0});
    }
  }
  return CUDA_SUCCESS;
}

}  // extern "C"
