// SPDX-License-Identifier: Apache-2.0
// Texture and surface objects. The number that the driver gives is the one that kernels take, so
// nothing of it is kept here; descriptions are translated both ways.
#include "client/cudart/channel_format.h"
#include "client/cudart/pitched_copy.h"
#include "client/cudart/state.h"

using namespace sluice::cudart;

namespace {

// Also says what the elements are, for the checks of the texture's description.
cudaError_t to_native(const cudaResourceDesc& from, CUDA_RESOURCE_DESC* to,
                      CUDA_ARRAY3D_DESCRIPTOR* elements) {
  *to = {};
  to->flags = from.flags;
  CUresult result = CUDA_SUCCESS;
  switch (from.resType) {
    case cudaResourceTypeArray:
      to->resType = CU_RESOURCE_TYPE_ARRAY;
      to->res.array.hArray = native_array(from.res.array.array);
      result = driver(cuArray3DGetDescriptor_v2, elements, to->res.array.hArray);
      return to_runtime(result);
    case cudaResourceTypeMipmappedArray: {
      to->resType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
      to->res.mipmap.hMipmappedArray = reinterpret_cast<CUmipmappedArray>(from.res.mipmap.mipmap);
      CUarray first = nullptr;
      result = driver(cuMipmappedArrayGetLevel, &first, to->res.mipmap.hMipmappedArray, 0u);
      if (result == CUDA_SUCCESS) result = driver(cuArray3DGetDescriptor_v2, elements, first);
      return to_runtime(result);
    }
    case cudaResourceTypeLinear: {
      const auto& linear = from.res.linear;
      const cudaError_t error = sluice::cudart::to_native(linear.desc, elements);
      to->resType = CU_RESOURCE_TYPE_LINEAR;
      to->res.linear.devPtr = device_address(linear.devPtr);
      to->res.linear.format = elements->Format;
      to->res.linear.numChannels = elements->NumChannels;
      to->res.linear.sizeInBytes = linear.sizeInBytes;
      return error;
    }
    case cudaResourceTypePitch2D: {
      const auto& pitched = from.res.pitch2D;
      const cudaError_t error = sluice::cudart::to_native(pitched.desc, elements);
      to->resType = CU_RESOURCE_TYPE_PITCH2D;
      to->res.pitch2D.devPtr = device_address(pitched.devPtr);
      to->res.pitch2D.format = elements->Format;
      to->res.pitch2D.numChannels = elements->NumChannels;
      to->res.pitch2D.width = pitched.width;
      to->res.pitch2D.height = pitched.height;
      to->res.pitch2D.pitchInBytes = pitched.pitchInBytes;
      return error;
    }
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t from_native(const CUDA_RESOURCE_DESC& from, cudaResourceDesc* to) {
  *to = {};
  to->flags = from.flags;
  CUDA_ARRAY3D_DESCRIPTOR elements = {};
  switch (from.resType) {
    case CU_RESOURCE_TYPE_ARRAY:
      to->resType = cudaResourceTypeArray;
      to->res.array.array = reinterpret_cast<cudaArray_t>(from.res.array.hArray);
      return cudaSuccess;
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
      to->resType = cudaResourceTypeMipmappedArray;
      to->res.mipmap.mipmap =
          reinterpret_cast<cudaMipmappedArray_t>(from.res.mipmap.hMipmappedArray);
      return cudaSuccess;
    case CU_RESOURCE_TYPE_LINEAR:
      elements.Format = from.res.linear.format;
      elements.NumChannels = from.res.linear.numChannels;
      to->resType = cudaResourceTypeLinear;
      to->res.linear.devPtr = reinterpret_cast<void*>(from.res.linear.devPtr);
      to->res.linear.sizeInBytes = from.res.linear.sizeInBytes;
      return sluice::cudart::from_native(elements, &to->res.linear.desc);
    case CU_RESOURCE_TYPE_PITCH2D:
      elements.Format = from.res.pitch2D.format;
      elements.NumChannels = from.res.pitch2D.numChannels;
      to->resType = cudaResourceTypePitch2D;
      to->res.pitch2D.devPtr = reinterpret_cast<void*>(from.res.pitch2D.devPtr);
      to->res.pitch2D.width = from.res.pitch2D.width;
      to->res.pitch2D.height = from.res.pitch2D.height;
      to->res.pitch2D.pitchInBytes = from.res.pitch2D.pitchInBytes;
      return sluice::cudart::from_native(elements, &to->res.pitch2D.desc);
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t to_native(const cudaTextureDesc& from, CUarray_format format, CUDA_TEXTURE_DESC* to) {
  const bool fractions = from.readMode == cudaReadModeNormalizedFloat;
  if (fractions && is_integer(format) && channel_size(format) == 4) {
    return cudaErrorInvalidNormSetting;
  }
  if (!fractions && is_integer(format) && from.filterMode == cudaFilterModeLinear) {
    return cudaErrorInvalidFilterSetting;
  }
  *to = {};
  for (int i = 0; i < 3; ++i) {
    to->addressMode[i] = static_cast<CUaddress_mode>(from.addressMode[i]);
  }
  to->filterMode = static_cast<CUfilter_mode>(from.filterMode);
  to->mipmapFilterMode = static_cast<CUfilter_mode>(from.mipmapFilterMode);
  if (!fractions && is_integer(format)) to->flags |= CU_TRSF_READ_AS_INTEGER;
  if (from.normalizedCoords != 0) to->flags |= CU_TRSF_NORMALIZED_COORDINATES;
  if (from.sRGB != 0) to->flags |= CU_TRSF_SRGB;
  if (from.disableTrilinearOptimization != 0) {
    to->flags |= CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION;
  }
  if (from.seamlessCubemap != 0) to->flags |= CU_TRSF_SEAMLESS_CUBEMAP;
  to->maxAnisotropy = from.maxAnisotropy;
  to->mipmapLevelBias = from.mipmapLevelBias;
  to->minMipmapLevelClamp = from.minMipmapLevelClamp;
  to->maxMipmapLevelClamp = from.maxMipmapLevelClamp;
  for (int i = 0; i < 4; ++i) to->borderColor[i] = from.borderColor[i];
  return cudaSuccess;
}

void from_native(const CUDA_TEXTURE_DESC& from, cudaTextureDesc* to) {
  const auto has = [&](unsigned flag) { return (from.flags & flag) != 0 ? 1 : 0; };
  *to = {};
  for (int i = 0; i < 3; ++i) {
    to->addressMode[i] = static_cast<cudaTextureAddressMode>(from.addressMode[i]);
  }
  to->filterMode = static_cast<cudaTextureFilterMode>(from.filterMode);
  to->mipmapFilterMode = static_cast<cudaTextureFilterMode>(from.mipmapFilterMode);
  to->readMode =
      has(CU_TRSF_READ_AS_INTEGER) != 0 ? cudaReadModeElementType : cudaReadModeNormalizedFloat;
  to->normalizedCoords = has(CU_TRSF_NORMALIZED_COORDINATES);
  to->sRGB = has(CU_TRSF_SRGB);
  to->disableTrilinearOptimization = has(CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION);
  to->seamlessCubemap = has(CU_TRSF_SEAMLESS_CUBEMAP);
  to->maxAnisotropy = from.maxAnisotropy;
  to->mipmapLevelBias = from.mipmapLevelBias;
  to->minMipmapLevelClamp = from.minMipmapLevelClamp;
  to->maxMipmapLevelClamp = from.maxMipmapLevelClamp;
  for (int i = 0; i < 4; ++i) to->borderColor[i] = from.borderColor[i];
}

// What a texture or surface was made of.
template <typename Object>
cudaError_t resource_of(CUresult (*ask)(CUDA_RESOURCE_DESC*, Object), Object object,
                        cudaResourceDesc* desc) {
  if (desc == nullptr) return record(cudaErrorInvalidValue);
  CUDA_RESOURCE_DESC native = {};
  const cudaError_t error = forward(ask, &native, object);
  return error != cudaSuccess ? error : record(from_native(native, desc));
}

}  // namespace

extern "C" {

cudaError_t cudaCreateTextureObject(cudaTextureObject_t* pTexObject,
                                    const struct cudaResourceDesc* pResDesc,
                                    const struct cudaTextureDesc* pTexDesc,
                                    const struct cudaResourceViewDesc* pResViewDesc) {
  if (pTexObject == nullptr || pResDesc == nullptr || pTexDesc == nullptr) {
    return record(cudaErrorInvalidValue);
  }
  if (const cudaError_t error = ensure_context(); error != cudaSuccess) return record(error);
  CUDA_RESOURCE_DESC resource;
  CUDA_ARRAY3D_DESCRIPTOR elements = {};
  CUDA_TEXTURE_DESC texture;
  cudaError_t error = to_native(*pResDesc, &resource, &elements);
  if (error == cudaSuccess) error = to_native(*pTexDesc, elements.Format, &texture);
  if (error != cudaSuccess) return record(error);
  const auto* view =
      pResViewDesc == nullptr ? nullptr : same<const CUDA_RESOURCE_VIEW_DESC>(pResViewDesc);
  return forward(cuTexObjectCreate, pTexObject, &resource, &texture, view);
}

cudaError_t cudaDestroyTextureObject(cudaTextureObject_t texObject) {
  if (texObject == 0) return record(ensure_context());
  return forward(cuTexObjectDestroy, texObject);
}

cudaError_t cudaGetTextureObjectResourceDesc(struct cudaResourceDesc* pResDesc,
                                             cudaTextureObject_t texObject) {
  return resource_of(cuTexObjectGetResourceDesc, texObject, pResDesc);
}

cudaError_t cudaGetTextureObjectTextureDesc(struct cudaTextureDesc* pTexDesc,
                                            cudaTextureObject_t texObject) {
  if (pTexDesc == nullptr) return record(cudaErrorInvalidValue);
  CUDA_TEXTURE_DESC native = {};
  const cudaError_t error = forward(cuTexObjectGetTextureDesc, &native, texObject);
  if (error != cudaSuccess) return error;
  from_native(native, pTexDesc);
  // Elements that are no integers have no flag, and are read as what they are.
  cudaResourceDesc resource;
  CUDA_RESOURCE_DESC unused;
  CUDA_ARRAY3D_DESCRIPTOR elements = {};
  if (cudaGetTextureObjectResourceDesc(&resource, texObject) == cudaSuccess &&
      to_native(resource, &unused, &elements) == cudaSuccess && !is_integer(elements.Format)) {
    pTexDesc->readMode = cudaReadModeElementType;
  }
  return cudaSuccess;
}

cudaError_t cudaGetTextureObjectResourceViewDesc(struct cudaResourceViewDesc* pResViewDesc,
                                                 cudaTextureObject_t texObject) {
  if (pResViewDesc == nullptr) return record(cudaErrorInvalidValue);
  return forward(cuTexObjectGetResourceViewDesc, same<CUDA_RESOURCE_VIEW_DESC>(pResViewDesc),
                 texObject);
}

cudaError_t cudaCreateSurfaceObject(cudaSurfaceObject_t* pSurfObject,
                                    const struct cudaResourceDesc* pResDesc) {
  if (pSurfObject == nullptr || pResDesc == nullptr) return record(cudaErrorInvalidValue);
  if (const cudaError_t error = ensure_context(); error != cudaSuccess) return record(error);
  CUDA_RESOURCE_DESC resource;
  CUDA_ARRAY3D_DESCRIPTOR elements = {};
  if (const cudaError_t error = to_native(*pResDesc, &resource, &elements); error != cudaSuccess) {
    return record(error);
  }
  return forward(cuSurfObjectCreate, pSurfObject, &resource);
}

cudaError_t cudaDestroySurfaceObject(cudaSurfaceObject_t surfObject) {
  if (surfObject == 0) return record(ensure_context());
  return forward(cuSurfObjectDestroy, surfObject);
}

cudaError_t cudaGetSurfaceObjectResourceDesc(struct cudaResourceDesc* pResDesc,
                                             cudaSurfaceObject_t surfObject) {
  return resource_of(cuSurfObjectGetResourceDesc, surfObject, pResDesc);
}

}  // extern "C"
