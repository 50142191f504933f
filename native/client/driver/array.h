// SPDX-License-Identifier: Apache-2.0
// Arrays as the rest of client/driver sees them: what a handle means, copies with an array at one
// end or both (array_copy.cc), and the end of a device's arrays and textures when it is reset.
#pragma once

#include "abi/cuda_driver.h"

namespace sluice::client {

class Session;
struct Device;
struct Stream;

// Every side is memory or an array as its memory type says; `wait` as in transfer.h.
CUresult copy_with_arrays(Session* s, Stream* stream, const CUDA_MEMCPY3D& p, bool wait);

template <class Params>
bool names_array(const Params& p) {
  return p.srcMemoryType == CU_MEMORYTYPE_ARRAY || p.dstMemoryType == CU_MEMORYTYPE_ARRAY;
}

// The device has come to rest.
CUresult end_arrays_of(Session* s, Device* d);
void forget_textures_of(Session* s, Device* d);

}  // namespace sluice::client
