// SPDX-License-Identifier: Apache-2.0
// What of cuBLAS needs no cuBLAS: copies between host and device, and the stream of a handle.
#include <atomic>
#include <cstdio>

#include "abi/cuda_driver.h"
#include "client/library/call.h"
#include "library/objects.h"

namespace {

enum Status : int32_t { kSuccess = 0, kNotInitialized = 1, kInvalidValue = 7, kMappingError = 11 };

bool valid(int64_t rows, int64_t columns, int64_t element, int64_t lda, int64_t ldb) {
  return rows >= 0 && columns >= 0 && element > 0 && lda > 0 && ldb > 0;
}

// `columns` runs of `rows` elements, `lda` and `ldb` elements apart.
Status copy(CUmemorytype from_type, const void* from, int64_t lda, CUmemorytype to_type, void* to,
            int64_t ldb, int64_t rows, int64_t columns, int64_t element, bool async,
            CUstream stream) {
  if (!valid(rows, columns, element, lda, ldb)) return kInvalidValue;
  if (rows == 0 || columns == 0) return kSuccess;
  CUDA_MEMCPY2D c{};
  c.srcMemoryType = from_type;
  c.srcHost = from;
  c.srcDevice = reinterpret_cast<CUdeviceptr>(from);
  c.srcPitch = static_cast<size_t>(lda * element);
  c.dstMemoryType = to_type;
  c.dstHost = to;
  c.dstDevice = reinterpret_cast<CUdeviceptr>(to);
  c.dstPitch = static_cast<size_t>(ldb * element);
  c.WidthInBytes = static_cast<size_t>(rows * element);
  c.Height = static_cast<size_t>(columns);
  if (lda == rows && ldb == rows) {
    c.WidthInBytes *= c.Height;
    c.srcPitch = c.dstPitch = c.WidthInBytes;
    c.Height = 1;
  }
  if (c.srcPitch < c.WidthInBytes || c.dstPitch < c.WidthInBytes) return kInvalidValue;
  const CUresult e = async ? cuMemcpy2DAsync_v2(&c, stream) : cuMemcpy2DUnaligned_v2(&c);
  if (e == CUDA_ERROR_NOT_INITIALIZED || e == CUDA_ERROR_INVALID_CONTEXT) return kNotInitialized;
  return e == CUDA_SUCCESS ? kSuccess : kMappingError;
}

constexpr auto kHost = CU_MEMORYTYPE_HOST, kDevice = CU_MEMORYTYPE_DEVICE;

}  // namespace

// A vector with a step is a matrix of one row.
#define SLUICE_COPIES(suffix, N, E)                                                                \
  SLUICE_PUBLIC int32_t cublasSetVector##suffix(N n, E size, const void* x, N incx, void* y,       \
                                                N incy) {                                          \
    return copy(kHost, x, incx, kDevice, y, incy, 1, n, size, false, nullptr);                     \
  }                                                                                                \
  SLUICE_PUBLIC int32_t cublasGetVector##suffix(N n, E size, const void* x, N incx, void* y,       \
                                                N incy) {                                          \
    return copy(kDevice, x, incx, kHost, y, incy, 1, n, size, false, nullptr);                     \
  }                                                                                                \
  SLUICE_PUBLIC int32_t cublasSetVectorAsync##suffix(N n, E size, const void* x, N incx, void* y,  \
                                                     N incy, CUstream stream) {                    \
    return copy(kHost, x, incx, kDevice, y, incy, 1, n, size, true, stream);                       \
  }                                                                                                \
  SLUICE_PUBLIC int32_t cublasGetVectorAsync##suffix(N n, E size, const void* x, N incx, void* y,  \
                                                     N incy, CUstream stream) {                    \
    return copy(kDevice, x, incx, kHost, y, incy, 1, n, size, true, stream);                       \
  }                                                                                                \
  SLUICE_PUBLIC int32_t cublasSetMatrix##suffix(N rows, N cols, E size, const void* a, N lda,      \
                                                void* b, N ldb) {                                  \
    return copy(kHost, a, lda, kDevice, b, ldb, rows, cols, size, false, nullptr);                 \
  }                                                                                                \
  SLUICE_PUBLIC int32_t cublasGetMatrix##suffix(N rows, N cols, E size, const void* a, N lda,      \
                                                void* b, N ldb) {                                  \
    return copy(kDevice, a, lda, kHost, b, ldb, rows, cols, size, false, nullptr);                 \
  }                                                                                                \
  SLUICE_PUBLIC int32_t cublasSetMatrixAsync##suffix(N rows, N cols, E size, const void* a, N lda, \
                                                     void* b, N ldb, CUstream stream) {            \
    return copy(kHost, a, lda, kDevice, b, ldb, rows, cols, size, true, stream);                   \
  }                                                                                                \
  SLUICE_PUBLIC int32_t cublasGetMatrixAsync##suffix(N rows, N cols, E size, const void* a, N lda, \
                                                     void* b, N ldb, CUstream stream) {            \
    return copy(kDevice, a, lda, kHost, b, ldb, rows, cols, size, true, stream);                   \
  }

SLUICE_COPIES(, int32_t, int32_t)
SLUICE_COPIES(_64, int64_t, int64_t)

SLUICE_PUBLIC int32_t cublasGetStream_v2(void* handle, CUstream* stream) {
  uint64_t value;
  if (!stream) return kInvalidValue;
  if (!sluice_library_stream(reinterpret_cast<uint64_t>(handle), sluice::library::k_cublas, &value))
    return kNotInitialized;
  *stream = reinterpret_cast<CUstream>(value);
  return kSuccess;
}

// Logging is set where the program asks for it, but what cuBLAS logs stays on the GPU's node.
namespace {
std::atomic<void*> logger{nullptr};
}

SLUICE_PUBLIC int32_t cublasLoggerConfigure(int32_t on, int32_t, int32_t, const char*) {
  if (on) sluice_library_note("cuBLAS runs on the GPU's node; what it logs there is not carried");
  return kSuccess;
}
SLUICE_PUBLIC int32_t cublasSetLoggerCallback(void* callback) {
  if (callback)
    sluice_library_note("cuBLAS runs on the GPU's node; what it logs there is not carried");
  logger.store(callback);
  return kSuccess;
}
SLUICE_PUBLIC int32_t cublasGetLoggerCallback(void** callback) {
  if (!callback) return kInvalidValue;
  *callback = logger.load();
  return kSuccess;
}
// What a program calls to say that an argument was wrong.
SLUICE_PUBLIC void cublasXerbla(const char* name, int32_t info) {
  std::fprintf(stderr, " ** On entry to %-6s parameter number %d had an illegal value\n", name,
               info);
}
