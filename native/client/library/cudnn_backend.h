// SPDX-License-Identifier: Apache-2.0
// What libcudnn.so.9 hands to libcuda.so.1: the backend API as it is, same parameters and results
// (cudnnStatus_t), and the CTC loss with labels in host memory.
#pragma once

#include <cstdint>

#include "client/library/call.h"
#include "wire/bodies/cudnn_ctc.h"

extern "C" {
SLUICE_INTERNAL int32_t sluice_library_backend_create(int32_t type, void** descriptor);
SLUICE_INTERNAL int32_t sluice_library_backend_destroy(void* descriptor);
SLUICE_INTERNAL int32_t sluice_library_backend_set(void* descriptor, int32_t name, int32_t type,
                                                   int64_t count, const void* elements);
SLUICE_INTERNAL int32_t sluice_library_backend_get(void* descriptor, int32_t name, int32_t type,
                                                   int64_t requested, int64_t* count,
                                                   void* elements);
SLUICE_INTERNAL int32_t sluice_library_backend_finalize(void* descriptor);
SLUICE_INTERNAL int32_t sluice_library_backend_execute(void* handle, void* plan, void* pack);
// `batch` comes from the descriptor of the probabilities.
SLUICE_INTERNAL int32_t sluice_library_ctc(const sluice::wire::CtcLoss* call, const int32_t* labels,
                                           const int32_t* label_lengths,
                                           const int32_t* input_lengths, uint64_t* workspace_bytes);
}
