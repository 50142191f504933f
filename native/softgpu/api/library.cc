// SPDX-License-Identifier: Apache-2.0
// Libraries and kernels: images that are loaded into contexts as they are needed.
#include "softgpu/runtime/library.h"

#include "softgpu/api/image.h"
#include "softgpu/runtime/launch.h"

namespace sluice::softgpu {
namespace {

CUresult load(CUlibrary* handle, const void* image, const JitLog& log) {
  return with_context([&](Context& context) -> CUresult {
    if (!handle || !image) return CUDA_ERROR_INVALID_VALUE;
    std::string ptx;
    LoadFailure failure;
    if (!ptx_of_image(image, ptx, failure)) {
      log.write(failure.text);
      return failure.result;
    }
    auto library = std::make_shared<Library>(std::move(ptx));
    std::shared_ptr<LoadedModule> module = library->in(context, failure);
    log.write(failure.text);
    if (!module) return failure.result;
    library->learn(*module);
    register_library(library);
    *handle = reinterpret_cast<CUlibrary>(library.get());
    return CUDA_SUCCESS;
  });
}

// The library's module in the current context.
template <class F>
CUresult with_library_module(CUlibrary handle, F&& body) noexcept {
  return with_context([&](Context& context) -> CUresult {
    std::shared_ptr<Library> library = library_from(handle);
    if (!library) return CUDA_ERROR_INVALID_HANDLE;
    LoadFailure failure;
    std::shared_ptr<LoadedModule> module = library->in(context, failure);
    return module ? body(*module) : failure.result;
  });
}

template <class F>
CUresult with_kernel(CUkernel handle, F&& body) noexcept {
  return with_context([&](Context& context) -> CUresult {
    std::shared_ptr<Library> library = library_of(handle);
    if (!library) return CUDA_ERROR_INVALID_HANDLE;
    CUresult why = CUDA_SUCCESS;
    KernelFunction* function = launchable(context, reinterpret_cast<CUfunction>(handle), why);
    if (!function) return why;
    return body(*reinterpret_cast<LibraryKernel*>(handle), *function);
  });
}

}  // namespace
}  // namespace sluice::softgpu

using namespace sluice::softgpu;

CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option* options,
                           void** values, unsigned int count, CUlibraryOption*, void**,
                           unsigned int) {
  return load(library, code, JitLog::from(count, options, values));
}

CUresult cuLibraryLoadFromFile(CUlibrary* library, const char* path, CUjit_option* options,
                               void** values, unsigned int count, CUlibraryOption*, void**,
                               unsigned int) {
  return guarded([&]() -> CUresult {
    if (!path) return CUDA_ERROR_INVALID_VALUE;
    std::string content;
    if (CUresult result = read_file(path, content); result != CUDA_SUCCESS) return result;
    return load(library, content.data(), JitLog::from(count, options, values));
  });
}

CUresult cuLibraryUnload(CUlibrary library) {
  return with_driver([&]() -> CUresult {
    return unregister_library(library) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  });
}

CUresult cuLibraryGetKernel(CUkernel* handle, CUlibrary library_handle, const char* name) {
  return with_driver([&]() -> CUresult {
    if (!handle || !name) return CUDA_ERROR_INVALID_VALUE;
    std::shared_ptr<Library> library = library_from(library_handle);
    if (!library) return CUDA_ERROR_INVALID_HANDLE;
    LibraryKernel* kernel = library->kernel(name);
    if (!kernel) return CUDA_ERROR_NOT_FOUND;
    *handle = reinterpret_cast<CUkernel>(kernel);
    return CUDA_SUCCESS;
  });
}

CUresult cuLibraryGetKernelCount(unsigned int* count, CUlibrary handle) {
  return with_driver([&]() -> CUresult {
    std::shared_ptr<Library> library = library_from(handle);
    if (!library) return CUDA_ERROR_INVALID_HANDLE;
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    *count = static_cast<unsigned>(library->kernels().size());
    return CUDA_SUCCESS;
  });
}

CUresult cuLibraryEnumerateKernels(CUkernel* kernels, unsigned int count, CUlibrary handle) {
  return with_driver([&]() -> CUresult {
    std::shared_ptr<Library> library = library_from(handle);
    if (!library) return CUDA_ERROR_INVALID_HANDLE;
    if (!kernels) return CUDA_ERROR_INVALID_VALUE;
    std::vector<LibraryKernel*> all = library->kernels();
    for (unsigned i = 0; i < count && i < all.size(); ++i) {
      kernels[i] = reinterpret_cast<CUkernel>(all[i]);
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuLibraryGetModule(CUmodule* handle, CUlibrary library) {
  return with_library_module(library, [&](LoadedModule& module) -> CUresult {
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    *handle = reinterpret_cast<CUmodule>(&module);
    return CUDA_SUCCESS;
  });
}

CUresult cuLibraryGetGlobal(CUdeviceptr* pointer, size_t* bytes, CUlibrary library,
                            const char* name) {
  return with_library_module(library, [&](LoadedModule& module) -> CUresult {
    if (!name || (!pointer && !bytes)) return CUDA_ERROR_INVALID_VALUE;
    const GlobalVariable* variable = module.variable(name);
    if (!variable) return CUDA_ERROR_NOT_FOUND;
    if (pointer) *pointer = variable->address;
    if (bytes) *bytes = variable->size;
    return CUDA_SUCCESS;
  });
}

CUresult cuLibraryGetManaged(CUdeviceptr* pointer, size_t* bytes, CUlibrary library,
                             const char* name) {
  return with_library_module(library, [&](LoadedModule& module) -> CUresult {
    if (!name || (!pointer && !bytes)) return CUDA_ERROR_INVALID_VALUE;
    const GlobalVariable* variable = module.variable(name);
    if (!variable || !variable->managed) return CUDA_ERROR_NOT_FOUND;
    if (pointer) *pointer = variable->address;
    if (bytes) *bytes = variable->size;
    return CUDA_SUCCESS;
  });
}

CUresult cuLibraryGetUnifiedFunction(void**, CUlibrary library, const char*) {
  return with_library_module(library, [](LoadedModule&) { return CUDA_ERROR_NOT_FOUND; });
}

CUresult cuKernelGetFunction(CUfunction* handle, CUkernel kernel) {
  return with_kernel(kernel, [&](LibraryKernel&, KernelFunction& function) -> CUresult {
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    *handle = reinterpret_cast<CUfunction>(&function);
    return CUDA_SUCCESS;
  });
}

CUresult cuKernelGetLibrary(CUlibrary* handle, CUkernel kernel) {
  return with_driver([&]() -> CUresult {
    std::shared_ptr<Library> library = library_of(kernel);
    if (!library) return CUDA_ERROR_INVALID_HANDLE;
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    *handle = reinterpret_cast<CUlibrary>(library.get());
    return CUDA_SUCCESS;
  });
}

CUresult cuKernelGetName(const char** name, CUkernel handle) {
  return with_driver([&]() -> CUresult {
    if (!library_of(handle)) return CUDA_ERROR_INVALID_HANDLE;
    if (!name) return CUDA_ERROR_INVALID_VALUE;
    *name = reinterpret_cast<LibraryKernel*>(handle)->name.c_str();
    return CUDA_SUCCESS;
  });
}

CUresult cuKernelGetAttribute(int* value, CUfunction_attribute which, CUkernel kernel,
                              CUdevice dev) {
  if (!device_at(dev)) return CUDA_ERROR_INVALID_DEVICE;
  return with_kernel(kernel, [&](LibraryKernel&, KernelFunction& function) {
    return cuFuncGetAttribute(value, which, reinterpret_cast<CUfunction>(&function));
  });
}

CUresult cuKernelSetAttribute(CUfunction_attribute which, int value, CUkernel kernel,
                              CUdevice dev) {
  if (!device_at(dev)) return CUDA_ERROR_INVALID_DEVICE;
  return with_kernel(kernel, [&](LibraryKernel& of, KernelFunction& function) -> CUresult {
    CUresult result = cuFuncSetAttribute(reinterpret_cast<CUfunction>(&function), which, value);
    if (result == CUDA_SUCCESS) {
      std::lock_guard lock(of.library->mutex());
      of.attributes[{dev, which}] = value;
    }
    return result;
  });
}

CUresult cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice dev) {
  if (!device_at(dev)) return CUDA_ERROR_INVALID_DEVICE;
  return with_kernel(kernel, [&](LibraryKernel&, KernelFunction& function) {
    function.settings.cache_config = config;
    return CUDA_SUCCESS;
  });
}

CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t* offset, size_t* size) {
  return with_kernel(kernel, [&](LibraryKernel&, KernelFunction& function) {
    return cuFuncGetParamInfo(reinterpret_cast<CUfunction>(&function), index, offset, size);
  });
}
