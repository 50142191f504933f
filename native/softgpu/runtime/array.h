// SPDX-License-Identifier: Apache-2.0
// Arrays: rows of elements in device memory, which copies reach and nothing else, as there are no
// textures.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#pragma GCC visibility push(default)
#include "abi/cuda_driver.h"
#pragma GCC visibility pop

namespace sluice::softgpu {

struct Array {
  CUdeviceptr base = 0;
  size_t row_bytes = 0, rows = 1, slices = 1;
};

// Nothing: there is no such array.
std::optional<Array> array_from(CUarray handle);

}  // namespace sluice::softgpu
