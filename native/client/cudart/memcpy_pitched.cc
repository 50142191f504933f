// SPDX-License-Identifier: Apache-2.0
// Two- and three-dimensional copies between pitched memory and arrays. The per-thread variants of
// the synchronous functions are generated from these.
#include "client/cudart/channel_format.h"
#include "client/cudart/pitched_copy.h"
#include "client/cudart/state.h"

namespace sluice::cudart {
namespace {

// One end of a two-dimensional copy: pitched memory, or a place in an array.
struct End {
  void* pointer = nullptr;
  size_t pitch = 0;
  cudaArray_const_t array = nullptr;
  size_t x_bytes = 0;
  size_t y = 0;
};

cudaError_t describe(const End& to, const End& from, size_t width, size_t height,
                     cudaMemcpyKind kind, CUDA_MEMCPY2D* copy) {
  *copy = {};
  if (!memory_types(kind, &copy->srcMemoryType, &copy->dstMemoryType)) {
    return cudaErrorInvalidMemcpyDirection;
  }
  // Of a single row the driver is the judge.
  const bool too_wide =
      (to.array == nullptr && width > to.pitch) || (from.array == nullptr && width > from.pitch);
  if (too_wide && height > 1) return cudaErrorInvalidPitchValue;
  copy->srcXInBytes = from.x_bytes;
  copy->srcY = from.y;
  copy->dstXInBytes = to.x_bytes;
  copy->dstY = to.y;
  if (from.array != nullptr) {
    copy->srcMemoryType = CU_MEMORYTYPE_ARRAY;
    copy->srcArray = native_array(from.array);
  } else {
    copy->srcHost = from.pointer;
    copy->srcDevice = device_address(from.pointer);
    copy->srcPitch = from.pitch;
  }
  if (to.array != nullptr) {
    copy->dstMemoryType = CU_MEMORYTYPE_ARRAY;
    copy->dstArray = native_array(to.array);
  } else {
    copy->dstHost = to.pointer;
    copy->dstDevice = device_address(to.pointer);
    copy->dstPitch = to.pitch;
  }
  copy->WidthInBytes = width;
  copy->Height = height;
  return cudaSuccess;
}

cudaError_t copy_2d(const End& to, const End& from, size_t width, size_t height,
                    cudaMemcpyKind kind) {
  CUDA_MEMCPY2D copy;
  const cudaError_t error = describe(to, from, width, height, kind, &copy);
  if (error != cudaSuccess) return record(error);
  if (width == 0 || height == 0) return record(ensure_context());
  return forward(cuMemcpy2DUnaligned_v2, &copy);
}

cudaError_t copy_2d_async(const End& to, const End& from, size_t width, size_t height,
                          cudaMemcpyKind kind, cudaStream_t stream) {
  CUDA_MEMCPY2D copy;
  const cudaError_t error = describe(to, from, width, height, kind, &copy);
  if (error != cudaSuccess) return record(error);
  if (width == 0 || height == 0) return record(ensure_context());
  return forward(cuMemcpy2DAsync_v2, &copy, stream);
}

End memory(const void* pointer, size_t pitch) { return {const_cast<void*>(pointer), pitch}; }

End in_array(cudaArray_const_t array, size_t x_bytes, size_t y) {
  return {nullptr, 0, array, x_bytes, y};
}

bool is_empty(const cudaExtent& extent) {
  return extent.width == 0 || extent.height == 0 || extent.depth == 0;
}

struct PeerCopy {
  CUDA_MEMCPY3D_PEER native = {};
  cudaError_t error = cudaSuccess;

  explicit PeerCopy(const cudaMemcpy3DPeerParms& p) {
    const cudaMemcpy3DParms plain = {p.srcArray, p.srcPos, p.srcPtr, p.dstArray,
                                     p.dstPos,   p.dstPtr, p.extent, cudaMemcpyDeviceToDevice};
    CUDA_MEMCPY3D copy;
    error = native_copy(plain, &copy);
    if (error == cudaSuccess) error = primary_context(p.srcDevice, &native.srcContext);
    if (error == cudaSuccess) error = primary_context(p.dstDevice, &native.dstContext);
    native.srcXInBytes = copy.srcXInBytes;
    native.srcY = copy.srcY;
    native.srcZ = copy.srcZ;
    native.srcMemoryType = copy.srcMemoryType;
    native.srcDevice = copy.srcDevice;
    native.srcArray = copy.srcArray;
    native.srcPitch = copy.srcPitch;
    native.srcHeight = copy.srcHeight;
    native.dstXInBytes = copy.dstXInBytes;
    native.dstY = copy.dstY;
    native.dstZ = copy.dstZ;
    native.dstMemoryType = copy.dstMemoryType;
    native.dstDevice = copy.dstDevice;
    native.dstArray = copy.dstArray;
    native.dstPitch = copy.dstPitch;
    native.dstHeight = copy.dstHeight;
    native.WidthInBytes = copy.WidthInBytes;
    native.Height = copy.Height;
    native.Depth = copy.Depth;
  }
};

}  // namespace

size_t element_size(CUarray array) {
  CUDA_ARRAY3D_DESCRIPTOR descriptor = {};
  if (driver(cuArray3DGetDescriptor_v2, &descriptor, array) != CUDA_SUCCESS) return 0;
  return channel_size(descriptor.Format) * descriptor.NumChannels;
}

bool memory_types(cudaMemcpyKind kind, CUmemorytype* source, CUmemorytype* destination) {
  switch (kind) {
    case cudaMemcpyHostToHost:
      *source = *destination = CU_MEMORYTYPE_HOST;
      return true;
    case cudaMemcpyHostToDevice:
      *source = CU_MEMORYTYPE_HOST;
      *destination = CU_MEMORYTYPE_DEVICE;
      return true;
    case cudaMemcpyDeviceToHost:
      *source = CU_MEMORYTYPE_DEVICE;
      *destination = CU_MEMORYTYPE_HOST;
      return true;
    case cudaMemcpyDeviceToDevice:
      *source = *destination = CU_MEMORYTYPE_DEVICE;
      return true;
    case cudaMemcpyDefault:
      *source = *destination = CU_MEMORYTYPE_UNIFIED;
      return true;
    default:
      return false;
  }
}

cudaError_t native_copy(const cudaMemcpy3DParms& p, CUDA_MEMCPY3D* copy) {
  *copy = {};
  if (!memory_types(p.kind, &copy->srcMemoryType, &copy->dstMemoryType)) {
    return cudaErrorInvalidMemcpyDirection;
  }
  if ((p.srcArray != nullptr) == (p.srcPtr.ptr != nullptr) ||
      (p.dstArray != nullptr) == (p.dstPtr.ptr != nullptr)) {
    return cudaErrorInvalidValue;
  }
  // Positions count elements in an array and bytes in memory; the extent counts elements as soon as
  // an array takes part.
  size_t from_element = 1;
  size_t to_element = 1;
  if (p.srcArray != nullptr) from_element = element_size(native_array(p.srcArray));
  if (p.dstArray != nullptr) to_element = element_size(native_array(p.dstArray));
  if (from_element == 0 || to_element == 0) return cudaErrorInvalidValue;
  if (p.srcArray != nullptr) {
    copy->srcMemoryType = CU_MEMORYTYPE_ARRAY;
    copy->srcArray = native_array(p.srcArray);
  } else {
    copy->srcHost = p.srcPtr.ptr;
    copy->srcDevice = device_address(p.srcPtr.ptr);
    copy->srcPitch = p.srcPtr.pitch;
    copy->srcHeight = p.srcPtr.ysize;
  }
  if (p.dstArray != nullptr) {
    copy->dstMemoryType = CU_MEMORYTYPE_ARRAY;
    copy->dstArray = native_array(p.dstArray);
  } else {
    copy->dstHost = p.dstPtr.ptr;
    copy->dstDevice = device_address(p.dstPtr.ptr);
    copy->dstPitch = p.dstPtr.pitch;
    copy->dstHeight = p.dstPtr.ysize;
  }
  copy->srcXInBytes = p.srcPos.x * from_element;
  copy->srcY = p.srcPos.y;
  copy->srcZ = p.srcPos.z;
  copy->dstXInBytes = p.dstPos.x * to_element;
  copy->dstY = p.dstPos.y;
  copy->dstZ = p.dstPos.z;
  copy->WidthInBytes = p.extent.width * (p.srcArray != nullptr ? from_element : to_element);
  copy->Height = p.extent.height;
  copy->Depth = p.extent.depth;
  return cudaSuccess;
}

}  // namespace sluice::cudart

using namespace sluice::cudart;

extern "C" {

cudaError_t cudaMemcpy2D(void* dst, size_t dpitch, const void* src, size_t spitch, size_t width,
                         size_t height, enum cudaMemcpyKind kind) {
  return copy_2d(memory(dst, dpitch), memory(src, spitch), width, height, kind);
}

cudaError_t cudaMemcpy2DAsync(void* dst, size_t dpitch, const void* src, size_t spitch,
                              size_t width, size_t height, enum cudaMemcpyKind kind,
                              cudaStream_t stream) {
  return copy_2d_async(memory(dst, dpitch), memory(src, spitch), width, height, kind, stream);
}

cudaError_t cudaMemcpy2DToArray(cudaArray_t dst, size_t wOffset, size_t hOffset, const void* src,
                                size_t spitch, size_t width, size_t height,
                                enum cudaMemcpyKind kind) {
  return copy_2d(in_array(dst, wOffset, hOffset), memory(src, spitch), width, height, kind);
}

cudaError_t cudaMemcpy2DToArrayAsync(cudaArray_t dst, size_t wOffset, size_t hOffset,
                                     const void* src, size_t spitch, size_t width, size_t height,
                                     enum cudaMemcpyKind kind, cudaStream_t stream) {
  return copy_2d_async(in_array(dst, wOffset, hOffset), memory(src, spitch), width, height, kind,
                       stream);
}

cudaError_t cudaMemcpy2DFromArray(void* dst, size_t dpitch, cudaArray_const_t src, size_t wOffset,
                                  size_t hOffset, size_t width, size_t height,
                                  enum cudaMemcpyKind kind) {
  return copy_2d(memory(dst, dpitch), in_array(src, wOffset, hOffset), width, height, kind);
}

cudaError_t cudaMemcpy2DFromArrayAsync(void* dst, size_t dpitch, cudaArray_const_t src,
                                       size_t wOffset, size_t hOffset, size_t width, size_t height,
                                       enum cudaMemcpyKind kind, cudaStream_t stream) {
  return copy_2d_async(memory(dst, dpitch), in_array(src, wOffset, hOffset), width, height, kind,
                       stream);
}

cudaError_t cudaMemcpy2DArrayToArray(cudaArray_t dst, size_t wOffsetDst, size_t hOffsetDst,
                                     cudaArray_const_t src, size_t wOffsetSrc, size_t hOffsetSrc,
                                     size_t width, size_t height, enum cudaMemcpyKind kind) {
  return copy_2d(in_array(dst, wOffsetDst, hOffsetDst), in_array(src, wOffsetSrc, hOffsetSrc),
                 width, height, kind);
}

cudaError_t cudaMemcpy2DArrayToArray_ptds(cudaArray_t dst, size_t wOffsetDst, size_t hOffsetDst,
                                          cudaArray_const_t src, size_t wOffsetSrc,
                                          size_t hOffsetSrc, size_t width, size_t height,
                                          enum cudaMemcpyKind kind) {
  return copy_2d_async(in_array(dst, wOffsetDst, hOffsetDst), in_array(src, wOffsetSrc, hOffsetSrc),
                       width, height, kind, cudaStreamPerThread);
}

cudaError_t cudaMemcpy3D(const struct cudaMemcpy3DParms* p) {
  if (p == nullptr) return record(cudaErrorInvalidValue);
  if (const cudaError_t error = ensure_context(); error != cudaSuccess) return record(error);
  if (is_empty(p->extent)) return cudaSuccess;
  CUDA_MEMCPY3D copy;
  if (const cudaError_t error = native_copy(*p, &copy); error != cudaSuccess) return record(error);
  return forward(cuMemcpy3D_v2, &copy);
}

cudaError_t cudaMemcpy3DAsync(const struct cudaMemcpy3DParms* p, cudaStream_t stream) {
  if (p == nullptr) return record(cudaErrorInvalidValue);
  if (const cudaError_t error = ensure_context(); error != cudaSuccess) return record(error);
  if (is_empty(p->extent)) return cudaSuccess;
  CUDA_MEMCPY3D copy;
  if (const cudaError_t error = native_copy(*p, &copy); error != cudaSuccess) return record(error);
  return forward(cuMemcpy3DAsync_v2, &copy, stream);
}

cudaError_t cudaMemcpy3DPeer(const struct cudaMemcpy3DPeerParms* p) {
  if (p == nullptr) return record(cudaErrorInvalidValue);
  if (const cudaError_t error = ensure_context(); error != cudaSuccess) return record(error);
  PeerCopy copy(*p);
  if (copy.error != cudaSuccess) return record(copy.error);
  return forward(cuMemcpy3DPeer, &copy.native);
}

cudaError_t cudaMemcpy3DPeerAsync(const struct cudaMemcpy3DPeerParms* p, cudaStream_t stream) {
  if (p == nullptr) return record(cudaErrorInvalidValue);
  if (const cudaError_t error = ensure_context(); error != cudaSuccess) return record(error);
  PeerCopy copy(*p);
  if (copy.error != cudaSuccess) return record(copy.error);
  return forward(cuMemcpy3DPeerAsync, &copy.native, stream);
}

}  // extern "C"
