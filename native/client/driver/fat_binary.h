// SPDX-License-Identifier: Apache-2.0
// Cutting a fat binary down to what the driver could choose for the session's GPUs, so that the
// other architectures do not travel. The parts stay as they are, compressed or not, in a container
// of the same form: the choice among them, and unpacking, are the driver's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace sluice::client {

struct ComputeCapability {
  uint32_t major = 0, minor = 0;
};

// What to send for these GPUs; `software`: the back end runs PTX only. Refers to `image`, or to
// `room` when something was left out. Everything that is no fat binary, or none that is understood
// to its end, or has nothing for one of the GPUs, is sent whole.
std::span<const std::byte> parts_for(std::span<const std::byte> image,
                                     std::span<const ComputeCapability> gpus, bool software,
                                     std::vector<std::byte>* room);

}  // namespace sluice::client
