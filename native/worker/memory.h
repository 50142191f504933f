// SPDX-License-Identifier: Apache-2.0
// What the two ways to device memory share: whole slabs (memory.cc) and the virtual memory API
// (virtual_memory.cc). Both keep one list of mappings per window, so that neither can map what the
// other has backed. The caller holds the vGPU's mutex.
#pragma once

#include "worker/session.h"

namespace sluice::worker {

inline constexpr uint64_t kGranularity = 2ull << 20;
inline constexpr size_t kMaxMappings = 1 << 20;

// Whether the range is one that could be mapped: whole slabs of this window.
bool in_window(const Vgpu& v, uint64_t address, uint64_t bytes);
// Whether nothing backs any of it yet.
bool free_for_mapping(const Vgpu& v, uint64_t address, uint64_t bytes);
CUmemAllocationProp physical_memory_on(const Gpu& gpu);
// To read from there and write.
CUmemAccessDesc full_access_of(const Gpu& gpu);
// New memory of the GPU behind addresses that are reserved, with the access that `give_access`
// gives; nothing of it stays where one of these fails.
template <class GiveAccess>
CUresult map_new(const Driver& d, const Gpu& gpu, uint64_t address, uint64_t bytes,
                 CUmemGenericAllocationHandle* handle, GiveAccess give_access) {
  const CUmemAllocationProp prop = physical_memory_on(gpu);
  CUresult e = d.cuMemCreate(handle, bytes, &prop, 0);
  if (e != CUDA_SUCCESS) return e;
  e = d.cuMemMap(address, bytes, 0, *handle, 0);
  if (e == CUDA_SUCCESS) {
    e = give_access();
    if (e != CUDA_SUCCESS) d.cuMemUnmap(address, bytes);
  }
  if (e != CUDA_SUCCESS) d.cuMemRelease(*handle);
  return e;
}
// The kind of compression that the driver granted.
uint32_t compression_of(Session& s, CUmemGenericAllocationHandle handle);
// Whether the client may take `bytes` of the vGPU's memory. More than the vGPU has ends the
// session, as a client of ours counts itself. So much that only what libraries have taken is in the
// way is an error of the session, out of memory: over TCP a client may learn of that too late.
bool may_take(Session& s, const Vgpu& v, uint64_t bytes, const char* what, Reply& reply);
// Memory that was charged is gone; a job's is the whole job's again.
void uncharge(Session& s, Vgpu& v, uint64_t bytes);

}  // namespace sluice::worker
