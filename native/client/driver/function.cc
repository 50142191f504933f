// SPDX-License-Identifier: Apache-2.0
// What is asked about functions and kernels: local answers from their records; a changed attribute
// is sent on and remembered.
#include "client/core/enter.h"
#include "client/driver/module.h"
#include "client/objects/device.h"

using namespace sluice::client;
namespace wire = sluice::wire;

namespace {

CUresult find(const void* handle, Session** s, Function** f) {
  if (const CUresult e = enter(s); e != CUDA_SUCCESS) return e;
  *f = find_function(*s, handle);
  return *f ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

bool known(const Function& f, int a) {
  return a >= 0 && a < static_cast<int>(wire::kFunctionAttributes) &&
         (f.record.attribute_mask >> a & 1) != 0;
}

CUresult get_attribute(int* value, int a, const Function& f) {
  if (!value || !known(f, a)) return CUDA_ERROR_INVALID_VALUE;
  *value = f.record.attributes[a];
  return CUDA_SUCCESS;
}

CUresult set_attribute(Session* s, Device* d, const void* handle, Function* f, int a, int value) {
  if (!known(*f, a)) return CUDA_ERROR_INVALID_VALUE;
  if (a == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
    const int room = d->record.attributes[CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN] -
                     f->record.attributes[CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES];
    if (value < 0 || value > room) return CUDA_ERROR_INVALID_VALUE;
  } else if (a == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT) {
    if (value < -1 || value > 100) return CUDA_ERROR_INVALID_VALUE;
  } else {
    // The others can be refused for reasons that only the driver knows, so it is asked.
    const CUresult e = s->exchange(wire::kFunctionSet,
                                   wire::FunctionSet{reinterpret_cast<uint64_t>(handle), a, value},
                                   {}, {}, nullptr, nullptr, d->context());
    if (e == CUDA_SUCCESS) f->record.attributes[a] = value;
    s->answers.forget(reinterpret_cast<uint64_t>(handle));
    return e;
  }
  f->record.attributes[a] = value;
  const CUresult e =
      s->post(wire::kFunctionSet, wire::FunctionSet{reinterpret_cast<uint64_t>(handle), a, value},
              {}, nullptr, d->context());
  s->answers.forget(reinterpret_cast<uint64_t>(handle));
  return e;
}

CUresult param_info(const Function& f, size_t index, size_t* offset, size_t* size) {
  if (!offset) return CUDA_ERROR_INVALID_VALUE;
  if (index >= f.params.size()) return CUDA_ERROR_INVALID_VALUE;
  *offset = f.params[index].offset;
  if (size) *size = f.params[index].size;
  return CUDA_SUCCESS;
}

CUresult device_at(Session* s, CUdevice ordinal, Device** d) {
  if (ordinal < 0 || static_cast<size_t>(ordinal) >= s->devices().size())
    return CUDA_ERROR_INVALID_DEVICE;
  *d = s->devices()[static_cast<size_t>(ordinal)].get();
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuFuncGetAttribute(int* value, CUfunction_attribute a, CUfunction handle) {
  Session* s;
  Function* f;
  if (const CUresult e = find(handle, &s, &f); e != CUDA_SUCCESS) return e;
  return get_attribute(value, a, *f);
}

CUresult cuFuncSetAttribute(CUfunction handle, CUfunction_attribute a, int value) {
  Session* s;
  Device* d;
  if (const CUresult e = enter(&s, &d); e != CUDA_SUCCESS) return e;
  Function* f = find_function(s, handle);
  if (!f) return CUDA_ERROR_INVALID_HANDLE;
  return set_attribute(s, f->device ? f->device : d, handle, f, a, value);
}

CUresult cuFuncSetCacheConfig(CUfunction handle, CUfunc_cache) {
  Session* s;
  Function* f;
  return find(handle, &s, &f);  // a preference that current GPUs do not have
}

CUresult cuFuncGetName(const char** name, CUfunction handle) {
  Session* s;
  Function* f;
  if (!handle || !name) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult e = find(handle, &s, &f); e != CUDA_SUCCESS) return e;
  *name = f->name.c_str();
  return CUDA_SUCCESS;
}

CUresult cuFuncGetModule(CUmodule* module, CUfunction handle) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  const Function* f = s->functions.find(handle);
  if (!f) return CUDA_ERROR_INVALID_HANDLE;
  if (!module) return CUDA_ERROR_INVALID_VALUE;
  *module = reinterpret_cast<CUmodule>(f->code);
  return CUDA_SUCCESS;
}

CUresult cuFuncGetParamInfo(CUfunction handle, size_t index, size_t* offset, size_t* size) {
  Session* s;
  Function* f;
  if (const CUresult e = find(handle, &s, &f); e != CUDA_SUCCESS) return e;
  return param_info(*f, index, offset, size);
}

CUresult cuFuncIsLoaded(CUfunctionLoadingState* state, CUfunction handle) {
  Session* s;
  Function* f;
  if (const CUresult e = find(handle, &s, &f); e != CUDA_SUCCESS) return e;
  if (!state) return CUDA_ERROR_INVALID_VALUE;
  *state = CU_FUNCTION_LOADING_STATE_LOADED;  // its attributes were read on the node
  return CUDA_SUCCESS;
}

CUresult cuFuncLoad(CUfunction handle) {
  Session* s;
  Function* f;
  return find(handle, &s, &f);
}

CUresult cuKernelGetAttribute(int* value, CUfunction_attribute a, CUkernel handle, CUdevice dev) {
  Session* s;
  Device* d;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  if (const CUresult e = device_at(s, dev, &d); e != CUDA_SUCCESS) return e;
  const Function* f = s->kernels.find(handle);
  return f ? get_attribute(value, a, *f) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuKernelSetAttribute(CUfunction_attribute a, int value, CUkernel handle, CUdevice dev) {
  Session* s;
  Device* d;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  if (const CUresult e = device_at(s, dev, &d); e != CUDA_SUCCESS) return e;
  Function* f = s->kernels.find(handle);
  return f ? set_attribute(s, d, handle, f, a, value) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuKernelSetCacheConfig(CUkernel handle, CUfunc_cache, CUdevice) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  return s->kernels.find(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuKernelGetName(const char** name, CUkernel handle) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  if (!handle || !name) return CUDA_ERROR_INVALID_VALUE;
  const Function* f = s->kernels.find(handle);
  if (!f) return CUDA_ERROR_INVALID_HANDLE;
  *name = f->name.c_str();
  return CUDA_SUCCESS;
}

// A kernel is of no context, but NVIDIA's driver loads it into the current one to look.
CUresult cuKernelGetParamInfo(CUkernel handle, size_t index, size_t* offset, size_t* size) {
  Session* s;
  Device* d;
  if (const CUresult e = enter(&s, &d); e != CUDA_SUCCESS) return e;
  const Function* f = s->kernels.find(handle);
  return f ? param_info(*f, index, offset, size) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuKernelGetLibrary(CUlibrary* library, CUkernel handle) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  const Function* f = s->kernels.find(handle);
  if (!f) return CUDA_ERROR_INVALID_HANDLE;
  if (!library) return CUDA_ERROR_INVALID_VALUE;
  *library = reinterpret_cast<CUlibrary>(f->code);
  return CUDA_SUCCESS;
}

// A kernel handle serves as a function handle everywhere a function is taken.
CUresult cuKernelGetFunction(CUfunction* function, CUkernel handle) {
  Session* s;
  Device* d;
  if (const CUresult e = enter(&s, &d); e != CUDA_SUCCESS) return e;
  if (!s->kernels.find(handle)) return CUDA_ERROR_INVALID_HANDLE;
  if (!function) return CUDA_ERROR_INVALID_VALUE;
  *function = reinterpret_cast<CUfunction>(handle);
  return CUDA_SUCCESS;
}

}  // extern "C"
