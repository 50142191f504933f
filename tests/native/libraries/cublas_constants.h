// SPDX-License-Identifier: Apache-2.0
// What of cuBLAS's and cuBLASLt's enumerations the tests of the forwarding libraries name.
#pragma once

#include <cstdint>

namespace sluice::test {

// CUBLAS_STATUS_…
inline constexpr int32_t kNotInitialized = 1, kInvalidValue = 7, kFailed = 13, kNotSupported = 15;
inline constexpr int32_t kBatchCount = 5;  // CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT
// CUBLASLT_MATMUL_DESC_…
inline constexpr int32_t kPointerMode = 2, kTransA = 3, kTransB = 4, kEpilogue = 7,
                         kBiasPointer = 8, kAuxPointer = 11;
inline constexpr int32_t kMaxWorkspace = 1;  // CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES

}  // namespace sluice::test
