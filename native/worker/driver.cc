// SPDX-License-Identifier: Apache-2.0
#include "worker/driver.h"

#include <dlfcn.h>

#include <cstring>
#include <fstream>

namespace sluice::worker {

std::unique_ptr<Driver> Driver::load(const std::string& path, std::string* error) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    *error = std::string("the driver library cannot be loaded: ") + dlerror();
    return nullptr;
  }
  auto d = std::make_unique<Driver>();
  d->path = path;
  d->library = library;
  std::getline(std::ifstream("/sys/module/nvidia/version"), d->kernel_driver);
#define SLUICE_DRIVER_FUNCTION(name) \
  d->name = reinterpret_cast<decltype(d->name)>(dlsym(library, #name));
#include "abi/driver_functions.inc"
#undef SLUICE_DRIVER_FUNCTION

  // Without these there is no session; everything else is missed when it is called.
  for (const char* name :
       {"cuInit", "cuDeviceGetUuid_v2", "cuDevicePrimaryCtxRetain", "cuMemAddressReserve",
        "cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemHostRegister_v2",
        "cuStreamWriteValue64_v2", "cuStreamWaitValue64_v2", "cuFuncGetParamInfo",
        "cuKernelGetParamInfo", "cuLaunchKernelEx"}) {
    if (dlsym(library, name)) continue;
    *error = path + " has no " + name + ": CUDA driver 12.4 or newer is needed";
    return nullptr;
  }
  return d;
}

std::string Driver::error_text(CUresult e) const {
  const char *name = nullptr, *text = nullptr;
  if (cuGetErrorName) cuGetErrorName(e, &name);
  if (cuGetErrorString) cuGetErrorString(e, &text);
  return std::string(name ? name : "CUDA error") + " (" + std::to_string(static_cast<int>(e)) +
         (text ? std::string(": ") + text : std::string()) + ")";
}

bool is_sticky(CUresult e) {
  switch (e) {
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_EXTERNAL_DEVICE:
    case CUDA_ERROR_CONTAINED:
    case CUDA_ERROR_MPS_RPC_FAILURE:
    case CUDA_ERROR_MPS_SERVER_NOT_READY:
    case CUDA_ERROR_MPS_CLIENT_TERMINATED:
      return true;
    default:
      return false;
  }
}

bool is_capture_error(CUresult e) {
  return e >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && e <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
}

}  // namespace sluice::worker
