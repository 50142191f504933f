// SPDX-License-Identifier: Apache-2.0
// Kernels as objects: handles for host stubs, attributes, parameters and occupancy.
#include "client/cudart/launch_config.h"
#include "client/cudart/registry.h"
#include "client/cudart/state.h"

using namespace sluice::cudart;

namespace {

// Forwards a driver function whose first argument is the function.
template <typename Call>
cudaError_t on_function(const void* symbol, Call call) {
  CUfunction function = nullptr;
  if (const cudaError_t error = resolve_function(symbol, &function); error != cudaSuccess) {
    return record(error);
  }
  return record(to_runtime(call(function)));
}

struct AttributeReader {
  CUfunction function;
  CUresult result = CUDA_SUCCESS;

  int operator()(CUfunction_attribute which) {
    int value = 0;
    if (result == CUDA_SUCCESS) result = driver(cuFuncGetAttribute, &value, which, function);
    return value;
  }
  // For attributes that came later than the driver at hand may be.
  int optional(CUfunction_attribute which) const {
    int value = 0;
    return driver(cuFuncGetAttribute, &value, which, function) == CUDA_SUCCESS ? value : 0;
  }
};

}  // namespace

extern "C" {

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes* attr, const void* func) {
  if (attr == nullptr) return record(cudaErrorInvalidValue);
  CUfunction function = nullptr;
  if (const cudaError_t error = resolve_function(func, &function); error != cudaSuccess) {
    return record(error);
  }
  AttributeReader read{function};
  cudaFuncAttributes result = {};
  result.sharedSizeBytes = static_cast<size_t>(read(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES));
  result.constSizeBytes = static_cast<size_t>(read(CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES));
  result.localSizeBytes = static_cast<size_t>(read(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES));
  result.maxThreadsPerBlock = read(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
  result.numRegs = read(CU_FUNC_ATTRIBUTE_NUM_REGS);
  result.ptxVersion = read(CU_FUNC_ATTRIBUTE_PTX_VERSION);
  result.binaryVersion = read(CU_FUNC_ATTRIBUTE_BINARY_VERSION);
  result.cacheModeCA = read(CU_FUNC_ATTRIBUTE_CACHE_MODE_CA);
  result.maxDynamicSharedSizeBytes = read(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
  result.preferredShmemCarveout = read(CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT);
  if (read.result != CUDA_SUCCESS) return record(to_runtime(read.result));
  result.clusterDimMustBeSet = read.optional(CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET);
  result.requiredClusterWidth = read.optional(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH);
  result.requiredClusterHeight = read.optional(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT);
  result.requiredClusterDepth = read.optional(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH);
  result.clusterSchedulingPolicyPreference =
      read.optional(CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE);
  result.nonPortableClusterSizeAllowed =
      read.optional(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED);
  *attr = result;
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void* func, enum cudaFuncAttribute attr, int value) {
  return on_function(func, [&](CUfunction function) {
    return driver(cuFuncSetAttribute, function, static_cast<CUfunction_attribute>(attr), value);
  });
}

cudaError_t cudaFuncSetCacheConfig(const void* func, enum cudaFuncCache cacheConfig) {
  return on_function(func, [&](CUfunction function) {
    return driver(cuFuncSetCacheConfig, function, static_cast<CUfunc_cache>(cacheConfig));
  });
}

cudaError_t cudaFuncSetSharedMemConfig(const void* func, enum cudaSharedMemConfig config) {
  return on_function(func, [&](CUfunction function) {
    return driver(cuFuncSetSharedMemConfig, function, static_cast<CUsharedconfig>(config));
  });
}

cudaError_t cudaFuncGetName(const char** name, const void* func) {
  if (name == nullptr) return record(cudaErrorInvalidValue);
  if (const Kernel* kernel = find_kernel(func)) {
    *name = kernel->name;
    return cudaSuccess;
  }
  return on_function(func,
                     [&](CUfunction function) { return driver(cuFuncGetName, name, function); });
}

cudaError_t cudaFuncGetParamInfo(const void* func, size_t paramIndex, size_t* paramOffset,
                                 size_t* paramSize) {
  return on_function(func, [&](CUfunction function) {
    return driver(cuFuncGetParamInfo, function, paramIndex, paramOffset, paramSize);
  });
}

cudaError_t cudaGetFuncBySymbol(cudaFunction_t* functionPtr, const void* symbolPtr) {
  if (functionPtr == nullptr) return record(cudaErrorInvalidValue);
  return record(resolve_function(symbolPtr, functionPtr));
}

cudaError_t cudaGetKernel(cudaKernel_t* kernelPtr, const void* entryFuncAddr) {
  if (kernelPtr == nullptr) return record(cudaErrorInvalidValue);
  if (const cudaError_t error = ensure_context(); error != cudaSuccess) return record(error);
  Kernel* kernel = find_kernel(entryFuncAddr);
  if (kernel == nullptr) return record(cudaErrorInvalidDeviceFunction);
  return record(kernel_handle(*kernel, kernelPtr));
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* numBlocks, const void* func,
                                                          int blockSize, size_t dynamicSMemSize) {
  return on_function(func, [&](CUfunction function) {
    return driver(cuOccupancyMaxActiveBlocksPerMultiprocessor, numBlocks, function, blockSize,
                  dynamicSMemSize);
  });
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* numBlocks, const void* func,
                                                                   int blockSize,
                                                                   size_t dynamicSMemSize,
                                                                   unsigned int flags) {
  return on_function(func, [&](CUfunction function) {
    return driver(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, numBlocks, function,
                  blockSize, dynamicSMemSize, flags);
  });
}

cudaError_t cudaOccupancyAvailableDynamicSMemPerBlock(size_t* dynamicSmemSize, const void* func,
                                                      int numBlocks, int blockSize) {
  return on_function(func, [&](CUfunction function) {
    return driver(cuOccupancyAvailableDynamicSMemPerBlock, dynamicSmemSize, function, numBlocks,
                  blockSize);
  });
}

cudaError_t cudaOccupancyMaxPotentialClusterSize(int* clusterSize, const void* func,
                                                 const cudaLaunchConfig_t* launchConfig) {
  if (launchConfig == nullptr) return record(cudaErrorInvalidValue);
  const CUlaunchConfig native = native_config(*launchConfig, launchConfig->stream);
  return on_function(func, [&](CUfunction function) {
    return driver(cuOccupancyMaxPotentialClusterSize, clusterSize, function, &native);
  });
}

cudaError_t cudaOccupancyMaxActiveClusters(int* numClusters, const void* func,
                                           const cudaLaunchConfig_t* launchConfig) {
  if (launchConfig == nullptr) return record(cudaErrorInvalidValue);
  const CUlaunchConfig native = native_config(*launchConfig, launchConfig->stream);
  return on_function(func, [&](CUfunction function) {
    return driver(cuOccupancyMaxActiveClusters, numClusters, function, &native);
  });
}

}  // extern "C"
