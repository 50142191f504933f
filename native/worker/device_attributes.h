// SPDX-License-Identifier: Apache-2.0
// What a vGPU's attributes say: the driver's own values, less what they promise and Sluice does not
// carry. Programs decide by them which way they go, so one that is wrong sends them into a refusal.
#pragma once

#include <cstdint>

#include "abi/cuda_driver.h"

namespace sluice::worker {

struct SharedWithClient {
  bool host_memory = false;  // pinned memory is in the channel, so the GPU reaches it
  bool host = false;         // client and worker run on one machine
};

// `attributes` is indexed by CUdevice_attribute.
void tell_the_truth(int32_t* attributes, SharedWithClient shared);

}  // namespace sluice::worker
