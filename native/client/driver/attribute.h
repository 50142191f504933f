// SPDX-License-Identifier: Apache-2.0
// Attributes of launches, of streams and of kernel nodes: one list of them, and one rule of what a
// value may be.
#pragma once

#include "abi/cuda_driver.h"
#include "wire/bodies/commands.h"

namespace sluice::client {

class Session;
struct Device;

enum class AttributeOf { kLaunch, kStream, kNode };

// What CUDA refuses at once, else the attribute as the worker takes it.
CUresult pack_attribute(Session* s, const Device& d, AttributeOf what, CUlaunchAttributeID id,
                        const CUlaunchAttributeValue& value, wire::LaunchAttribute* packed);

}  // namespace sluice::client
