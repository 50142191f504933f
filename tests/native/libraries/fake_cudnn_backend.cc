// SPDX-License-Identifier: Apache-2.0
// cuDNN's backend functions in the stand-in of cuDNN: they touch all memory that they are given and
// succeed. Compiled into it beside the generated functions.
#include <atomic>
#include <cstring>

#include "client/library/call.h"
#include "wire/cudnn_backend.h"

namespace {

std::atomic<uint64_t> g_made{0};

uint64_t bytes(int32_t type, int64_t count) {
  return sluice::wire::backend_element_bytes(static_cast<uint32_t>(type)) *
         static_cast<uint64_t>(count);
}

// Reads everything, so that a sanitizer sees what is not there.
uint8_t sum(const void* at, uint64_t n) {
  uint8_t all = 0;
  for (uint64_t i = 0; i < n; ++i) all ^= static_cast<const uint8_t*>(at)[i];
  return all;
}

volatile uint8_t g_sum;

}  // namespace

SLUICE_PUBLIC int32_t cudnnBackendCreateDescriptor(int32_t, void** descriptor) {
  *descriptor = reinterpret_cast<void*>((++g_made) * 64);
  return 0;
}
SLUICE_PUBLIC int32_t cudnnBackendDestroyDescriptor(void*) { return 0; }
SLUICE_PUBLIC int32_t cudnnBackendFinalize(void*) { return 0; }
SLUICE_PUBLIC int32_t cudnnBackendSetAttribute(void*, int32_t, int32_t type, int64_t count,
                                               const void* elements) {
  g_sum = sum(elements, bytes(type, count));
  return 0;
}
SLUICE_PUBLIC int32_t cudnnBackendGetAttribute(void*, int32_t, int32_t type, int64_t requested,
                                               int64_t* count, void* elements) {
  // More than there was room for, as cuDNN does when asked how many there are.
  *count = requested + 1;
  if (type != static_cast<int32_t>(sluice::wire::kBackendDescriptor) && elements)
    std::memset(elements, 7, bytes(type, requested));
  return 0;
}
SLUICE_PUBLIC int32_t cudnnBackendExecute(void*, void*, void*) { return 0; }
