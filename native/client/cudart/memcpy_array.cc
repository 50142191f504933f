// SPDX-License-Identifier: Apache-2.0
// The old copies that count bytes of an array from a place in it, row after row: the rest of the
// first row, whole rows, and the begin of the last.
#include <algorithm>

#include "client/cudart/pitched_copy.h"
#include "client/cudart/state.h"

using namespace sluice::cudart;

namespace {

cudaError_t row_bytes_of(cudaArray_const_t array, size_t* bytes) {
  CUDA_ARRAY3D_DESCRIPTOR descriptor = {};
  const cudaError_t error = forward(cuArray3DGetDescriptor_v2, &descriptor, native_array(array));
  if (error == cudaSuccess) *bytes = descriptor.Width * element_size(native_array(array));
  return error;
}

// Calls copy(x, y, at, width, height) for each rectangle; `at` bytes have been copied before it.
template <typename Copy>
cudaError_t in_rows(cudaArray_const_t array, size_t x, size_t y, size_t count, Copy copy) {
  size_t row = 0;
  if (const cudaError_t error = row_bytes_of(array, &row); error != cudaSuccess) return error;
  if (count > 0 && x >= row) return record(cudaErrorInvalidValue);
  for (size_t at = 0; at < count;) {
    const bool whole = x == 0 && count - at >= row;
    const size_t width = whole ? row : std::min(row - x, count - at);
    const size_t height = whole ? (count - at) / row : 1;
    if (const cudaError_t error = copy(x, y, at, width, height); error != cudaSuccess) {
      return error;
    }
    at += width * height;
    y += height;
    x = 0;
  }
  return cudaSuccess;
}

const char* behind(const void* pointer, size_t bytes) {
  return static_cast<const char*>(pointer) + bytes;
}
char* behind(void* pointer, size_t bytes) { return static_cast<char*>(pointer) + bytes; }

// Rows of both arrays run on, whatever their widths are.
cudaError_t between_arrays(decltype(&cudaMemcpy2DArrayToArray) copy, cudaArray_t dst,
                           size_t wOffsetDst, size_t hOffsetDst, cudaArray_const_t src,
                           size_t wOffsetSrc, size_t hOffsetSrc, size_t count,
                           cudaMemcpyKind kind) {
  size_t to_row = 0;
  if (const cudaError_t error = row_bytes_of(dst, &to_row); error != cudaSuccess) return error;
  if (count > 0 && wOffsetDst >= to_row) return record(cudaErrorInvalidValue);
  const auto one_row = [&](size_t x, size_t y, size_t at, size_t width) -> cudaError_t {
    for (size_t done = 0; done < width;) {
      const size_t to = wOffsetDst + at + done;
      const size_t n = std::min(width - done, to_row - to % to_row);
      const cudaError_t error =
          copy(dst, to % to_row, hOffsetDst + to / to_row, src, x + done, y, n, 1, kind);
      if (error != cudaSuccess) return error;
      done += n;
    }
    return cudaSuccess;
  };
  return in_rows(src, wOffsetSrc, hOffsetSrc, count,
                 [&](size_t x, size_t y, size_t at, size_t width, size_t height) {
                   for (size_t row = 0; row < height; ++row) {
                     const cudaError_t error = one_row(x, y + row, at + row * width, width);
                     if (error != cudaSuccess) return error;
                   }
                   return cudaSuccess;
                 });
}

}  // namespace

extern "C" {

cudaError_t cudaMemcpyToArray(cudaArray_t dst, size_t wOffset, size_t hOffset, const void* src,
                              size_t count, enum cudaMemcpyKind kind) {
  return in_rows(dst, wOffset, hOffset, count,
                 [&](size_t x, size_t y, size_t at, size_t width, size_t height) {
                   return cudaMemcpy2DToArray(dst, x, y, behind(src, at), width, width, height,
                                              kind);
                 });
}

cudaError_t cudaMemcpyToArrayAsync(cudaArray_t dst, size_t wOffset, size_t hOffset, const void* src,
                                   size_t count, enum cudaMemcpyKind kind, cudaStream_t stream) {
  return in_rows(dst, wOffset, hOffset, count,
                 [&](size_t x, size_t y, size_t at, size_t width, size_t height) {
                   return cudaMemcpy2DToArrayAsync(dst, x, y, behind(src, at), width, width, height,
                                                   kind, stream);
                 });
}

cudaError_t cudaMemcpyFromArray(void* dst, cudaArray_const_t src, size_t wOffset, size_t hOffset,
                                size_t count, enum cudaMemcpyKind kind) {
  return in_rows(src, wOffset, hOffset, count,
                 [&](size_t x, size_t y, size_t at, size_t width, size_t height) {
                   return cudaMemcpy2DFromArray(behind(dst, at), width, src, x, y, width, height,
                                                kind);
                 });
}

cudaError_t cudaMemcpyFromArrayAsync(void* dst, cudaArray_const_t src, size_t wOffset,
                                     size_t hOffset, size_t count, enum cudaMemcpyKind kind,
                                     cudaStream_t stream) {
  return in_rows(src, wOffset, hOffset, count,
                 [&](size_t x, size_t y, size_t at, size_t width, size_t height) {
                   return cudaMemcpy2DFromArrayAsync(behind(dst, at), width, src, x, y, width,
                                                     height, kind, stream);
                 });
}

cudaError_t cudaMemcpyArrayToArray(cudaArray_t dst, size_t wOffsetDst, size_t hOffsetDst,
                                   cudaArray_const_t src, size_t wOffsetSrc, size_t hOffsetSrc,
                                   size_t count, enum cudaMemcpyKind kind) {
  return between_arrays(cudaMemcpy2DArrayToArray, dst, wOffsetDst, hOffsetDst, src, wOffsetSrc,
                        hOffsetSrc, count, kind);
}

cudaError_t cudaMemcpyArrayToArray_ptds(cudaArray_t dst, size_t wOffsetDst, size_t hOffsetDst,
                                        cudaArray_const_t src, size_t wOffsetSrc, size_t hOffsetSrc,
                                        size_t count, enum cudaMemcpyKind kind) {
  return between_arrays(cudaMemcpy2DArrayToArray_ptds, dst, wOffsetDst, hOffsetDst, src, wOffsetSrc,
                        hOffsetSrc, count, kind);
}

}  // extern "C"
