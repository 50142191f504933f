// SPDX-License-Identifier: Apache-2.0
// Launches kernels: checks a configuration as CUDA does (at the call, not sticky), queues the
// launch on its stream and spreads the blocks over the machine's hardware threads.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "abi/cuda_driver.h"
#include "softgpu/runtime/context.h"
#include "softgpu/runtime/module.h"

namespace sluice::softgpu {

struct LaunchShape {
  unsigned grid[3];
  unsigned block[3];
  unsigned dynamic_shared = 0;
  bool cooperative = false;
};

// A launch that has been checked, ready to be run any number of times.
struct KernelWork {
  CUfunction handle = nullptr;  // as the application named it
  KernelFunction* kernel = nullptr;
  std::shared_ptr<LoadedModule> held;
  LaunchShape shape{};
  std::vector<uint8_t> params;
};
CUresult prepare_kernel(Context& context, CUfunction handle, const LaunchShape& shape,
                        void** params, void** extra, KernelWork& work);
// On a stream's thread.
void run_kernel(Context& context, const KernelWork& work);

CUresult launch_kernel(Context& context, Stream& stream, KernelWork work);

// The largest dynamic shared memory that a launch of the kernel may ask for, in bytes.
unsigned dynamic_shared_limit(const KernelFunction& kernel);
unsigned max_threads(const KernelFunction& kernel);
// Blocks of that size that one multiprocessor would hold.
unsigned blocks_per_sm(const KernelFunction& kernel, unsigned threads, size_t dynamic_shared);

}  // namespace sluice::softgpu
