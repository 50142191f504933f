// SPDX-License-Identifier: Apache-2.0
// cudaDeviceProp of CUDA 12: the newest runtime's, and what left it since then.
#include <cstddef>

#include "abi/cuda12_runtime.h"
#include "client/cudart/state.h"

using namespace sluice::cudart;

namespace sluice::cuda12 {

namespace {

// What the structure had when CUDA 11 compiled against it: what came later is behind it.
constexpr size_t kFirstVersionBytes = offsetof(cudaDeviceProp, hostRegisterSupported);

// An attribute that the driver does not know stays 0.
int attribute(CUdevice_attribute which, CUdevice device) {
  int value = 0;
  return driver(cuDeviceGetAttribute, &value, which, device) == CUDA_SUCCESS ? value : 0;
}

cudaError_t fill(cudaDeviceProp* properties, int ordinal) {
  ::cudaDeviceProp newest;
  if (const cudaError_t error = ::cudaGetDeviceProperties(&newest, ordinal); error != cudaSuccess) {
    return error;
  }
  convert(newest, properties);
  CUdevice device = 0;
  if (const cudaError_t error = device_handle(ordinal, &device); error != cudaSuccess) return error;
  properties->clockRate = attribute(CU_DEVICE_ATTRIBUTE_CLOCK_RATE, device);
  properties->deviceOverlap = attribute(CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, device);
  properties->kernelExecTimeoutEnabled = attribute(CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT, device);
  properties->computeMode = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, device);
  properties->maxTexture1DLinear =
      attribute(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH, device);
  properties->memoryClockRate = attribute(CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, device);
  properties->singleToDoublePrecisionPerfRatio =
      attribute(CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO, device);
  properties->cooperativeMultiDeviceLaunch =
      attribute(CU_DEVICE_ATTRIBUTE_COOPERATIVE_MULTI_DEVICE_LAUNCH, device);
  return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudart12_cudaGetDeviceProperties_v2(cudaDeviceProp* prop, int device) {
  if (prop == nullptr) return record(cudaErrorInvalidValue);
  return record(fill(prop, device));
}

// The name without a version is from before CUDA 12, whose header says _v2 for it: the structure
// of its callers ends earlier.
cudaError_t cudart12_cudaGetDeviceProperties(cudaDeviceProp* prop, int device) {
  if (prop == nullptr) return record(cudaErrorInvalidValue);
  cudaDeviceProp whole;
  if (const cudaError_t error = fill(&whole, device); error != cudaSuccess) return record(error);
  std::memcpy(static_cast<void*>(prop), &whole, kFirstVersionBytes);
  return cudaSuccess;
}

// Neither does anything since double precision is in every device.
cudaError_t cudart12_cudaSetDoubleForDevice(double*) { return cudaSuccess; }
cudaError_t cudart12_cudaSetDoubleForHost(double*) { return cudaSuccess; }

}  // extern "C"

}  // namespace sluice::cuda12
