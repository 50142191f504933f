// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <map>
#include <mutex>

#include "abi/cuda_driver.h"
#include "client/libraries/legacy.h"
#include "client/library/call.h"

extern "C" {
int32_t cublasCreate_v2(void*);
int32_t cublasDestroy_v2(void*);
int32_t cublasGetVersion_v2(void*, void*);
int32_t cublasSetStream_v2(void*, void*);
}

namespace sluice::client::legacy {

namespace {

enum Status : int32_t {
  kSuccess = 0,
  kNotInitialized = 1,
  kAllocationFailed = 3,
  kInvalidValue = 7,
  kInternalError = 14,
};

std::atomic<int32_t> error{kSuccess};

struct Handles {
  std::mutex mutex;
  std::map<CUcontext, void*> by_context;
};
Handles& handles() {
  static Handles* all = new Handles;
  return *all;
}

// The thread's context; the first GPU's where it has none yet, as with the runtime.
bool current(CUcontext* context) {
  if (cuCtxGetCurrent(context) == CUDA_SUCCESS && *context) return true;
  return cuInit(0) == CUDA_SUCCESS && cuDevicePrimaryCtxRetain(context, 0) == CUDA_SUCCESS &&
         cuCtxSetCurrent(*context) == CUDA_SUCCESS;
}

// Statuses of functions that return one are not kept for cublasGetError.
void* find() {
  CUcontext context = nullptr;
  if (!current(&context)) return nullptr;
  Handles& all = handles();
  std::lock_guard lock(all.mutex);
  const auto it = all.by_context.find(context);
  return it == all.by_context.end() ? nullptr : it->second;
}

}  // namespace

void keep_error(int32_t status) {
  if (status != kSuccess) error.store(status);
}

void* handle() {
  void* h = find();
  if (!h) keep_error(kNotInitialized);
  return h;
}

}  // namespace sluice::client::legacy

using namespace sluice::client::legacy;

SLUICE_PUBLIC int32_t cublasInit() {
  CUcontext context = nullptr;
  if (!current(&context)) return kNotInitialized;
  Handles& all = handles();
  std::lock_guard lock(all.mutex);
  void*& h = all.by_context[context];
  if (h) return kSuccess;
  const int32_t status = cublasCreate_v2(&h);
  if (status != kSuccess) all.by_context.erase(context);
  return status;
}

SLUICE_PUBLIC int32_t cublasShutdown() {
  CUcontext context = nullptr;
  if (!current(&context)) return kNotInitialized;
  void* h = nullptr;
  {
    Handles& all = handles();
    std::lock_guard lock(all.mutex);
    const auto it = all.by_context.find(context);
    if (it == all.by_context.end()) return kNotInitialized;
    h = it->second;
    all.by_context.erase(it);
  }
  return cublasDestroy_v2(h);
}

SLUICE_PUBLIC int32_t cublasGetError() { return error.exchange(kSuccess); }

SLUICE_PUBLIC int32_t cublasGetVersion(int32_t* version) {
  void* h = find();
  return h ? cublasGetVersion_v2(h, version) : kNotInitialized;
}

SLUICE_PUBLIC int32_t cublasAlloc(int32_t n, int32_t element, void** address) {
  if (!find()) return kNotInitialized;
  if (n <= 0 || element <= 0 || !address) return kInvalidValue;
  CUdeviceptr memory = 0;
  if (cuMemAlloc_v2(&memory, static_cast<size_t>(n) * static_cast<size_t>(element)) != CUDA_SUCCESS)
    return kAllocationFailed;
  *address = reinterpret_cast<void*>(memory);
  return kSuccess;
}

SLUICE_PUBLIC int32_t cublasFree(void* address) {
  if (!find()) return kNotInitialized;
  if (!address) return kSuccess;
  return cuMemFree_v2(reinterpret_cast<CUdeviceptr>(address)) == CUDA_SUCCESS ? kSuccess
                                                                              : kInternalError;
}

SLUICE_PUBLIC int32_t cublasSetKernelStream(CUstream stream) {
  void* h = find();
  return h ? cublasSetStream_v2(h, stream) : kNotInitialized;
}
