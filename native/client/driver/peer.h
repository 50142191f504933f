// SPDX-License-Identifier: Apache-2.0
// Access of one vGPU to another's memory.
#pragma once

#include "abi/cuda_driver.h"

namespace sluice::client {

class Session;
struct Device;

// Gives `user` access to all memory of the owner's window, present and future.
CUresult use_memory_of(Session* s, Device* user, Device* owner);

}  // namespace sluice::client
