// SPDX-License-Identifier: Apache-2.0
// What a launch and a graph's kernel node have in common.
#pragma once

#include <cstddef>
#include <cstdint>

#include "abi/cuda_driver.h"

namespace sluice::client {

class Session;
struct Device;
struct Function;

inline constexpr size_t kMaxParamBytes = 32764;  // CUDA's own limit for kernel parameters

// What CUDA refuses at once, from the cached attributes.
CUresult check_launch(const Device& d, const Function& f, const uint32_t grid[3],
                      const uint32_t block[3], uint32_t shared);
// The node has the local memory that the kernel's threads want, or the launch is refused as CUDA
// refuses it. A round trip when a kernel wants more than any before it.
CUresult want_local_memory(Session* s, Device& d, const Function& f);
// Gathers the parameters into one buffer of kMaxParamBytes, as the function's layout says.
CUresult gather_params(const Function& f, void** params, void** extra, std::byte* to,
                       uint32_t* bytes);

}  // namespace sluice::client
