// SPDX-License-Identifier: Apache-2.0
// What libnccl.so.2 asks of libcuda.so.1 beside the calls of its table. All return ncclResult_t.
#pragma once

#include <cstdint>

#include "client/library/call.h"
#include "wire/bodies/nccl.h"

extern "C" {
// How a communicator is to be made; what does not apply is zero.
struct sluice_library_nccl_making {
  sluice::wire::NcclHow how;
  int32_t ranks = 0, rank = 0, color = 0, key = 0, flags = 0;
  uint64_t parent = 0;
  const void* list = nullptr;  // unique ids or excluded ranks
  uint32_t count = 0;
  int32_t device = -1;           // the vGPU, or -1 for the current one
  const void* config = nullptr;  // ncclConfig_t
  void** target = nullptr;
};
SLUICE_INTERNAL int32_t sluice_library_nccl_make(const sluice_library_nccl_making* making);
SLUICE_INTERNAL int32_t sluice_library_nccl_group_start();
// `run` false: what was collected is forgotten.
SLUICE_INTERNAL int32_t sluice_library_nccl_group_end(bool run);
SLUICE_INTERNAL int32_t sluice_library_nccl_device(uint64_t communicator, int32_t* device);
}
