// SPDX-License-Identifier: Apache-2.0
// Memory pools of stream-ordered allocation, on devices and of pinned host memory: their attributes
// and how much is in use through each. A pool keeps nothing back, so what it reserves is what is in
// use. Called by api/pool.cc and by whatever frees an allocation.
#pragma once

#include <cstdint>
#include <memory>

#include "abi/cuda_driver.h"
#include "softgpu/memory/allocations.h"
#include "softgpu/runtime/pool_file.h"

namespace sluice::softgpu {

class Pools {
 public:
  static Pools& instance();

  // Where a pool's memory is: a device by its ordinal, the host, or one of its NUMA nodes.
  static constexpr int kNowhere = -1, kHost = -2;
  static int node(int number) { return kHost - 1 - number; }
  static bool on_host(int place) { return place <= kHost; }

  // `file`: the memory of one that processes share. `limit`: of the bytes in use, of one on the
  // host; 0: none.
  CUmemoryPool create(int place, std::shared_ptr<PoolFile> file = nullptr, uint64_t limit = 0);
  bool destroy(CUmemoryPool handle);  // false: unknown, or a place's default pool
  CUmemoryPool standard(int place);
  CUmemoryPool current(int place);
  bool set_current(int place, CUmemoryPool handle);
  std::shared_ptr<PoolFile> file_of(CUmemoryPool handle);
  // kNowhere if the handle is none.
  int place_of(CUmemoryPool handle);
  // Which devices use a pool on the host: bit by ordinal.
  bool set_user(CUmemoryPool handle, int device, bool on);
  bool used_by(CUmemoryPool handle, int device);
  bool set_attribute(CUmemoryPool handle, CUmemPool_attribute which, uint64_t value);
  bool attribute(CUmemoryPool handle, CUmemPool_attribute which, uint64_t& value);

  // False: its limit does not allow it.
  bool took(CUmemoryPool handle, uint64_t bytes);
  // An allocation of any kind has gone.
  void gone(const Allocation& allocation);

 private:
  struct State;
  Pools();
  State* const state_;
};

// Of cuMemAlloc and pools, on devices and on the host: takes it out of every table and gives the
// memory back.
void release_device_allocation(const Allocation& allocation);

}  // namespace sluice::softgpu
