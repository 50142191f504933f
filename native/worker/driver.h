// SPDX-License-Identifier: Apache-2.0
// The driver library that this worker executes on, loaded by path: NVIDIA's libcuda or the software
// GPU (rule 9). One function pointer per exported driver function, nullptr where that library has
// none.
#pragma once

#include <memory>
#include <string>

#include "abi/cuda_driver.h"

namespace sluice::worker {

struct Driver {
#define SLUICE_DRIVER_FUNCTION(name) decltype(&::name) name = nullptr;
#include "abi/driver_functions.inc"
#undef SLUICE_DRIVER_FUNCTION

  void* library = nullptr;  // its handle
  std::string path;
  std::string kernel_driver;  // its version as the kernel module says it; empty without one

  // nullptr with `error`, which names the library and what is missing.
  static std::unique_ptr<Driver> load(const std::string& path, std::string* error);

  std::string error_text(CUresult e) const;
};

// For functions that a driver library may lack.
template <class... Params, class... Args>
CUresult call(CUresult (*function)(Params...), Args... args) {
  return function ? function(args...) : CUDA_ERROR_NOT_SUPPORTED;
}

// The context survives none of these: every later call returns the same.
bool is_sticky(CUresult e);
// What a broken capture says, and what breaks one.
bool is_capture_error(CUresult e);

}  // namespace sluice::worker
