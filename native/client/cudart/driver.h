// SPDX-License-Identifier: Apache-2.0
// How libcudart calls the driver: every cuXxx that it uses is a weak reference, so that it
// loads on any libcuda.so.1 (ours, NVIDIA's, the software GPU). A function that the driver at hand
// lacks answers CUDA_ERROR_NOT_SUPPORTED. Used by every file of this folder; owns nothing.
#pragma once

#include <cstdint>
#include <utility>

#include "abi/cuda_driver.h"
#include "abi/cuda_runtime.h"

extern "C" {
#define SLUICE_DRIVER_FUNCTION(name) [[gnu::weak]] decltype(name) name;
#include "abi/driver_functions.inc"
#undef SLUICE_DRIVER_FUNCTION
}

// Our own libcuda.so.1 wants to know which version of the runtime stands on it.
extern "C" [[gnu::weak]] void sluice_runtime_version(int version);
// It tells where it counts the contexts that are current on the calling thread.
extern "C" [[gnu::weak]] const uint32_t* sluice_runtime_contexts();

namespace sluice::cudart {

template <typename... Params, typename... Args>
inline CUresult driver(CUresult (*function)(Params...), Args&&... args) {
  return function != nullptr ? function(std::forward<Args>(args)...) : CUDA_ERROR_NOT_SUPPORTED;
}

inline CUdeviceptr device_address(const void* pointer) {
  return static_cast<CUdeviceptr>(reinterpret_cast<uintptr_t>(pointer));
}

// Where the driver writes an address that the runtime's caller takes as a pointer.
inline CUdeviceptr* address_slot(void** pointer) {
  static_assert(sizeof(CUdeviceptr) == sizeof(void*));
  return reinterpret_cast<CUdeviceptr*>(pointer);
}

// Structures and enumerations that the two APIs name differently and lay out alike.
template <typename To, typename From>
To* same(From* pointer) {
  static_assert(sizeof(To) == sizeof(From) && alignof(To) == alignof(From));
  return reinterpret_cast<To*>(pointer);
}

// Both enumerations give the same number to the same condition.
inline cudaError_t to_runtime(CUresult result) { return static_cast<cudaError_t>(result); }

}  // namespace sluice::cudart
