// SPDX-License-Identifier: Apache-2.0
// The launch interface of CUDA 2, long deprecated and still exported: block, shared memory and
// parameters are set on the function one by one, and a launch takes what is there.
#include <cstring>

#include "client/core/enter.h"
#include "client/driver/launch.h"
#include "client/driver/module.h"

using namespace sluice::client;

namespace {

CUresult prepare(CUfunction handle, Function** f) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  *f = find_function(s, handle);
  if (!*f) return CUDA_ERROR_INVALID_HANDLE;
  if (!(*f)->prepared) (*f)->prepared = std::make_shared<Function::Prepared>();
  return CUDA_SUCCESS;
}

CUresult set_parameter(CUfunction handle, int offset, const void* data, size_t bytes) {
  Function* f;
  if (const CUresult e = prepare(handle, &f); e != CUDA_SUCCESS) return e;
  if (offset < 0 || bytes > kMaxParamBytes || static_cast<size_t>(offset) > kMaxParamBytes - bytes)
    return CUDA_ERROR_INVALID_VALUE;
  auto& params = f->prepared->params;
  const size_t end = static_cast<size_t>(offset) + bytes;
  if (params.size() < end) params.resize(end);
  if (bytes) std::memcpy(params.data() + offset, data, bytes);
  return CUDA_SUCCESS;
}

CUresult launch(CUfunction handle, int width, int height, CUstream stream) {
  Function* f;
  if (const CUresult e = prepare(handle, &f); e != CUDA_SUCCESS) return e;
  if (width <= 0 || height <= 0) return CUDA_ERROR_INVALID_VALUE;
  const Function::Prepared& p = *f->prepared;
  size_t bytes = p.params.size();
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, const_cast<std::byte*>(p.params.data()),
                   CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
  if (bytes < f->record.param_bytes) return CUDA_ERROR_INVALID_VALUE;
  return cuLaunchKernel(handle, static_cast<unsigned>(width), static_cast<unsigned>(height), 1,
                        p.block[0], p.block[1], p.block[2], p.shared, stream, nullptr, extra);
}

}  // namespace

extern "C" {

CUresult cuFuncSetBlockShape(CUfunction handle, int x, int y, int z) {
  Function* f;
  if (const CUresult e = prepare(handle, &f); e != CUDA_SUCCESS) return e;
  if (x <= 0 || y <= 0 || z <= 0) return CUDA_ERROR_INVALID_VALUE;
  const int shape[] = {x, y, z};
  for (int i = 0; i < 3; ++i) f->prepared->block[i] = static_cast<uint32_t>(shape[i]);
  return CUDA_SUCCESS;
}

CUresult cuFuncSetSharedSize(CUfunction handle, unsigned int bytes) {
  Function* f;
  if (const CUresult e = prepare(handle, &f); e != CUDA_SUCCESS) return e;
  f->prepared->shared = bytes;
  return CUDA_SUCCESS;
}

CUresult cuParamSetSize(CUfunction handle, unsigned int bytes) {
  Function* f;
  if (const CUresult e = prepare(handle, &f); e != CUDA_SUCCESS) return e;
  if (bytes > kMaxParamBytes) return CUDA_ERROR_INVALID_VALUE;
  f->prepared->params.resize(bytes);
  return CUDA_SUCCESS;
}

CUresult cuParamSeti(CUfunction handle, int offset, unsigned int value) {
  return set_parameter(handle, offset, &value, sizeof value);
}
CUresult cuParamSetf(CUfunction handle, int offset, float value) {
  return set_parameter(handle, offset, &value, sizeof value);
}
CUresult cuParamSetv(CUfunction handle, int offset, void* data, unsigned int bytes) {
  return data ? set_parameter(handle, offset, data, bytes) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuLaunch(CUfunction handle) { return launch(handle, 1, 1, nullptr); }
CUresult cuLaunchGrid(CUfunction handle, int width, int height) {
  return launch(handle, width, height, nullptr);
}
CUresult cuLaunchGridAsync(CUfunction handle, int width, int height, CUstream stream) {
  return launch(handle, width, height, stream);
}

}  // extern "C"
