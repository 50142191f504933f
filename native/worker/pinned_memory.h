// SPDX-License-Identifier: Apache-2.0
// Pinned memory that all GPUs of a session can reach, by an address of their own.
#pragma once

#include <cstddef>
#include <memory>

#include "worker/driver.h"

namespace sluice::worker {

class PinnedMemory {
 public:
  // A context is current. nullptr: there is none.
  static std::unique_ptr<PinnedMemory> make(const Driver& driver, size_t bytes) {
    std::unique_ptr<PinnedMemory> made(new PinnedMemory(driver));
    constexpr auto kFlags = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
    if (driver.cuMemHostAlloc(&made->at_, bytes, kFlags) != CUDA_SUCCESS)
      return made->at_ = nullptr, nullptr;
    return driver.cuMemHostGetDevicePointer_v2(&made->device_, made->at_, 0) == CUDA_SUCCESS
               ? std::move(made)
               : nullptr;
  }
  ~PinnedMemory() {
    if (at_) driver_.cuMemFreeHost(at_);
  }
  PinnedMemory(const PinnedMemory&) = delete;

  void* at() const { return at_; }
  CUdeviceptr device() const { return device_; }

 private:
  explicit PinnedMemory(const Driver& driver) : driver_(driver) {}

  const Driver& driver_;
  void* at_ = nullptr;
  CUdeviceptr device_ = 0;
};

}  // namespace sluice::worker
