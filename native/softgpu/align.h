// SPDX-License-Identifier: Apache-2.0
// Addresses and sizes up to the next multiple.
#pragma once

#include <cstdint>

namespace sluice::softgpu {

constexpr uint64_t align_up(uint64_t value, uint64_t to) { return (value + to - 1) / to * to; }

}  // namespace sluice::softgpu
