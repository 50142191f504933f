// SPDX-License-Identifier: Apache-2.0
// What nvcc's code registered: fat binaries, and the kernels and variables in them, found by the
// address of their host stub or shadow. Filled by registration.cc in static constructors, without a
// driver call; the driver sees a fat binary at its first use. launch.cc, function.cc and symbol.cc
// ask.
#pragma once

#include <atomic>
#include <cstddef>

#include "client/cudart/driver.h"

namespace sluice::cudart {

struct Module;

struct Kernel {
  Module* module;
  const void* host_stub;
  const char* name;
  // Context-independent, so one handle serves every device.
  std::atomic<CUkernel> handle{nullptr};
  // What the driver calls it as a function, where that is another handle.
  std::atomic<CUfunction> function{nullptr};
};

struct Variable {
  Module* module;
  const void* host_shadow;
  const char* name;
  size_t size;
  bool managed;
  std::atomic<void*> address{nullptr};  // a managed one's, once it is known
};

Kernel* find_kernel(const void* host_stub);
Variable* find_variable(const void* host_shadow);
// The kernel behind one of the driver's handles; nullptr when it came from elsewhere.
Kernel* find_kernel_of(const void* handle);

// Loads the fat binary if need be. cudaErrorInvalidDeviceFunction when it holds no such kernel.
cudaError_t load_kernel(Kernel& kernel, CUkernel* handle);
inline cudaError_t kernel_handle(Kernel& kernel, CUkernel* handle) {
  *handle = kernel.handle.load(std::memory_order_acquire);
  return *handle != nullptr ? cudaSuccess : load_kernel(kernel, handle);
}

// A host stub or a kernel handle, as the runtime's functions take them. What is no stub is believed
// to be a handle; the driver knows its own and refuses the rest.
cudaError_t resolve_kernel(const void* function, CUkernel* handle);
// The same as a function of this thread's current context.
cudaError_t resolve_function(const void* function, CUfunction* result);

// The variable's address on this thread's current device.
cudaError_t variable_address(const Variable& variable, CUdeviceptr* address, size_t* size);

}  // namespace sluice::cudart
