// SPDX-License-Identifier: Apache-2.0
// Allocation of device and pinned host memory, and questions about pointers.
#include "client/cudart/state.h"

using namespace sluice::cudart;

namespace {

// The element size that gives the runtime's pitch.
constexpr unsigned kPitchElement = 4;

cudaError_t allocate_pitched(void** pointer, size_t* pitch, size_t width, size_t rows) {
  *pointer = nullptr;
  *pitch = 0;
  if (width == 0 || rows == 0) {
    if (const cudaError_t error = ensure_context(); error != cudaSuccess) return record(error);
    return cudaSuccess;
  }
  return forward(cuMemAllocPitch_v2, address_slot(pointer), pitch, width, rows, kPitchElement);
}

}  // namespace

extern "C" {

cudaError_t cudaMalloc(void** devPtr, size_t size) {
  if (devPtr == nullptr) return record(cudaErrorInvalidValue);
  if (size == 0) {
    *devPtr = nullptr;
    return record(ensure_context());
  }
  return forward(cuMemAlloc_v2, address_slot(devPtr), size);
}

cudaError_t cudaFree(void* devPtr) {
  if (devPtr == nullptr) return record(ensure_context());
  return forward(cuMemFree_v2, device_address(devPtr));
}

cudaError_t cudaMallocHost(void** ptr, size_t size) {
  return cudaHostAlloc(ptr, size, cudaHostAllocDefault);
}

cudaError_t cudaHostAlloc(void** pHost, size_t size, unsigned int flags) {
  if (pHost == nullptr) return record(cudaErrorInvalidValue);
  if (size == 0) {
    *pHost = nullptr;
    return record(ensure_context());
  }
  return forward(cuMemHostAlloc, pHost, size, flags);
}

cudaError_t cudaFreeHost(void* ptr) {
  if (ptr == nullptr) return record(ensure_context());
  return forward(cuMemFreeHost, ptr);
}

cudaError_t cudaHostRegister(void* ptr, size_t size, unsigned int flags) {
  return forward(cuMemHostRegister_v2, ptr, size, flags);
}

cudaError_t cudaHostUnregister(void* ptr) { return forward(cuMemHostUnregister, ptr); }

cudaError_t cudaHostGetDevicePointer(void** pDevice, void* pHost, unsigned int flags) {
  if (pDevice == nullptr) return record(cudaErrorInvalidValue);
  return forward(cuMemHostGetDevicePointer_v2, address_slot(pDevice), pHost, flags);
}

cudaError_t cudaHostGetFlags(unsigned int* pFlags, void* pHost) {
  return forward(cuMemHostGetFlags, pFlags, pHost);
}

cudaError_t cudaMallocPitch(void** devPtr, size_t* pitch, size_t width, size_t height) {
  if (devPtr == nullptr || pitch == nullptr) return record(cudaErrorInvalidValue);
  return allocate_pitched(devPtr, pitch, width, height);
}

cudaError_t cudaMalloc3D(struct cudaPitchedPtr* pitchedDevPtr, struct cudaExtent extent) {
  if (pitchedDevPtr == nullptr) return record(cudaErrorInvalidValue);
  void* pointer = nullptr;
  size_t pitch = 0;
  size_t rows = 0;
  if (__builtin_mul_overflow(extent.height, extent.depth, &rows)) {
    return record(cudaErrorMemoryAllocation);
  }
  const cudaError_t error = allocate_pitched(&pointer, &pitch, extent.width, rows);
  if (error == cudaSuccess) *pitchedDevPtr = {pointer, pitch, extent.width, extent.height};
  return error;
}

// Memory that the host and the device page between them cannot cross a channel.
cudaError_t cudaMallocManaged(void** devPtr, size_t size, unsigned int flags) {
  if (devPtr == nullptr || size == 0) return record(cudaErrorInvalidValue);
  return forward(cuMemAllocManaged, address_slot(devPtr), size, flags);
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  size_t unasked = 0;
  return forward(cuMemGetInfo_v2, free != nullptr ? free : &unasked,
                 total != nullptr ? total : &unasked);
}

cudaError_t cudaMallocAsync(void** devPtr, size_t size, cudaStream_t hStream) {
  if (devPtr == nullptr) return record(cudaErrorInvalidValue);
  if (size == 0) {
    *devPtr = nullptr;
    return record(ensure_context());
  }
  return forward(cuMemAllocAsync, address_slot(devPtr), size, hStream);
}

cudaError_t cudaFreeAsync(void* devPtr, cudaStream_t hStream) {
  if (devPtr == nullptr) return record(ensure_context());
  return forward(cuMemFreeAsync, device_address(devPtr), hStream);
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes* attributes, const void* ptr) {
  if (attributes == nullptr) return record(cudaErrorInvalidValue);
  if (const cudaError_t error = ensure_context(); error != cudaSuccess) return record(error);
  CUmemorytype type = {};
  int managed = 0;
  int device = cudaInvalidDeviceId;
  void* device_pointer = nullptr;
  void* host_pointer = nullptr;
  CUpointer_attribute asked[] = {
      CU_POINTER_ATTRIBUTE_MEMORY_TYPE,    CU_POINTER_ATTRIBUTE_IS_MANAGED,
      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
      CU_POINTER_ATTRIBUTE_HOST_POINTER,
  };
  void* answers[] = {&type, &managed, &device, &device_pointer, &host_pointer};
  // Answers zeros, not an error, for memory that CUDA does not know.
  const CUresult result = driver(cuPointerGetAttributes, 5u, asked, answers, device_address(ptr));
  if (result != CUDA_SUCCESS) return record(to_runtime(result));
  *attributes = {};
  if (managed != 0) {
    attributes->type = cudaMemoryTypeManaged;
  } else if (type == CU_MEMORYTYPE_HOST) {
    attributes->type = cudaMemoryTypeHost;
  } else if (type == CU_MEMORYTYPE_DEVICE) {
    attributes->type = cudaMemoryTypeDevice;
  } else {
    attributes->type = cudaMemoryTypeUnregistered;
    attributes->device = cudaInvalidDeviceId;
    attributes->hostPointer = const_cast<void*>(ptr);
    return cudaSuccess;
  }
  attributes->device = device;
  attributes->devicePointer = device_pointer;
  attributes->hostPointer = host_pointer;
  return cudaSuccess;
}

}  // extern "C"
