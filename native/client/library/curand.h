// SPDX-License-Identifier: Apache-2.0
// What libcurand.so.10 asks of libcuda.so.1 beside the calls of its table. All return
// curandStatus_t.
#pragma once

#include "client/library/call.h"
#include "wire/curand.h"

extern "C" {
// Numbers of a generator in host memory, copied to `out`; waits until they are there.
SLUICE_INTERNAL int32_t sluice_library_curand_host(const sluice::wire::CurandHost* call, void* out);
// One of cuRAND's tables, as the node's library has it; it stays for as long as the process.
SLUICE_INTERNAL int32_t sluice_library_curand_table(uint32_t which, uint32_t set, void** table);
// Makes a distribution, or ends the one that is named.
SLUICE_INTERNAL int32_t
sluice_library_curand_distribution(const sluice::wire::CurandDistribution* call, uint64_t* address);
}
