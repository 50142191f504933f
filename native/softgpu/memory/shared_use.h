// SPDX-License-Identifier: Apache-2.0
// What the processes that use one software GPU have of its memory together, where they share a file
// (shared_file.h): so memory is short for one of them because of what the others have, as on a
// card. Without it each process sees the whole device. A process that ends gives back what it had.
// Owned by DeviceMemory.
#pragma once

#include <cstdint>

namespace sluice::softgpu {

class SharedUse {
 public:
  // Of the device with that number before CUDA_VISIBLE_DEVICES. nullptr: nothing is shared.
  static SharedUse* of(int physical);

  // False: all have so much that there are not `bytes` left of `total`, and so many `besides`;
  // nothing is taken.
  bool take(uint64_t bytes, uint64_t total, uint64_t besides = 0);
  void give(uint64_t bytes);
  // By all processes; by this one.
  uint64_t used();
  uint64_t own();

 private:
  explicit SharedUse(int physical) : physical_(physical) {}
  const int physical_;
};

}  // namespace sluice::softgpu
