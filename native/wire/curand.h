// SPDX-License-Identifier: Apache-2.0
// How much cuRAND makes, by what is asked for (native/api/bodies/curand.yaml).
#pragma once

#include "wire/bodies/curand.h"

namespace sluice::wire {

// Of one number, by CurandMakes.
inline constexpr uint32_t kCurandBytes[] = {4, 8, 4, 8, 4, 8, 4, 8, 4, 4, 0};

// Of a table, by CurandTable::which.
inline constexpr uint64_t kCurandTableBytes[] = {kCurandDimensions * 32 * 4,
                                                 kCurandDimensions * 64 * 8, kCurandDimensions * 4,
                                                 kCurandDimensions * 8};

}  // namespace sluice::wire
