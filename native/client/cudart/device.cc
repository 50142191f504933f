// SPDX-License-Identifier: Apache-2.0
// Devices: which there are, which one this thread uses, flags, limits, synchronising and resetting.
#include "client/cudart/state.h"

using namespace sluice::cudart;

namespace {

// Forwards a driver function that takes a device, given by ordinal.
template <typename Call>
cudaError_t on_device(int ordinal, Call call) {
  CUdevice device = 0;
  if (const cudaError_t error = device_handle(ordinal, &device); error != cudaSuccess) {
    return record(error);
  }
  return record(to_runtime(call(device)));
}

constexpr unsigned kKnownFlags =
    cudaDeviceScheduleMask | cudaDeviceMapHost | cudaDeviceLmemResizeToMax | cudaDeviceSyncMemops;

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  if (count == nullptr) return record(cudaErrorInvalidValue);
  *count = 0;
  return record(device_count(count));
}

cudaError_t cudaGetDevice(int* device) {
  if (device == nullptr) return record(cudaErrorInvalidValue);
  if (const cudaError_t error = ensure_driver(); error != cudaSuccess) return record(error);
  return record(current_device(device));
}

cudaError_t cudaSetDevice(int device) { return record(use_device(device)); }

cudaError_t cudaInitDevice(int device, unsigned int deviceFlags, unsigned int flags) {
  if (flags != 0 && flags != cudaInitDeviceFlagsAreValid) return record(cudaErrorInvalidValue);
  if (flags == cudaInitDeviceFlagsAreValid) {
    const cudaError_t error = on_device(device, [&](CUdevice handle) {
      return driver(cuDevicePrimaryCtxSetFlags_v2, handle, deviceFlags);
    });
    if (error != cudaSuccess) return error;
  }
  CUcontext context = nullptr;
  return record(primary_context(device, &context));
}

// Every device of the list is valid for Sluice: nothing is exclusive to another process.
cudaError_t cudaSetValidDevices(int* device_arr, int len) {
  if (len < 0 || (len > 0 && device_arr == nullptr)) return record(cudaErrorInvalidValue);
  for (int i = 0; i < len; ++i) {
    CUdevice device = 0;
    if (const cudaError_t error = device_handle(device_arr[i], &device); error != cudaSuccess) {
      return record(error);
    }
  }
  if (len > 0 && thread_state.bound_epoch == 0) thread_state.device = device_arr[0];
  return cudaSuccess;
}

cudaError_t cudaSetDeviceFlags(unsigned int flags) {
  if ((flags & ~kKnownFlags) != 0) return record(cudaErrorInvalidValue);
  int ordinal = 0;
  if (const cudaError_t error = ensure_driver(); error != cudaSuccess) return record(error);
  if (const cudaError_t error = current_device(&ordinal); error != cudaSuccess) {
    return record(error);
  }
  // The driver has no bit for mapped host memory; it is always on.
  return on_device(ordinal, [&](CUdevice device) {
    return driver(cuDevicePrimaryCtxSetFlags_v2, device, flags & ~unsigned{cudaDeviceMapHost});
  });
}

cudaError_t cudaGetDeviceFlags(unsigned int* flags) {
  if (flags == nullptr) return record(cudaErrorInvalidValue);
  int ordinal = 0;
  if (const cudaError_t error = ensure_driver(); error != cudaSuccess) return record(error);
  if (const cudaError_t error = current_device(&ordinal); error != cudaSuccess) {
    return record(error);
  }
  int active = 0;
  const cudaError_t error = on_device(ordinal, [&](CUdevice device) {
    return driver(cuDevicePrimaryCtxGetState, device, flags, &active);
  });
  if (error == cudaSuccess) *flags |= cudaDeviceMapHost;
  return error;
}

cudaError_t cudaDeviceSynchronize(void) { return forward(cuCtxSynchronize); }

cudaError_t cudaDeviceReset(void) { return record(reset_current_device()); }

cudaError_t cudaDeviceSetLimit(enum cudaLimit limit, size_t value) {
  return forward(cuCtxSetLimit, static_cast<CUlimit>(limit), value);
}

cudaError_t cudaDeviceGetLimit(size_t* pValue, enum cudaLimit limit) {
  return forward(cuCtxGetLimit, pValue, static_cast<CUlimit>(limit));
}

cudaError_t cudaDeviceGetCacheConfig(enum cudaFuncCache* pCacheConfig) {
  return forward(cuCtxGetCacheConfig, reinterpret_cast<CUfunc_cache*>(pCacheConfig));
}

cudaError_t cudaDeviceSetCacheConfig(enum cudaFuncCache cacheConfig) {
  return forward(cuCtxSetCacheConfig, static_cast<CUfunc_cache>(cacheConfig));
}

cudaError_t cudaDeviceGetSharedMemConfig(enum cudaSharedMemConfig* pConfig) {
  return forward(cuCtxGetSharedMemConfig, reinterpret_cast<CUsharedconfig*>(pConfig));
}

cudaError_t cudaDeviceSetSharedMemConfig(enum cudaSharedMemConfig config) {
  return forward(cuCtxSetSharedMemConfig, static_cast<CUsharedconfig>(config));
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* leastPriority, int* greatestPriority) {
  return forward(cuCtxGetStreamPriorityRange, leastPriority, greatestPriority);
}

cudaError_t cudaCtxResetPersistingL2Cache(void) { return forward(cuCtxResetPersistingL2Cache); }

cudaError_t cudaDeviceGetAttribute(int* value, enum cudaDeviceAttr attr, int device) {
  if (value == nullptr) return record(cudaErrorInvalidValue);
  return on_device(device, [&](CUdevice handle) {
    return driver(cuDeviceGetAttribute, value, static_cast<CUdevice_attribute>(attr), handle);
  });
}

cudaError_t cudaDeviceGetByPCIBusId(int* device, const char* pciBusId) {
  if (device == nullptr || pciBusId == nullptr) return record(cudaErrorInvalidValue);
  if (const cudaError_t error = ensure_driver(); error != cudaSuccess) return record(error);
  CUdevice handle = 0;
  const CUresult result = driver(cuDeviceGetByPCIBusId, &handle, pciBusId);
  if (result != CUDA_SUCCESS) return record(to_runtime(result));
  return record(ordinal_of(handle, device));
}

cudaError_t cudaDeviceGetPCIBusId(char* pciBusId, int len, int device) {
  return on_device(
      device, [&](CUdevice handle) { return driver(cuDeviceGetPCIBusId, pciBusId, len, handle); });
}

cudaError_t cudaDeviceGetHostAtomicCapabilities(unsigned int* capabilities,
                                                const enum cudaAtomicOperation* operations,
                                                unsigned int count, int device) {
  return on_device(device, [&](CUdevice handle) {
    return driver(cuDeviceGetHostAtomicCapabilities, capabilities,
                  reinterpret_cast<const CUatomicOperation*>(operations), count, handle);
  });
}

cudaError_t cudaDeviceFlushGPUDirectRDMAWrites(enum cudaFlushGPUDirectRDMAWritesTarget target,
                                               enum cudaFlushGPUDirectRDMAWritesScope scope) {
  return forward(cuFlushGPUDirectRDMAWrites, static_cast<CUflushGPUDirectRDMAWritesTarget>(target),
                 static_cast<CUflushGPUDirectRDMAWritesScope>(scope));
}

cudaError_t cudaDriverGetVersion(int* driverVersion) {
  if (driverVersion == nullptr) return record(cudaErrorInvalidValue);
  *driverVersion = 0;
  return record(to_runtime(driver(cuDriverGetVersion, driverVersion)));
}

cudaError_t cudaRuntimeGetVersion(int* runtimeVersion) {
  if (runtimeVersion == nullptr) return record(cudaErrorInvalidValue);
  *runtimeVersion = kRuntimeVersion;
  return cudaSuccess;
}

cudaError_t cudaProfilerStart(void) { return forward(cuProfilerStart); }
cudaError_t cudaProfilerStop(void) { return forward(cuProfilerStop); }

}  // extern "C"
