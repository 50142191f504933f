// SPDX-License-Identifier: Apache-2.0
// Where device memory lies in the tests of the client's allocators.
#pragma once

#include "client/core/device_memory.h"

namespace sluice::client {

inline constexpr uint64_t kSlab = DeviceMemory::kSlab;
inline constexpr uint64_t kWindow = 0x200000000000, kWindowBytes = 1ull << 40;

}  // namespace sluice::client
