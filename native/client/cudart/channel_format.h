// SPDX-License-Identifier: Apache-2.0
// What the runtime calls a channel format and the driver an array format. Used by arrays, textures
// and copies of arrays; owns nothing.
#pragma once

#include "client/cudart/driver.h"

namespace sluice::cudart {

// Fills Format and NumChannels. One, two or four channels of the same width.
cudaError_t to_native(const cudaChannelFormatDesc& desc, CUDA_ARRAY3D_DESCRIPTOR* native);
cudaError_t from_native(const CUDA_ARRAY3D_DESCRIPTOR& native, cudaChannelFormatDesc* desc);

// Bytes of one channel; 0 for formats whose elements are no rows of channels.
size_t channel_size(CUarray_format format);
// How a texture's element is read: only integers of up to 16 bits can be read as fractions, and
// only what is read as floating point can be filtered.
bool is_integer(CUarray_format format);

}  // namespace sluice::cudart
