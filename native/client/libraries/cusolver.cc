// SPDX-License-Identifier: Apache-2.0
// What of cuSOLVER needs no cuSOLVER: the streams of its handles.
#include "abi/cuda_driver.h"
#include "client/library/call.h"
#include "library/objects.h"

namespace {

enum Status : int32_t { kSuccess = 0, kNotInitialized = 1, kInvalidValue = 3 };

Status stream_of(void* handle, uint8_t type, CUstream* stream) {
  uint64_t value;
  if (!stream) return kInvalidValue;
  if (!sluice_library_stream(reinterpret_cast<uint64_t>(handle), type, &value))
    return kNotInitialized;
  *stream = reinterpret_cast<CUstream>(value);
  return kSuccess;
}

}  // namespace

SLUICE_PUBLIC int32_t cusolverDnGetStream(void* handle, CUstream* stream) {
  return stream_of(handle, sluice::library::k_cusolver_dn, stream);
}
SLUICE_PUBLIC int32_t cusolverSpGetStream(void* handle, CUstream* stream) {
  return stream_of(handle, sluice::library::k_cusolver_sp, stream);
}
