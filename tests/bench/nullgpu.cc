// SPDX-License-Identifier: Apache-2.0
// A back end that executes nothing: the software GPU with launches dropped, so that a benchmark of
// launches measures the way and not the kernel. A worker loads it by path like any driver; what it
// does not define is found in the software GPU, which it depends on.
#include "abi/cuda_driver.h"

extern "C" {

__attribute__((visibility("default"))) CUresult cuLaunchKernel(CUfunction, unsigned, unsigned,
                                                               unsigned, unsigned, unsigned,
                                                               unsigned, unsigned, CUstream, void**,
                                                               void**) {
  return CUDA_SUCCESS;
}

__attribute__((visibility("default"))) CUresult cuLaunchKernelEx(const CUlaunchConfig*, CUfunction,
                                                                 void**, void**) {
  return CUDA_SUCCESS;
}

}  // extern "C"
