// SPDX-License-Identifier: Apache-2.0
// The runtime's own state: which device a thread uses, the primary contexts that stand behind the
// devices, and each thread's last error. Every exported function passes through here.
// Promises: nothing touches the driver before the first call that needs it; a thread that already
// has a current context pays one comparison; no lock is taken on that path. A context that the
// application made current by the driver API is used as it is, as in NVIDIA's runtime.
#pragma once

#include <atomic>
#include <cstdint>

#include "client/cudart/driver.h"

namespace sluice::cudart {

inline constexpr int kRuntimeVersion = SLUICE_CUDART_VERSION;
inline constexpr int kMaxDevices = 256;

struct ThreadState {
  cudaError_t last_error;
  int device;
  // Equals `context_epoch` while this thread is known to have been given a current context.
  uint32_t bound_epoch;
  // How many it has, which programs change by the driver's functions: 0, and it is given one anew.
  const uint32_t* contexts;
};

extern thread_local constinit ThreadState thread_state __attribute__((tls_model("initial-exec")));
// Moves on when cudaDeviceReset ends contexts, so that every thread looks again. Never 0.
extern std::atomic<uint32_t> context_epoch;

// Records an error for cudaGetLastError and returns it. cudaErrorNotReady is an answer, no error.
inline cudaError_t record(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) [[unlikely]] {
    thread_state.last_error = error;
  }
  return error;
}

// The rest is not recorded: callers do that once, on the way out.
cudaError_t ensure_driver();
cudaError_t bind_context();

inline cudaError_t ensure_context() {
  if (thread_state.bound_epoch == context_epoch.load(std::memory_order_acquire) &&
      *thread_state.contexts != 0) [[likely]] {
    return cudaSuccess;
  }
  return bind_context();
}

// The context was taken from under this thread (cuCtxPopCurrent, a reset): true if it has one
// again.
bool rebind_after(CUresult result);

// The ordinal is checked. Number of devices, or a negative error.
cudaError_t device_count(int* count);
cudaError_t device_handle(int ordinal, CUdevice* device);
cudaError_t ordinal_of(CUdevice device, int* ordinal);
cudaError_t current_device(int* ordinal);
// Retains the device's primary context once per process.
cudaError_t primary_context(int ordinal, CUcontext* context);
cudaError_t use_device(int ordinal);
cudaError_t reset_current_device();

// Runs a driver function on this thread's context and reports as runtime functions do.
template <typename... Params, typename... Args>
inline cudaError_t forward(CUresult (*function)(Params...), Args... args) {
  if (const cudaError_t error = ensure_context(); error != cudaSuccess) return record(error);
  CUresult result = driver(function, args...);
  if (result == CUDA_ERROR_INVALID_CONTEXT && rebind_after(result)) {
    result = driver(function, args...);
  }
  return record(to_runtime(result));
}

// The same for functions that need the driver but no context.
template <typename... Params, typename... Args>
inline cudaError_t forward_without_context(CUresult (*function)(Params...), Args... args) {
  if (const cudaError_t error = ensure_driver(); error != cudaSuccess) return record(error);
  return record(to_runtime(driver(function, args...)));
}

}  // namespace sluice::cudart
