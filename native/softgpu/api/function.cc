// SPDX-License-Identifier: Apache-2.0
// Functions: attributes, parameters, occupancy.
#include <algorithm>

#include "softgpu/api/api.h"
#include "softgpu/runtime/launch.h"
#include "softgpu/runtime/library.h"

namespace sluice::softgpu {
namespace {

template <class F>
CUresult with_function(CUfunction handle, F&& body) noexcept {
  return with_context([&](Context& context) -> CUresult {
    CUresult why = CUDA_SUCCESS;
    KernelFunction* function = launchable(context, handle, why);
    return function ? body(*function) : why;
  });
}

CUresult attribute(const KernelFunction& kernel, CUfunction_attribute which, int& value) {
  const Function& function = *kernel.function;
  switch (which) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      value = static_cast<int>(max_threads(kernel));
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
      value = static_cast<int>(function.static_shared);
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
      value = static_cast<int>(function.const_bytes);
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
      value = static_cast<int>(function.local_bytes);
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
      // Virtual registers, cut to what a thread of a real device could have.
      value = static_cast<int>(std::min(function.register_words, 255u));
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
      value = static_cast<int>(kernel.module->program().target);
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
      value = kComputeMajor * 10 + kComputeMinor;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_CACHE_MODE_CA:
      value = 0;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      value = static_cast<int>(dynamic_shared_limit(kernel));
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      value = kernel.settings.carveout.load();
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
      value = 0;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace
}  // namespace sluice::softgpu

using namespace sluice::softgpu;

CUresult cuFuncGetAttribute(int* value, CUfunction_attribute which, CUfunction handle) {
  return with_function(handle, [&](KernelFunction& kernel) -> CUresult {
    return value ? attribute(kernel, which, *value) : CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult cuFuncSetAttribute(CUfunction handle, CUfunction_attribute which, int value) {
  return with_function(handle, [&](KernelFunction& kernel) -> CUresult {
    switch (which) {
      case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: {
        int room = static_cast<int>(kSharedPerBlockOptIn) -
                   static_cast<int>(kernel.function->static_shared);
        if (value < 0 || value > room) return CUDA_ERROR_INVALID_VALUE;
        kernel.settings.max_dynamic_shared = value;
        return CUDA_SUCCESS;
      }
      case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        if (value < -1 || value > 100) return CUDA_ERROR_INVALID_VALUE;
        kernel.settings.carveout = value;
        return CUDA_SUCCESS;
      case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
      case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
        return CUDA_SUCCESS;  // preferences for clusters, which hold one block here
      default:
        return CUDA_ERROR_INVALID_VALUE;
    }
  });
}

CUresult cuFuncSetCacheConfig(CUfunction handle, CUfunc_cache config) {
  return with_function(handle, [&](KernelFunction& kernel) -> CUresult {
    kernel.settings.cache_config = config;
    return CUDA_SUCCESS;
  });
}

CUresult cuFuncSetSharedMemConfig(CUfunction handle, CUsharedconfig) {
  return with_function(handle, [](KernelFunction&) { return CUDA_SUCCESS; });
}

CUresult cuFuncGetName(const char** name, CUfunction handle) {
  return with_function(handle, [&](KernelFunction& kernel) -> CUresult {
    if (!name) return CUDA_ERROR_INVALID_VALUE;
    *name = kernel.function->name.c_str();
    return CUDA_SUCCESS;
  });
}

CUresult cuFuncGetModule(CUmodule* module, CUfunction handle) {
  return with_function(handle, [&](KernelFunction& kernel) -> CUresult {
    if (!module) return CUDA_ERROR_INVALID_VALUE;
    *module = reinterpret_cast<CUmodule>(kernel.module);
    return CUDA_SUCCESS;
  });
}

CUresult cuFuncGetParamInfo(CUfunction handle, size_t index, size_t* offset, size_t* size) {
  return with_function(handle, [&](KernelFunction& kernel) -> CUresult {
    const auto& parameters = kernel.function->parameters;
    if (!offset || index >= parameters.size()) return CUDA_ERROR_INVALID_VALUE;
    *offset = parameters[index].offset;
    if (size) *size = parameters[index].size;
    return CUDA_SUCCESS;
  });
}

CUresult cuFuncIsLoaded(CUfunctionLoadingState* state, CUfunction handle) {
  return with_function(handle, [&](KernelFunction&) -> CUresult {
    if (!state) return CUDA_ERROR_INVALID_VALUE;
    *state = CU_FUNCTION_LOADING_STATE_LOADED;
    return CUDA_SUCCESS;
  });
}

CUresult cuFuncLoad(CUfunction handle) {
  return with_function(handle, [](KernelFunction&) { return CUDA_SUCCESS; });
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, CUfunction handle,
                                                              int threads, size_t shared,
                                                              unsigned int flags) {
  return with_function(handle, [&](KernelFunction& kernel) -> CUresult {
    if (!blocks || threads <= 0 || flags > CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *blocks = static_cast<int>(blocks_per_sm(kernel, static_cast<unsigned>(threads), shared));
    return CUDA_SUCCESS;
  });
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction handle, int threads,
                                                     size_t shared) {
  return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, handle, threads, shared, 0);
}

CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int* grid, int* block, CUfunction handle,
                                                   CUoccupancyB2DSize shared_of, size_t shared,
                                                   int limit, unsigned int flags) {
  return with_function(handle, [&](KernelFunction& kernel) -> CUresult {
    if (!grid || !block || flags > CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    unsigned most = max_threads(kernel);
    if (limit > 0) most = std::min(most, static_cast<unsigned>(limit));
    unsigned best = 0;
    *grid = *block = 0;
    for (unsigned threads = most; threads > 0;
         threads = threads > 32 ? (threads - 1) / 32 * 32 : 0) {
      size_t bytes = shared_of ? shared_of(static_cast<int>(threads)) : shared;
      unsigned blocks = blocks_per_sm(kernel, threads, bytes);
      if (blocks * threads <= best) continue;
      best = blocks * threads;
      *block = static_cast<int>(threads);
      *grid = static_cast<int>(blocks * kernel.module->context().device().sm_count);
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuOccupancyMaxPotentialBlockSize(int* grid, int* block, CUfunction handle,
                                          CUoccupancyB2DSize shared_of, size_t shared, int limit) {
  return cuOccupancyMaxPotentialBlockSizeWithFlags(grid, block, handle, shared_of, shared, limit,
                                                   0);
}

CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, CUfunction handle, int blocks,
                                                 int threads) {
  return with_function(handle, [&](KernelFunction& kernel) -> CUresult {
    if (!bytes || blocks <= 0 || threads <= 0) return CUDA_ERROR_INVALID_VALUE;
    unsigned fixed = kernel.function->static_shared + kSharedReserved;
    unsigned share = kSharedPerSm / static_cast<unsigned>(blocks);
    unsigned room = share > fixed ? share - fixed : 0;
    *bytes = std::min(room, dynamic_shared_limit(kernel));
    return CUDA_SUCCESS;
  });
}
