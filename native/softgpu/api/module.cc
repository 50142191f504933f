// SPDX-License-Identifier: Apache-2.0
// Modules: load, unload, functions and globals by name.
#include "softgpu/api/image.h"
#include "softgpu/memory/allocations.h"

namespace sluice::softgpu {
namespace {

CUresult load(CUmodule* handle, const void* image, const JitLog& log) {
  return with_safe_context([&](Context& context) -> CUresult {
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    std::shared_ptr<LoadedModule> module;
    CUresult result = load_image(context, image, log, module);
    if (result != CUDA_SUCCESS) return result;
    *handle = reinterpret_cast<CUmodule>(module.get());
    context.add_module(std::move(module));
    return CUDA_SUCCESS;
  });
}

template <class F>
CUresult with_module(CUmodule handle, F&& body) noexcept {
  return with_context([&](Context&) -> CUresult {
    std::shared_ptr<LoadedModule> module = module_from(handle);
    return module ? body(*module) : CUDA_ERROR_INVALID_HANDLE;
  });
}

}  // namespace
}  // namespace sluice::softgpu

using namespace sluice::softgpu;

CUresult cuModuleLoadData(CUmodule* module, const void* image) { return load(module, image, {}); }

CUresult cuModuleLoadFatBinary(CUmodule* module, const void* image) {
  return load(module, image, {});
}

CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned int count,
                            CUjit_option* options, void** values) {
  return load(module, image, JitLog::from(count, options, values));
}

CUresult cuModuleLoad(CUmodule* module, const char* path) {
  return guarded([&]() -> CUresult {
    if (!path) return CUDA_ERROR_INVALID_VALUE;
    std::string content;
    if (CUresult result = read_file(path, content); result != CUDA_SUCCESS) return result;
    return load(module, content.data(), {});
  });
}

CUresult cuModuleUnload(CUmodule handle) {
  return with_any_context([&](Context&) -> CUresult {
    std::shared_ptr<LoadedModule> module = module_from(handle);
    if (!module) return CUDA_ERROR_INVALID_HANDLE;
    Context& owner = module->context();
    owner.synchronize();
    retract_module(module.get());
    owner.remove_module(module.get());
    return CUDA_SUCCESS;
  });
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  if (!mode) return CUDA_ERROR_INVALID_VALUE;
  *mode = CU_MODULE_EAGER_LOADING;
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule handle, const char* name) {
  return with_module(handle, [&](LoadedModule& module) -> CUresult {
    if (!function || !name) return CUDA_ERROR_INVALID_VALUE;
    KernelFunction* kernel = module.kernel(name);
    if (!kernel) return CUDA_ERROR_NOT_FOUND;
    *function = reinterpret_cast<CUfunction>(kernel);
    return CUDA_SUCCESS;
  });
}

CUresult cuModuleGetFunctionCount(unsigned int* count, CUmodule handle) {
  return with_module(handle, [&](LoadedModule& module) -> CUresult {
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    *count = static_cast<unsigned>(module.kernels().size());
    return CUDA_SUCCESS;
  });
}

CUresult cuModuleEnumerateFunctions(CUfunction* functions, unsigned int count, CUmodule handle) {
  return with_module(handle, [&](LoadedModule& module) -> CUresult {
    if (!functions) return CUDA_ERROR_INVALID_VALUE;
    std::vector<KernelFunction*> kernels = module.kernels();
    for (unsigned i = 0; i < count && i < kernels.size(); ++i) {
      functions[i] = reinterpret_cast<CUfunction>(kernels[i]);
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr* pointer, size_t* bytes, CUmodule handle,
                              const char* name) {
  return with_module(handle, [&](LoadedModule& module) -> CUresult {
    if (!name || (!pointer && !bytes)) return CUDA_ERROR_INVALID_VALUE;
    const GlobalVariable* variable = module.variable(name);
    if (!variable) return CUDA_ERROR_NOT_FOUND;
    if (pointer) *pointer = variable->address;
    if (bytes) *bytes = variable->size;
    return CUDA_SUCCESS;
  });
}
