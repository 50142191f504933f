// SPDX-License-Identifier: Apache-2.0
// Arrays, and what reads them: textures and surfaces.
#pragma once

#include <cstdint>
#include <vector>

#include "abi/cuda_driver.h"
#include "wire/array_shape.h"

namespace sluice::client {

struct Device;

struct Array {
  Device* device = nullptr;
  wire::ArrayShape shape;
  uint64_t mipmapped = 0;  // the mipmapped array that it is a level of
};
struct MipmappedArray {
  Device* device = nullptr;
  wire::ArrayShape shape;
  std::vector<uint64_t> levels;  // handles of the levels that were asked for; 0: not yet
};

// A texture or a surface, by the driver's own number.
struct Texture {
  CUDA_RESOURCE_DESC resource{};
  CUDA_TEXTURE_DESC texture{};
  CUDA_RESOURCE_VIEW_DESC view{};
};

}  // namespace sluice::client
