// SPDX-License-Identifier: Apache-2.0
// Driver initialisation, primary contexts and what is current on a thread; see state.h.
#include "client/cudart/state.h"

#include <mutex>

namespace sluice::cudart {

thread_local constinit ThreadState thread_state = {cudaSuccess, 0, 0, nullptr};
constinit std::atomic<uint32_t> context_epoch{1};

namespace {

struct DeviceSlot {
  std::mutex mutex;
  std::atomic<CUcontext> primary{nullptr};
  // What a reset left behind: a thread that still has it current has nothing.
  std::atomic<CUcontext> ended{nullptr};
};

constinit DeviceSlot slots[kMaxDevices];
constinit std::atomic<bool> driver_ready{false};
constinit std::mutex driver_mutex;
constinit std::atomic<int> known_devices{0};

bool ended_by_reset(CUcontext context) {
  const int count = known_devices.load(std::memory_order_acquire);
  for (int i = 0; i < count && i < kMaxDevices; ++i) {
    if (slots[i].ended.load(std::memory_order_acquire) == context &&
        slots[i].primary.load(std::memory_order_acquire) != context) {
      return true;
    }
  }
  return false;
}

constexpr uint32_t kSome = 1;  // where the driver does not tell

void note_bound() {
  const uint32_t* const told =
      sluice_runtime_contexts != nullptr ? sluice_runtime_contexts() : nullptr;
  thread_state.contexts = told != nullptr ? told : &kSome;
  thread_state.bound_epoch = context_epoch.load(std::memory_order_acquire);
}

}  // namespace

cudaError_t ensure_driver() {
  if (driver_ready.load(std::memory_order_acquire)) return cudaSuccess;
  std::lock_guard lock(driver_mutex);
  if (driver_ready.load(std::memory_order_relaxed)) return cudaSuccess;
  if (sluice_runtime_version != nullptr) sluice_runtime_version(kRuntimeVersion);
  if (const CUresult result = driver(cuInit, 0u); result != CUDA_SUCCESS) {
    return to_runtime(result);
  }
  int version = 0;
  if (const CUresult result = driver(cuDriverGetVersion, &version); result != CUDA_SUCCESS) {
    return to_runtime(result);
  }
  // A driver serves every runtime of its major version.
  if (version / 1000 < kRuntimeVersion / 1000) return cudaErrorInsufficientDriver;
  int count = 0;
  if (const CUresult result = driver(cuDeviceGetCount, &count); result != CUDA_SUCCESS) {
    return to_runtime(result);
  }
  if (count == 0) return cudaErrorNoDevice;
  known_devices.store(count < kMaxDevices ? count : kMaxDevices, std::memory_order_release);
  driver_ready.store(true, std::memory_order_release);
  return cudaSuccess;
}

cudaError_t device_count(int* count) {
  if (const cudaError_t error = ensure_driver(); error != cudaSuccess) return error;
  // Asked anew, since a forked child is to hear from its driver that it has none.
  const CUresult result = driver(cuDeviceGetCount, count);
  if (result == CUDA_SUCCESS && *count > kMaxDevices) *count = kMaxDevices;
  return to_runtime(result);
}

cudaError_t device_handle(int ordinal, CUdevice* device) {
  if (const cudaError_t error = ensure_driver(); error != cudaSuccess) return error;
  if (ordinal < 0 || ordinal >= known_devices.load(std::memory_order_acquire)) {
    return cudaErrorInvalidDevice;
  }
  return to_runtime(driver(cuDeviceGet, device, ordinal));
}

cudaError_t ordinal_of(CUdevice device, int* ordinal) {
  const int count = known_devices.load(std::memory_order_acquire);
  for (int i = 0; i < count; ++i) {
    CUdevice candidate = 0;
    if (driver(cuDeviceGet, &candidate, i) == CUDA_SUCCESS && candidate == device) {
      *ordinal = i;
      return cudaSuccess;
    }
  }
  return cudaErrorInvalidDevice;
}

cudaError_t primary_context(int ordinal, CUcontext* context) {
  CUdevice device = 0;
  if (const cudaError_t error = device_handle(ordinal, &device); error != cudaSuccess) {
    return error;
  }
  DeviceSlot& slot = slots[ordinal];
  *context = slot.primary.load(std::memory_order_acquire);
  if (*context != nullptr) return cudaSuccess;
  std::lock_guard lock(slot.mutex);
  *context = slot.primary.load(std::memory_order_relaxed);
  if (*context != nullptr) return cudaSuccess;
  const CUresult result = driver(cuDevicePrimaryCtxRetain, context, device);
  if (result != CUDA_SUCCESS) return to_runtime(result);
  slot.primary.store(*context, std::memory_order_release);
  return cudaSuccess;
}

cudaError_t bind_context() {
  if (const cudaError_t error = ensure_driver(); error != cudaSuccess) return error;
  CUcontext current = nullptr;
  if (const CUresult result = driver(cuCtxGetCurrent, &current); result != CUDA_SUCCESS) {
    return to_runtime(result);
  }
  if (current != nullptr && !ended_by_reset(current)) {
    note_bound();
    return cudaSuccess;
  }
  CUcontext primary = nullptr;
  if (const cudaError_t error = primary_context(thread_state.device, &primary);
      error != cudaSuccess) {
    return error;
  }
  const CUresult result = driver(cuCtxSetCurrent, primary);
  if (result != CUDA_SUCCESS) return to_runtime(result);
  note_bound();
  return cudaSuccess;
}

bool rebind_after(CUresult result) {
  if (result != CUDA_ERROR_INVALID_CONTEXT) return false;
  CUcontext current = nullptr;
  if (driver(cuCtxGetCurrent, &current) != CUDA_SUCCESS || current != nullptr) return false;
  thread_state.bound_epoch = 0;
  return bind_context() == cudaSuccess;
}

cudaError_t current_device(int* ordinal) {
  *ordinal = thread_state.device;
  if (!driver_ready.load(std::memory_order_acquire)) return cudaSuccess;
  CUcontext current = nullptr;
  CUdevice device = 0;
  if (driver(cuCtxGetCurrent, &current) != CUDA_SUCCESS || current == nullptr ||
      driver(cuCtxGetDevice, &device) != CUDA_SUCCESS) {
    return cudaSuccess;
  }
  return ordinal_of(device, ordinal);
}

cudaError_t use_device(int ordinal) {
  CUcontext primary = nullptr;
  if (const cudaError_t error = primary_context(ordinal, &primary); error != cudaSuccess) {
    return error;
  }
  thread_state.device = ordinal;
  CUcontext current = nullptr;
  if (driver(cuCtxGetCurrent, &current) != CUDA_SUCCESS || current != primary) {
    const CUresult result = driver(cuCtxSetCurrent, primary);
    if (result != CUDA_SUCCESS) return to_runtime(result);
  }
  note_bound();
  return cudaSuccess;
}

cudaError_t reset_current_device() {
  int ordinal = 0;
  CUdevice device = 0;
  if (const cudaError_t error = ensure_driver(); error != cudaSuccess) return error;
  if (const cudaError_t error = current_device(&ordinal); error != cudaSuccess) return error;
  if (const cudaError_t error = device_handle(ordinal, &device); error != cudaSuccess) {
    return error;
  }
  DeviceSlot& slot = slots[ordinal];
  std::lock_guard lock(slot.mutex);
  const CUcontext primary = slot.primary.exchange(nullptr, std::memory_order_acq_rel);
  const CUresult result = driver(cuDevicePrimaryCtxReset_v2, device);
  if (primary != nullptr) {
    slot.ended.store(primary, std::memory_order_release);
    CUcontext current = nullptr;
    if (driver(cuCtxGetCurrent, &current) == CUDA_SUCCESS && current == primary) {
      driver(cuCtxSetCurrent, static_cast<CUcontext>(nullptr));
    }
    driver(cuDevicePrimaryCtxRelease_v2, device);
  }
  uint32_t next = context_epoch.load(std::memory_order_relaxed) + 1;
  if (next == 0) next = 1;
  context_epoch.store(next, std::memory_order_release);
  thread_state.device = ordinal;
  return to_runtime(result);
}

}  // namespace sluice::cudart
