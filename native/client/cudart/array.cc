// SPDX-License-Identifier: Apache-2.0
// CUDA arrays of plain channel formats: their life and what they are.
#include "client/cudart/channel_format.h"
#include "client/cudart/pitched_copy.h"
#include "client/cudart/state.h"

using namespace sluice::cudart;

namespace {

cudaError_t describe(const cudaChannelFormatDesc* desc, cudaExtent extent, unsigned flags,
                     CUDA_ARRAY3D_DESCRIPTOR* native) {
  if (desc == nullptr) return cudaErrorInvalidValue;
  *native = {};
  native->Width = extent.width;
  native->Height = extent.height;
  native->Depth = extent.depth;
  native->Flags = flags;
  return to_native(*desc, native);
}

CUmipmappedArray native_mipmapped(cudaMipmappedArray_const_t array) {
  return reinterpret_cast<CUmipmappedArray>(const_cast<cudaMipmappedArray*>(array));
}

}  // namespace

extern "C" {

struct cudaChannelFormatDesc cudaCreateChannelDesc(int x, int y, int z, int w,
                                                   enum cudaChannelFormatKind f) {
  return {x, y, z, w, f};
}

cudaError_t cudaMalloc3DArray(cudaArray_t* array, const struct cudaChannelFormatDesc* desc,
                              struct cudaExtent extent, unsigned int flags) {
  if (array == nullptr) return record(cudaErrorInvalidValue);
  CUDA_ARRAY3D_DESCRIPTOR native;
  if (const cudaError_t error = describe(desc, extent, flags, &native); error != cudaSuccess) {
    return record(error);
  }
  return forward(cuArray3DCreate_v2, reinterpret_cast<CUarray*>(array), &native);
}

cudaError_t cudaMallocArray(cudaArray_t* array, const struct cudaChannelFormatDesc* desc,
                            size_t width, size_t height, unsigned int flags) {
  return cudaMalloc3DArray(array, desc, {width, height, 0}, flags);
}

cudaError_t cudaFreeArray(cudaArray_t array) {
  if (array == nullptr) return record(ensure_context());
  return forward(cuArrayDestroy, native_array(array));
}

cudaError_t cudaMallocMipmappedArray(cudaMipmappedArray_t* mipmappedArray,
                                     const struct cudaChannelFormatDesc* desc,
                                     struct cudaExtent extent, unsigned int numLevels,
                                     unsigned int flags) {
  if (mipmappedArray == nullptr) return record(cudaErrorInvalidValue);
  CUDA_ARRAY3D_DESCRIPTOR native;
  if (const cudaError_t error = describe(desc, extent, flags, &native); error != cudaSuccess) {
    return record(error);
  }
  return forward(cuMipmappedArrayCreate, reinterpret_cast<CUmipmappedArray*>(mipmappedArray),
                 &native, numLevels);
}

cudaError_t cudaFreeMipmappedArray(cudaMipmappedArray_t mipmappedArray) {
  if (mipmappedArray == nullptr) return record(ensure_context());
  return forward(cuMipmappedArrayDestroy, native_mipmapped(mipmappedArray));
}

cudaError_t cudaGetMipmappedArrayLevel(cudaArray_t* levelArray,
                                       cudaMipmappedArray_const_t mipmappedArray,
                                       unsigned int level) {
  return forward(cuMipmappedArrayGetLevel, reinterpret_cast<CUarray*>(levelArray),
                 native_mipmapped(mipmappedArray), level);
}

cudaError_t cudaGetChannelDesc(struct cudaChannelFormatDesc* desc, cudaArray_const_t array) {
  if (desc == nullptr) return record(cudaErrorInvalidValue);
  CUDA_ARRAY3D_DESCRIPTOR native = {};
  const cudaError_t error = forward(cuArray3DGetDescriptor_v2, &native, native_array(array));
  return error != cudaSuccess ? error : record(from_native(native, desc));
}

cudaError_t cudaArrayGetInfo(struct cudaChannelFormatDesc* desc, struct cudaExtent* extent,
                             unsigned int* flags, cudaArray_t array) {
  CUDA_ARRAY3D_DESCRIPTOR native = {};
  const cudaError_t error = forward(cuArray3DGetDescriptor_v2, &native, native_array(array));
  if (error != cudaSuccess) return error;
  if (extent != nullptr) *extent = {native.Width, native.Height, native.Depth};
  if (flags != nullptr) *flags = native.Flags;
  return desc != nullptr ? record(from_native(native, desc)) : cudaSuccess;
}

cudaError_t cudaArrayGetPlane(cudaArray_t* pPlaneArray, cudaArray_t hArray, unsigned int planeIdx) {
  return forward(cuArrayGetPlane, reinterpret_cast<CUarray*>(pPlaneArray), native_array(hArray),
                 planeIdx);
}

cudaError_t cudaArrayGetMemoryRequirements(struct cudaArrayMemoryRequirements* memoryRequirements,
                                           cudaArray_t array, int device) {
  CUdevice handle = 0;
  if (const cudaError_t error = device_handle(device, &handle); error != cudaSuccess) {
    return record(error);
  }
  return forward(cuArrayGetMemoryRequirements,
                 same<CUDA_ARRAY_MEMORY_REQUIREMENTS>(memoryRequirements), native_array(array),
                 handle);
}

cudaError_t cudaMipmappedArrayGetMemoryRequirements(
    struct cudaArrayMemoryRequirements* memoryRequirements, cudaMipmappedArray_t mipmap,
    int device) {
  CUdevice handle = 0;
  if (const cudaError_t error = device_handle(device, &handle); error != cudaSuccess) {
    return record(error);
  }
  return forward(cuMipmappedArrayGetMemoryRequirements,
                 same<CUDA_ARRAY_MEMORY_REQUIREMENTS>(memoryRequirements), native_mipmapped(mipmap),
                 handle);
}

cudaError_t cudaArrayGetSparseProperties(struct cudaArraySparseProperties* sparseProperties,
                                         cudaArray_t array) {
  return forward(cuArrayGetSparseProperties, same<CUDA_ARRAY_SPARSE_PROPERTIES>(sparseProperties),
                 native_array(array));
}

cudaError_t cudaMipmappedArrayGetSparseProperties(
    struct cudaArraySparseProperties* sparseProperties, cudaMipmappedArray_t mipmap) {
  return forward(cuMipmappedArrayGetSparseProperties,
                 same<CUDA_ARRAY_SPARSE_PROPERTIES>(sparseProperties), native_mipmapped(mipmap));
}

cudaError_t cudaDeviceGetTexture1DLinearMaxWidth(size_t* maxWidthInElements,
                                                 const struct cudaChannelFormatDesc* fmtDesc,
                                                 int device) {
  CUDA_ARRAY3D_DESCRIPTOR native;
  if (const cudaError_t error = describe(fmtDesc, {}, 0, &native); error != cudaSuccess) {
    return record(error);
  }
  CUdevice handle = 0;
  if (const cudaError_t error = device_handle(device, &handle); error != cudaSuccess) {
    return record(error);
  }
  return forward_without_context(cuDeviceGetTexture1DLinearMaxWidth, maxWidthInElements,
                                 native.Format, native.NumChannels, handle);
}

}  // extern "C"
