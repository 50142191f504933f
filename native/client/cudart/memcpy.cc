// SPDX-License-Identifier: Apache-2.0
// Copies of linear memory, between devices, and memset. The per-thread variants of the synchronous
// functions are generated from these (copy on the thread's stream, then wait).
#include "client/cudart/state.h"

using namespace sluice::cudart;

namespace {

bool known(cudaMemcpyKind kind) {
  return kind >= cudaMemcpyHostToHost && kind <= cudaMemcpyDefault;
}

}  // namespace

extern "C" {

cudaError_t cudaMemcpy(void* dst, const void* src, size_t count, enum cudaMemcpyKind kind) {
  if (!known(kind)) return record(cudaErrorInvalidMemcpyDirection);
  if (count == 0) return record(ensure_context());
  switch (kind) {
    case cudaMemcpyHostToDevice:
      return forward(cuMemcpyHtoD_v2, device_address(dst), src, count);
    case cudaMemcpyDeviceToHost:
      return forward(cuMemcpyDtoH_v2, dst, device_address(src), count);
    case cudaMemcpyDeviceToDevice:
      return forward(cuMemcpyDtoD_v2, device_address(dst), device_address(src), count);
    default:
      return forward(cuMemcpy, device_address(dst), device_address(src), count);
  }
}

cudaError_t cudaMemcpyAsync(void* dst, const void* src, size_t count, enum cudaMemcpyKind kind,
                            cudaStream_t stream) {
  if (!known(kind)) return record(cudaErrorInvalidMemcpyDirection);
  if (count == 0) return record(ensure_context());
  switch (kind) {
    case cudaMemcpyHostToDevice:
      return forward(cuMemcpyHtoDAsync_v2, device_address(dst), src, count, stream);
    case cudaMemcpyDeviceToHost:
      return forward(cuMemcpyDtoHAsync_v2, dst, device_address(src), count, stream);
    case cudaMemcpyDeviceToDevice:
      return forward(cuMemcpyDtoDAsync_v2, device_address(dst), device_address(src), count, stream);
    default:
      return forward(cuMemcpyAsync, device_address(dst), device_address(src), count, stream);
  }
}

cudaError_t cudaMemcpyPeer(void* dst, int dstDevice, const void* src, int srcDevice, size_t count) {
  CUcontext to = nullptr;
  CUcontext from = nullptr;
  if (const cudaError_t error = primary_context(dstDevice, &to); error != cudaSuccess) {
    return record(error);
  }
  if (const cudaError_t error = primary_context(srcDevice, &from); error != cudaSuccess) {
    return record(error);
  }
  if (count == 0) return cudaSuccess;
  return forward(cuMemcpyPeer, device_address(dst), to, device_address(src), from, count);
}

cudaError_t cudaMemcpyPeerAsync(void* dst, int dstDevice, const void* src, int srcDevice,
                                size_t count, cudaStream_t stream) {
  CUcontext to = nullptr;
  CUcontext from = nullptr;
  if (const cudaError_t error = primary_context(dstDevice, &to); error != cudaSuccess) {
    return record(error);
  }
  if (const cudaError_t error = primary_context(srcDevice, &from); error != cudaSuccess) {
    return record(error);
  }
  if (count == 0) return cudaSuccess;
  return forward(cuMemcpyPeerAsync, device_address(dst), to, device_address(src), from, count,
                 stream);
}

cudaError_t cudaMemset(void* devPtr, int value, size_t count) {
  if (count == 0) return record(ensure_context());
  return forward(cuMemsetD8_v2, device_address(devPtr), static_cast<unsigned char>(value), count);
}

cudaError_t cudaMemsetAsync(void* devPtr, int value, size_t count, cudaStream_t stream) {
  if (count == 0) return record(ensure_context());
  return forward(cuMemsetD8Async, device_address(devPtr), static_cast<unsigned char>(value), count,
                 stream);
}

cudaError_t cudaMemset2D(void* devPtr, size_t pitch, int value, size_t width, size_t height) {
  if (width == 0 || height == 0) return record(ensure_context());
  return forward(cuMemsetD2D8_v2, device_address(devPtr), pitch, static_cast<unsigned char>(value),
                 width, height);
}

cudaError_t cudaMemset2DAsync(void* devPtr, size_t pitch, int value, size_t width, size_t height,
                              cudaStream_t stream) {
  if (width == 0 || height == 0) return record(ensure_context());
  return forward(cuMemsetD2D8Async, device_address(devPtr), pitch,
                 static_cast<unsigned char>(value), width, height, stream);
}

// One slice after the other: the rows of a slice that is taller than the region stay untouched.
cudaError_t cudaMemset3D(struct cudaPitchedPtr pitchedDevPtr, int value, struct cudaExtent extent) {
  const size_t slice = pitchedDevPtr.pitch * pitchedDevPtr.ysize;
  for (size_t z = 0; z < extent.depth; ++z) {
    const cudaError_t error = cudaMemset2D(static_cast<char*>(pitchedDevPtr.ptr) + z * slice,
                                           pitchedDevPtr.pitch, value, extent.width, extent.height);
    if (error != cudaSuccess) return error;
  }
  return record(ensure_context());
}

cudaError_t cudaMemset3DAsync(struct cudaPitchedPtr pitchedDevPtr, int value,
                              struct cudaExtent extent, cudaStream_t stream) {
  const size_t slice = pitchedDevPtr.pitch * pitchedDevPtr.ysize;
  for (size_t z = 0; z < extent.depth; ++z) {
    const cudaError_t error =
        cudaMemset2DAsync(static_cast<char*>(pitchedDevPtr.ptr) + z * slice, pitchedDevPtr.pitch,
                          value, extent.width, extent.height, stream);
    if (error != cudaSuccess) return error;
  }
  return record(ensure_context());
}

}  // extern "C"
