// SPDX-License-Identifier: Apache-2.0
// The block size that fills the GPU best: tried from the largest down, in whole warps, with the
// answers that the session keeps. A callback that says how much shared memory a size takes runs
// here, in the program.
#include <algorithm>

#include "client/core/enter.h"
#include "client/driver/module.h"
#include "client/objects/device.h"

using namespace sluice::client;

extern "C" {

CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int* grid_size, int* block_size,
                                                   CUfunction function,
                                                   CUoccupancyB2DSize shared_for_block,
                                                   size_t shared, int limit, unsigned int flags) {
  Session* s;
  Device* d;
  if (const CUresult e = enter(&s, &d); e != CUDA_SUCCESS) return e;
  if (!grid_size || !block_size || limit < 0) return CUDA_ERROR_INVALID_VALUE;
  const Function* f = find_function(s, function);
  if (!f) return CUDA_ERROR_INVALID_HANDLE;
  const int32_t* device = d->record.attributes;
  const int warp = std::max(1, device[CU_DEVICE_ATTRIBUTE_WARP_SIZE]);
  const int per_multiprocessor = device[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR];
  int largest = std::min(device[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK],
                         f->record.attributes[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK]);
  if (limit != 0) largest = std::min(largest, limit);
  int best_threads = 0, best_blocks = 0, best_size = 0;
  for (int rounded = (largest + warp - 1) / warp * warp; rounded > 0; rounded -= warp) {
    const int size = std::min(rounded, largest);
    const size_t bytes = shared_for_block ? shared_for_block(size) : shared;
    int blocks = 0;
    const CUresult e =
        cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&blocks, function, size, bytes, flags);
    if (e != CUDA_SUCCESS) return e;
    if (size * blocks > best_threads) {
      best_threads = size * blocks;
      best_blocks = blocks;
      best_size = size;
    }
    if (best_threads >= per_multiprocessor) break;
  }
  *grid_size = best_blocks * device[CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT];
  *block_size = best_size;
  return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxPotentialBlockSize(int* grid_size, int* block_size, CUfunction function,
                                          CUoccupancyB2DSize shared_for_block, size_t shared,
                                          int limit) {
  return cuOccupancyMaxPotentialBlockSizeWithFlags(
      grid_size, block_size, function, shared_for_block, shared, limit, CU_OCCUPANCY_DEFAULT);
}

}  // extern "C"
