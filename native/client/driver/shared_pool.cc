// SPDX-License-Identifier: Apache-2.0
// Memory pools that several processes share: arguments and handles. What is told to other processes
// is core/pool_roster.h, what of theirs is open here core/imported_pool.h.
#include <cstring>
#include <mutex>

#include "client/core/addresses.h"
#include "client/core/enter.h"
#include "client/core/imported_pool.h"
#include "client/core/session.h"
#include "client/driver/across_nodes.h"
#include "client/driver/transfer.h"
#include "client/objects/device.h"
#include "client/objects/pool.h"

using namespace sluice::client;
namespace wire = sluice::wire;

extern "C" {

CUresult cuMemPoolExportToShareableHandle(void* shareable, CUmemoryPool handle,
                                          CUmemAllocationHandleType type,
                                          unsigned long long flags) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  if (!can_share(s)) return CUDA_ERROR_NOT_SUPPORTED;
  const PoolHandle* pool = s->pools.find(handle);
  if (!shareable || !pool || pool->imported || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (!pool->device) return CUDA_ERROR_INVALID_VALUE;  // none of the host's is made to be shared
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  return pool->device->pools.export_pool(pool->pool, static_cast<int*>(shareable));
}

CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool* handle, void* shareable,
                                            CUmemAllocationHandleType type,
                                            unsigned long long flags) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  if (!can_share(s)) return CUDA_ERROR_NOT_SUPPORTED;
  if (!handle || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  ImportedPool* pool;
  const CUresult e =
      s->imported_pools.open(static_cast<int>(reinterpret_cast<intptr_t>(shareable)), &pool);
  if (e != CUDA_SUCCESS) return e;
  static std::mutex making;  // two threads import it for the first time
  std::lock_guard lock(making);
  if (!pool->handle) {
    PoolHandle* made = s->pools.create(&pool->handle);
    if (!made) {
      pool->handle = 0;
      s->imported_pools.close(pool);
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *made = {pool->device, nullptr, pool};
  }
  *handle = reinterpret_cast<CUmemoryPool>(pool->handle);
  return CUDA_SUCCESS;
}

CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData* data, CUdeviceptr pointer) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  Device* d = device_of_address(s, pointer);
  if (!data || !d) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult e = s->fences.show_memory(); e != CUDA_SUCCESS) return e;
  const auto share = [&](uint64_t chunk, wire::SharedMemory* shared) {
    return s->ask(*d, wire::kShareMemory, wire::ShareMemory{chunk}, shared);
  };
  PointerTicket ticket;
  const CUresult e = d->pools.export_pointer(pointer, share, &ticket);
  if (e != CUDA_SUCCESS) return e;
  std::memset(data, 0, sizeof *data);
  std::memcpy(data, &ticket, sizeof ticket);
  return CUDA_SUCCESS;
}

CUresult cuMemPoolImportPointer(CUdeviceptr* pointer, CUmemoryPool handle,
                                CUmemPoolPtrExportData* data) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  const PoolHandle* pool = s->pools.find(handle);
  if (!pointer || !data || !pool || !pool->imported) return CUDA_ERROR_INVALID_VALUE;
  PointerTicket ticket;
  std::memcpy(static_cast<void*>(&ticket), data, sizeof ticket);
  uint64_t address = 0;
  const CUresult e = s->imported_pools.import(pool->imported, ticket, &address);
  if (e == CUDA_SUCCESS) *pointer = address;
  return e;
}

}  // extern "C"
