// SPDX-License-Identifier: Apache-2.0
// The place of libcuda.so.1 itself for a profiler's hooks (api_calls.h).
#pragma once

#include "client/profile/api_calls.h"

namespace sluice::client {

extern HookSlot driver_hooks;

// What the node launches for a call of cuBLAS and its like is, to a profiler, launched by that
// call: as CUDA's runtime inside of those libraries would have been called.
inline constexpr uint32_t kLaunchKernelNumber = 211;  // cudaLaunchKernel_v7000

template <class Run>
auto profiled_library_call(const char* name, const Run& run) {
  const ApiHooks* const hooks = driver_hooks.load(std::memory_order_acquire);
  if (!hooks) [[likely]]
    return run();
  ProfiledCall call(hooks, kLibraryDomain, kLaunchKernelNumber, name, nullptr);
  return call.leave(run());
}

}  // namespace sluice::client
