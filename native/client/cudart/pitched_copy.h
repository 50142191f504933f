// SPDX-License-Identifier: Apache-2.0
// The runtime's descriptions of two- and three-dimensional copies, told to the driver. Used by the
// copies themselves (memcpy_pitched.cc) and by graph nodes that hold one (graph_nodes.cc).
#pragma once

#include "client/cudart/driver.h"

namespace sluice::cudart {

// Bytes of an element of an array; 0 for formats that have none (block-compressed, planar).
size_t element_size(CUarray array);

inline CUarray native_array(cudaArray_const_t array) {
  return reinterpret_cast<CUarray>(const_cast<cudaArray*>(array));
}

// Where the ends of a copy of this kind are: false if there is no such kind.
bool memory_types(cudaMemcpyKind kind, CUmemorytype* source, CUmemorytype* destination);

cudaError_t native_copy(const cudaMemcpy3DParms& parameters, CUDA_MEMCPY3D* copy);

}  // namespace sluice::cudart
