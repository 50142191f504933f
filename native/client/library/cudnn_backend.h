// SPDX-License-Identifier: Apache-2.0
// cuDNN's backend API, which libcudnn.so.9 hands to libcuda.so.1 as it is: same parameters, same
// results (cudnnStatus_t).
#pragma once

#include <cstdint>

#include "client/library/call.h"

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
}
