// SPDX-License-Identifier: Apache-2.0
// Kernel launches, from nvcc's <<<>>> and by function. The hot path of every CUDA program: a lookup
// without a lock, one comparison for the context, the driver's launch. What the driver says of a
// launch that cannot be is passed on as it is, as CUDA 13's runtime does; CUDA 12's has a name of
// its own for grids and blocks that no device takes.
#include <cstdint>

#include "client/cudart/launch_config.h"
#include "client/cudart/registry.h"
#include "client/cudart/state.h"
#include "client/cudart/stream.h"

namespace sluice::cudart {
namespace {

struct CallConfiguration {
  dim3 grid;
  dim3 block;
  size_t shared_bytes;
  cudaStream_t stream;
};

// <<<>>> nests only where an argument of one launch makes another.
constexpr int kMaxNestedLaunches = 16;

struct CallStack {
  int depth;
  CallConfiguration calls[kMaxNestedLaunches];
};

thread_local constinit CallStack call_stack __attribute__((tls_model("initial-exec"))) = {};

CUresult call_driver(CUkernel kernel, dim3 grid, dim3 block, void** args, size_t shared_bytes,
                     cudaStream_t stream) {
  return driver(cuLaunchKernel, reinterpret_cast<CUfunction>(kernel), grid.x, grid.y, grid.z,
                block.x, block.y, block.z, static_cast<unsigned>(shared_bytes), stream, args,
                nullptr);
}

// The limits are of all devices that CUDA 12 and 13 know.
bool is_no_configuration(dim3 grid, dim3 block) {
  constexpr unsigned kGridX = 0x7fffffff, kGridYZ = 65535, kBlock = 1024, kBlockZ = 64;
  const bool empty =
      grid.x == 0 || grid.y == 0 || grid.z == 0 || block.x == 0 || block.y == 0 || block.z == 0;
  return empty || grid.x > kGridX || grid.y > kGridYZ || grid.z > kGridYZ || block.x > kBlock ||
         block.y > kBlock || block.z > kBlockZ || block.x * block.y * block.z > kBlock;
}

cudaError_t launched(CUresult result, dim3 grid, dim3 block) {
  const cudaError_t error = to_runtime(result);
  if (SLUICE_CUDART_MAJOR < 13 && error == cudaErrorInvalidValue &&
      is_no_configuration(grid, block))
    return record(cudaErrorInvalidConfiguration);
  return record(error);
}

[[gnu::noinline]] cudaError_t failed_launch(CUresult result, CUkernel kernel, dim3 grid, dim3 block,
                                            void** args, size_t shared_bytes, cudaStream_t stream) {
  if (rebind_after(result)) {
    result = call_driver(kernel, grid, block, args, shared_bytes, stream);
  }
  return launched(result, grid, block);
}

inline cudaError_t launch(CUkernel kernel, dim3 grid, dim3 block, void** args, size_t shared_bytes,
                          cudaStream_t stream) {
  if (shared_bytes > UINT32_MAX) [[unlikely]]
    return record(cudaErrorInvalidValue);
  const CUresult result = call_driver(kernel, grid, block, args, shared_bytes, stream);
  if (result == CUDA_SUCCESS) [[likely]]
    return cudaSuccess;
  return failed_launch(result, kernel, grid, block, args, shared_bytes, stream);
}

inline cudaError_t launch_kernel(Kernel& kernel, dim3 grid, dim3 block, void** args,
                                 size_t shared_bytes, cudaStream_t stream) {
  if (const cudaError_t error = ensure_context(); error != cudaSuccess) [[unlikely]] {
    return record(error);
  }
  CUkernel handle = nullptr;
  if (const cudaError_t error = kernel_handle(kernel, &handle); error != cudaSuccess) [[unlikely]] {
    return record(error);
  }
  return launch(handle, grid, block, args, shared_bytes, stream);
}

[[gnu::noinline]] cudaError_t launch_by_handle(const void* function, dim3 grid, dim3 block,
                                               void** args, size_t shared_bytes,
                                               cudaStream_t stream) {
  if (const cudaError_t error = ensure_context(); error != cudaSuccess) return record(error);
  CUkernel handle = nullptr;
  if (const cudaError_t error = resolve_kernel(function, &handle); error != cudaSuccess) {
    return record(error);
  }
  return launch(handle, grid, block, args, shared_bytes, stream);
}

inline cudaError_t launch_symbol(const void* function, dim3 grid, dim3 block, void** args,
                                 size_t shared_bytes, cudaStream_t stream) {
  if (Kernel* kernel = find_kernel(function)) [[likely]] {
    return launch_kernel(*kernel, grid, block, args, shared_bytes, stream);
  }
  return launch_by_handle(function, grid, block, args, shared_bytes, stream);
}

cudaError_t launch_cooperative(const void* function, dim3 grid, dim3 block, void** args,
                               size_t shared_bytes, cudaStream_t stream) {
  CUkernel handle = nullptr;
  if (const cudaError_t error = ensure_context(); error != cudaSuccess) return record(error);
  if (const cudaError_t error = resolve_kernel(function, &handle); error != cudaSuccess) {
    return record(error);
  }
  if (shared_bytes > UINT32_MAX) return record(cudaErrorInvalidValue);
  const CUresult result =
      driver(cuLaunchCooperativeKernel, reinterpret_cast<CUfunction>(handle), grid.x, grid.y,
             grid.z, block.x, block.y, block.z, static_cast<unsigned>(shared_bytes), stream, args);
  return launched(result, grid, block);
}

cudaError_t launch_with_attributes(const cudaLaunchConfig_t* config, cudaStream_t stream,
                                   const void* function, void** args) {
  CUkernel handle = nullptr;
  if (const cudaError_t error = ensure_context(); error != cudaSuccess) return record(error);
  if (const cudaError_t error = resolve_kernel(function, &handle); error != cudaSuccess) {
    return record(error);
  }
  if (config->dynamicSmemBytes > UINT32_MAX) return record(cudaErrorInvalidValue);
  const CUlaunchConfig native = native_config(*config, stream);
  const CUresult result =
      driver(cuLaunchKernelEx, &native, reinterpret_cast<CUfunction>(handle), args, nullptr);
  return launched(result, config->gridDim, config->blockDim);
}

}  // namespace
}  // namespace sluice::cudart

using namespace sluice::cudart;

extern "C" {

unsigned int __cudaPushCallConfiguration(dim3 gridDim, dim3 blockDim, size_t sharedMem,
                                         CUstream_st* stream) {
  CallStack& stack = call_stack;
  if (stack.depth == kMaxNestedLaunches) return 1;
  stack.calls[stack.depth++] = {gridDim, blockDim, sharedMem, stream};
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* gridDim, dim3* blockDim, size_t* sharedMem,
                                       void* stream) {
  CallStack& stack = call_stack;
  if (stack.depth == 0) return record(cudaErrorMissingConfiguration);
  const CallConfiguration& call = stack.calls[--stack.depth];
  *gridDim = call.grid;
  *blockDim = call.block;
  *sharedMem = call.shared_bytes;
  *static_cast<cudaStream_t*>(stream) = call.stream;
  return cudaSuccess;
}

// The handle goes from nvcc's stub back to __cudaLaunchKernel and nowhere else, so it is the
// registration itself: no driver call here, which runs in a static initialiser, and no lookup
// there.
cudaError_t __cudaGetKernel(cudaKernel_t* handle, const void* entry) {
  Kernel* kernel = find_kernel(entry);
  if (kernel == nullptr) return record(cudaErrorInvalidDeviceFunction);
  *handle = reinterpret_cast<cudaKernel_t>(kernel);
  return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 gridDim, dim3 blockDim, void** args,
                               size_t sharedMem, cudaStream_t stream) {
  if (kernel == nullptr) return record(cudaErrorInvalidDeviceFunction);
  return launch_kernel(*reinterpret_cast<Kernel*>(kernel), gridDim, blockDim, args, sharedMem,
                       stream);
}

cudaError_t __cudaLaunchKernel_ptsz(cudaKernel_t kernel, dim3 gridDim, dim3 blockDim, void** args,
                                    size_t sharedMem, cudaStream_t stream) {
  if (kernel == nullptr) return record(cudaErrorInvalidDeviceFunction);
  return launch_kernel(*reinterpret_cast<Kernel*>(kernel), gridDim, blockDim, args, sharedMem,
                       per_thread(stream));
}

cudaError_t cudaLaunchKernel(const void* func, dim3 gridDim, dim3 blockDim, void** args,
                             size_t sharedMem, cudaStream_t stream) {
  return launch_symbol(func, gridDim, blockDim, args, sharedMem, stream);
}

cudaError_t cudaLaunchKernel_ptsz(const void* func, dim3 gridDim, dim3 blockDim, void** args,
                                  size_t sharedMem, cudaStream_t stream) {
  return launch_symbol(func, gridDim, blockDim, args, sharedMem, per_thread(stream));
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* func, void** args) {
  if (config == nullptr) return record(cudaErrorInvalidValue);
  return launch_with_attributes(config, config->stream, func, args);
}

cudaError_t cudaLaunchKernelExC_ptsz(const cudaLaunchConfig_t* config, const void* func,
                                     void** args) {
  if (config == nullptr) return record(cudaErrorInvalidValue);
  return launch_with_attributes(config, per_thread(config->stream), func, args);
}

cudaError_t cudaLaunchCooperativeKernel(const void* func, dim3 gridDim, dim3 blockDim, void** args,
                                        size_t sharedMem, cudaStream_t stream) {
  return launch_cooperative(func, gridDim, blockDim, args, sharedMem, stream);
}

}  // extern "C"
