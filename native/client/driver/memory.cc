// SPDX-License-Identifier: Apache-2.0
// Allocation: device memory from the vGPU's window, pinned memory from the arena; both without
// asking anybody.
#include <cstring>

#include "client/core/addresses.h"
#include "client/driver/graph.h"
#include "client/driver/wait.h"

using namespace sluice::client;
namespace wire = sluice::wire;

namespace {

constexpr unsigned kHostAllocFlags =
    CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;

}  // namespace

extern "C" {

CUresult cuMemAlloc_v2(CUdeviceptr* pointer, size_t bytes) {
  Session* s;
  Device* d;
  if (const CUresult e = enter(&s, &d); e != CUDA_SUCCESS) return e;
  if (const CUresult e = s->captures.unsafe(); e != CUDA_SUCCESS) return e;
  if (!pointer || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  uint64_t address = 0;
  auto result = d->memory.allocate(bytes, &address);
  for (const bool wait : {false, true})
    if (result == DeviceMemory::Result::kOutOfMemory && d->make_room(wait))
      result = d->memory.allocate(bytes, &address);
  if (result == DeviceMemory::Result::kDone) *pointer = address;
  return s->outcome(result, *d);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr* pointer, size_t* pitch, size_t width, size_t height,
                            unsigned int element) {
  if (!pitch || (element != 4 && element != 8 && element != 16)) return CUDA_ERROR_INVALID_VALUE;
  const size_t rounded = wire::round_up(width, 512);
  if (width == 0 || height == 0 || rounded > ~size_t{0} / height) return CUDA_ERROR_INVALID_VALUE;
  const CUresult e = cuMemAlloc_v2(pointer, rounded * height);
  if (e == CUDA_SUCCESS) *pitch = rounded;
  return e;
}

CUresult cuMemFree_v2(CUdeviceptr pointer) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  if (const CUresult e = s->captures.unsafe(); e != CUDA_SUCCESS) return e;
  if (pointer == 0) return CUDA_SUCCESS;
  if (s->host_pools.free(pointer, nullptr)) return CUDA_SUCCESS;
  AddressRange range;
  if (!find_range(s, pointer, &range) || range.start != pointer) return CUDA_ERROR_INVALID_VALUE;
  Device* d = range.device;
  if (range.managed) {
    // Kernels of any device reach it.
    for (auto& each : s->devices())
      if (const CUresult e = wait_idle(s, each.get()); e != CUDA_SUCCESS) return e;
    return s->managed.free(pointer);
  }
  if (s->sync_memops.any()) s->sync_memops.set(pointer, false);
  if (range.graphs)
    return d->graph_memory.free(pointer, nullptr) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  // Of stream-ordered memory CUDA takes for granted that nothing uses it any more.
  if (range.pooled) return d->pools.free_now(pointer) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  if (range.imported)
    return s->imported_pools.free(pointer) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  if (const CUresult e = wait_unused(s, d); e != CUDA_SUCCESS) return e;
  return s->outcome(d->memory.free(pointer), *d);
}

CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  Session* s;
  Device* d;
  if (const CUresult e = enter(&s, &d); e != CUDA_SUCCESS) return e;
  uint64_t available, total;
  d->memory.info(&available, &total);
  if (free_bytes) *free_bytes = available;
  if (total_bytes) *total_bytes = total;
  return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* size, CUdeviceptr pointer) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  AddressRange range;
  if (!find_range(s, pointer, &range)) {
    // Pinned memory that the device reaches by the same pointer.
    const auto host = s->host_memory().find(reinterpret_cast<void*>(pointer));
    if (host.place != HostMemory::Place::kArena && !host.pooled) return CUDA_ERROR_NOT_FOUND;
    range.start = host.start;
    range.bytes = host.bytes;
  }
  if (base) *base = range.start;
  if (size) *size = range.bytes;
  return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void** pointer, size_t bytes, unsigned int flags) {
  Session* s;
  Device* d;
  if (const CUresult e = enter(&s, &d); e != CUDA_SUCCESS) return e;
  if (const CUresult e = s->captures.unsafe(); e != CUDA_SUCCESS) return e;
  if (!pointer || bytes == 0 || flags & ~kHostAllocFlags) return CUDA_ERROR_INVALID_VALUE;
  if (s->host_memory().allocate(bytes, flags, d->index, pointer)) return CUDA_SUCCESS;
  return s->sticky() != CUDA_SUCCESS ? s->sticky() : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemAllocHost_v2(void** pointer, size_t bytes) {
  return cuMemHostAlloc(pointer, bytes, 0);
}

CUresult cuMemFreeHost(void* pointer) {
  Session* s;
  Device* d;
  if (const CUresult e = enter(&s, &d); e != CUDA_SUCCESS) return e;
  if (const CUresult e = s->captures.unsafe(); e != CUDA_SUCCESS) return e;
  const auto range = s->host_memory().find(pointer);
  if (range.start != reinterpret_cast<uint64_t>(pointer) ||
      range.place == HostMemory::Place::kPageable || range.pooled)
    return CUDA_ERROR_INVALID_VALUE;
  for (auto& device : s->devices())
    if (const CUresult e = wait_idle(s, device.get()); e != CUDA_SUCCESS) return e;
  s->channel().settle();  // nothing is sent from there any more, be the session lost
  return s->host_memory().release(pointer) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemHostRegister_v2(void* pointer, size_t bytes, unsigned int flags) {
  Session* s;
  Device* d;
  if (const CUresult e = enter(&s, &d); e != CUDA_SUCCESS) return e;
  if (const CUresult e = s->captures.unsafe(); e != CUDA_SUCCESS) return e;
  if (!pointer || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (s->host_memory().in_arena(pointer, bytes)) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  return s->host_memory().add_registered(pointer, bytes, flags, d->index)
             ? CUDA_SUCCESS
             : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
}

CUresult cuMemHostUnregister(void* pointer) {
  Session* s;
  Device* d;
  if (const CUresult e = enter(&s, &d); e != CUDA_SUCCESS) return e;
  if (const CUresult e = s->captures.unsafe(); e != CUDA_SUCCESS) return e;
  if (s->host_memory().drop_registered(pointer)) return CUDA_SUCCESS;
  // Within what was registered, but not where it begins.
  const auto range = s->host_memory().find(pointer);
  return range.place == HostMemory::Place::kRegistered ? CUDA_ERROR_INVALID_VALUE
                                                       : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* device, void* pointer, unsigned int flags) {
  Session* s;
  Device* d;
  if (const CUresult e = enter(&s, &d); e != CUDA_SUCCESS) return e;
  if (!device || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const auto range = s->host_memory().find(pointer);
  if (range.place == HostMemory::Place::kPageable) return CUDA_ERROR_INVALID_VALUE;
  // Only arena memory is the same memory on both sides.
  if (range.place != HostMemory::Place::kArena) return CUDA_ERROR_NOT_SUPPORTED;
  *device = reinterpret_cast<CUdeviceptr>(pointer);
  return CUDA_SUCCESS;
}

CUresult cuMemHostGetFlags(unsigned int* flags, void* pointer) {
  Session* s;
  Device* d;
  if (const CUresult e = enter(&s, &d); e != CUDA_SUCCESS) return e;
  const auto range = s->host_memory().find(pointer);
  if (!flags || range.place == HostMemory::Place::kPageable || range.pooled)
    return CUDA_ERROR_INVALID_VALUE;
  *flags = range.flags | CU_MEMHOSTALLOC_DEVICEMAP;
  return CUDA_SUCCESS;
}

}  // extern "C"
