// SPDX-License-Identifier: Apache-2.0
// What the processes that use one software GPU have of its memory together, where
// SLUICE_SOFTGPU_SHARED_FILE names a file that they all may write: so memory is short for one of
// them because of what the others have, as on a card. Without it each process sees the whole
// device. The file has words for some processes; a process that ends gives its words back by the
// lock that it holds on them, which the kernel drops. Owned by DeviceMemory.
#pragma once

#include <cstdint>

namespace sluice::softgpu {

class SharedUse {
 public:
  // Of the device with that number before CUDA_VISIBLE_DEVICES. nullptr: nothing is shared. A file
  // that cannot be used ends the process: who asked for it would measure something else.
  static SharedUse* of(int physical);

  // False: all have so much that there are not `bytes` left of `total`; nothing is taken.
  bool take(uint64_t bytes, uint64_t total);
  void give(uint64_t bytes);
  // By all processes.
  uint64_t used();

 private:
  explicit SharedUse(int physical) : physical_(physical) {}
  const int physical_;
};

}  // namespace sluice::softgpu
