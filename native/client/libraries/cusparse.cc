// SPDX-License-Identifier: Apache-2.0
// What of cuSPARSE needs no cuSPARSE: the stream of a handle.
#include "abi/cuda_driver.h"
#include "client/libraries/logger.h"
#include "client/library/call.h"
#include "library/objects.h"

SLUICE_PUBLIC int32_t cusparseGetStream(void* handle, CUstream* stream) {
  enum : int32_t { kSuccess = 0, kNotInitialized = 1, kInvalidValue = 3 };
  uint64_t value;
  if (!stream) return kInvalidValue;
  if (!sluice_library_stream(reinterpret_cast<uint64_t>(handle), sluice::library::k_cusparse,
                             &value))
    return kNotInitialized;
  *stream = reinterpret_cast<CUstream>(value);
  return kSuccess;
}

SLUICE_LOGGER(cusparse, "cuSPARSE")
