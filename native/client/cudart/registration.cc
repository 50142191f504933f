// SPDX-License-Identifier: Apache-2.0
// The host ABI that nvcc emits for registration (crt/host_runtime.h), and the loading of what was
// registered, at first use. Static constructors call this, from several threads when libraries are
// opened concurrently, and exit handlers take it back.
#include <cstdint>
#include <deque>
#include <mutex>

#include "client/cudart/pointer_map.h"
#include "client/cudart/registry.h"
#include "client/cudart/state.h"

namespace sluice::cudart {

// The structure that nvcc puts into section .nvFatBinSegment (fatbinary_section.h).
struct FatBinaryWrapper {
  int magic;
  int version;
  const void* data;
  void* prelinked;
};

struct Module {
  const void* image;
  std::mutex mutex;
  std::atomic<CUlibrary> library{nullptr};
  // Deques: elements stay where they are, and the maps point at them.
  std::deque<Kernel> kernels;
  std::deque<Variable> variables;
};

namespace {

constexpr int kWrapperMagic = 0x466243b1;
constexpr int kWrapperOfLinkedBinary = 2;

constinit PointerMap<Kernel> kernels;
constinit PointerMap<Variable> variables;
// By the driver's handles, a kernel's own and those of functions that were made of it.
constinit PointerMap<Kernel> kernels_by_handle;

Module* module_of(void** handle) { return reinterpret_cast<Module*>(handle); }

// Version 1 wraps one fat binary, which the driver takes as it would from a file. Version 2 also
// lists the parts that were linked, and only the wrapper leads to them.
const void* image_of(void* fat_binary) {
  const auto* wrapper = static_cast<const FatBinaryWrapper*>(fat_binary);
  if (wrapper->magic == kWrapperMagic && wrapper->version != kWrapperOfLinkedBinary) {
    return wrapper->data;
  }
  return fat_binary;
}

cudaError_t load_module(Module& module, CUlibrary* library) {
  *library = module.library.load(std::memory_order_acquire);
  if (*library != nullptr) return cudaSuccess;
  std::lock_guard lock(module.mutex);
  *library = module.library.load(std::memory_order_relaxed);
  if (*library != nullptr) return cudaSuccess;
  const CUresult result =
      driver(cuLibraryLoadData, library, module.image, nullptr, nullptr, 0u, nullptr, nullptr, 0u);
  if (result != CUDA_SUCCESS) return to_runtime(result);
  module.library.store(*library, std::memory_order_release);
  return cudaSuccess;
}

}  // namespace

Kernel* find_kernel(const void* host_stub) { return kernels.find(host_stub); }
Kernel* find_kernel_of(const void* handle) { return kernels_by_handle.find(handle); }
Variable* find_variable(const void* host_shadow) { return variables.find(host_shadow); }

cudaError_t load_kernel(Kernel& kernel, CUkernel* handle) {
  CUlibrary library = nullptr;
  if (const cudaError_t error = ensure_context(); error != cudaSuccess) return error;
  if (const cudaError_t error = load_module(*kernel.module, &library); error != cudaSuccess) {
    return error;
  }
  const CUresult result = driver(cuLibraryGetKernel, handle, library, kernel.name);
  if (result == CUDA_ERROR_NOT_FOUND) return cudaErrorInvalidDeviceFunction;
  if (result != CUDA_SUCCESS) return to_runtime(result);
  kernel.handle.store(*handle, std::memory_order_release);
  kernels_by_handle.insert(*handle, &kernel);
  return cudaSuccess;
}

cudaError_t resolve_kernel(const void* function, CUkernel* handle) {
  if (Kernel* kernel = find_kernel(function)) return kernel_handle(*kernel, handle);
  if (function == nullptr) return cudaErrorInvalidDeviceFunction;
  // NOLINTNEXTLINE(bugprone-casting-through-void): a handle that is not ours is passed on
  *handle = reinterpret_cast<CUkernel>(const_cast<void*>(function));
  return cudaSuccess;
}

cudaError_t resolve_function(const void* function, CUfunction* result) {
  CUkernel kernel = nullptr;
  if (const cudaError_t error = ensure_context(); error != cudaSuccess) return error;
  if (const cudaError_t error = resolve_kernel(function, &kernel); error != cudaSuccess) {
    return error;
  }
  const CUresult answer = driver(cuKernelGetFunction, result, kernel);
  if (answer == CUDA_SUCCESS && find_kernel_of(*result) == nullptr) {
    Kernel* known = find_kernel_of(kernel);
    if (known != nullptr && known->function.exchange(*result) == nullptr) {
      kernels_by_handle.insert(*result, known);
    }
  }
  return to_runtime(answer);
}

cudaError_t variable_address(const Variable& variable, CUdeviceptr* address, size_t* size) {
  CUlibrary library = nullptr;
  if (const cudaError_t error = ensure_context(); error != cudaSuccess) return error;
  if (const cudaError_t error = load_module(*variable.module, &library); error != cudaSuccess) {
    return error;
  }
  const CUresult result = variable.managed
                              ? driver(cuLibraryGetManaged, address, size, library, variable.name)
                              : driver(cuLibraryGetGlobal, address, size, library, variable.name);
  return result == CUDA_ERROR_NOT_FOUND ? cudaErrorInvalidSymbol : to_runtime(result);
}

}  // namespace sluice::cudart

using sluice::cudart::Kernel;
using sluice::cudart::Module;
using sluice::cudart::Variable;

extern "C" {

void** __cudaRegisterFatBinary(void* fatCubin) {
  auto* module = new Module;
  module->image = sluice::cudart::image_of(fatCubin);
  return reinterpret_cast<void**>(module);
}

void __cudaRegisterFatBinaryEnd(void**) {}

void __cudaRegisterFunction(void** fatCubinHandle, const char* hostFun, char*,
                            const char* deviceName, int, uint3*, uint3*, dim3*, dim3*, int*) {
  Module* module = sluice::cudart::module_of(fatCubinHandle);
  Kernel* kernel = nullptr;
  {
    std::lock_guard lock(module->mutex);
    kernel = &module->kernels.emplace_back(module, hostFun, deviceName);
  }
  sluice::cudart::kernels.insert(hostFun, kernel);
}

void __cudaRegisterVar(void** fatCubinHandle, char* hostVar, char*, const char* deviceName, int,
                       size_t size, int, int) {
  Module* module = sluice::cudart::module_of(fatCubinHandle);
  Variable* variable = nullptr;
  {
    std::lock_guard lock(module->mutex);
    variable = &module->variables.emplace_back(module, hostVar, deviceName, size, false);
  }
  sluice::cudart::variables.insert(hostVar, variable);
}

void __cudaRegisterManagedVar(void** fatCubinHandle, void** hostVarPtrAddress, char*,
                              const char* deviceName, int, size_t size, int, int) {
  Module* module = sluice::cudart::module_of(fatCubinHandle);
  Variable* variable = nullptr;
  {
    std::lock_guard lock(module->mutex);
    variable = &module->variables.emplace_back(module, hostVarPtrAddress, deviceName, size, true);
  }
  sluice::cudart::variables.insert(hostVarPtrAddress, variable);
}

// nvcc calls this before the first host access to a managed variable of the module: the program
// reads the variables' addresses from where they were registered. Without a device they stay null,
// and it is asked again.
char __cudaInitModule(void** fatCubinHandle) {
  Module* module = sluice::cudart::module_of(fatCubinHandle);
  if (module == nullptr) return 1;
  for (Variable& variable : module->variables) {
    if (!variable.managed || variable.address.load() != nullptr) continue;
    CUdeviceptr address = 0;
    size_t size = 0;
    const cudaError_t error = sluice::cudart::variable_address(variable, &address, &size);
    if (error != cudaSuccess) {
      sluice::cudart::record(error);
      return 0;
    }
    auto* place = reinterpret_cast<void*>(address);
    *static_cast<void**>(const_cast<void*>(variable.host_shadow)) = place;
    // As a symbol the program names the variable itself, which is at that address.
    if (variable.address.exchange(place) == nullptr)
      sluice::cudart::variables.insert(place, &variable);
  }
  return 1;
}

void __cudaUnregisterFatBinary(void** fatCubinHandle) {
  Module* module = sluice::cudart::module_of(fatCubinHandle);
  if (module == nullptr) return;
  for (const Kernel& kernel : module->kernels) {
    sluice::cudart::kernels.erase(kernel.host_stub, &kernel);
    sluice::cudart::kernels_by_handle.erase(kernel.handle.load(), &kernel);
    sluice::cudart::kernels_by_handle.erase(kernel.function.load(), &kernel);
  }
  for (const Variable& variable : module->variables) {
    sluice::cudart::variables.erase(variable.host_shadow, &variable);
    if (void* address = variable.address.load())
      sluice::cudart::variables.erase(address, &variable);
  }
  if (const CUlibrary library = module->library.load(std::memory_order_acquire)) {
    sluice::cudart::driver(cuLibraryUnload, library);
  }
  delete module;
}

}  // extern "C"
