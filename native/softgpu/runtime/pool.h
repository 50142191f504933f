// SPDX-License-Identifier: Apache-2.0
// Memory pools of stream-ordered allocation: their attributes and how much of the device is in use
// through each. A pool keeps nothing back, so what it reserves is what is in use. Called by
// api/pool.cc and by whatever frees an allocation.
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

  // `file`: the memory of one that processes share.
  CUmemoryPool create(int device, std::shared_ptr<PoolFile> file = nullptr);
  bool destroy(CUmemoryPool handle);  // false: unknown, or a device's default pool
  CUmemoryPool standard(int device);
  CUmemoryPool current(int device);
  bool set_current(int device, CUmemoryPool handle);
  std::shared_ptr<PoolFile> file_of(CUmemoryPool handle);
  // The device of a pool, -1 if the handle is none.
  int device_of(CUmemoryPool handle);
  bool set_attribute(CUmemoryPool handle, CUmemPool_attribute which, uint64_t value);
  bool attribute(CUmemoryPool handle, CUmemPool_attribute which, uint64_t& value);

  void took(CUmemoryPool handle, uint64_t bytes);
  // An allocation of any kind has gone.
  void gone(const Allocation& allocation);

 private:
  struct State;
  Pools();
  State* const state_;
};

// Of cuMemAlloc and pools: takes it out of every table and gives the memory back to its device.
void release_device_allocation(const Allocation& allocation);

}  // namespace sluice::softgpu
