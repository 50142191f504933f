// SPDX-License-Identifier: Apache-2.0
// Launches kernels: checks a configuration as CUDA does (at the call, not sticky), queues the
// launch on its stream and spreads the blocks over the machine's hardware threads.
#pragma once

#include <cstdint>
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

CUresult launch_kernel(Context& context, Stream& stream, KernelFunction& kernel,
                       const LaunchShape& shape, void** params, void** extra);

// The largest dynamic shared memory that a launch of the kernel may ask for, in bytes.
unsigned dynamic_shared_limit(const KernelFunction& kernel);
unsigned max_threads(const KernelFunction& kernel);
// Blocks of that size that one multiprocessor would hold.
unsigned blocks_per_sm(const KernelFunction& kernel, unsigned threads, size_t dynamic_shared);

}  // namespace sluice::softgpu
