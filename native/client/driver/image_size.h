// SPDX-License-Identifier: Apache-2.0
// How long a code image is, which CUDA's loading functions are not told: fat binaries and ELF say
// it in their headers, PTX text ends with NUL.
#pragma once

#include <cstddef>

namespace sluice::client {

// 0 when the image is of no kind that CUDA loads. `start`: where the image proper begins (a fat
// binary's wrapper points elsewhere).
size_t image_size(const void* image, const void** start);

}  // namespace sluice::client
