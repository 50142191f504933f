// SPDX-License-Identifier: Apache-2.0
// Makes a Program of a parsed module: places its variables, fills in their initial values, lays out
// shared memory and decodes every function. Called when a module is loaded.
#pragma once

#include <functional>

#include "softgpu/program/program.h"
#include "softgpu/ptx/ast.h"

namespace sluice::softgpu {

// Returns the device address of `bytes` fresh bytes for the module's variables (host-accessible);
// throws std::bad_alloc when there are none left. Not called for a module without variables.
using PlaceVariables = std::function<uint8_t*(uint64_t bytes)>;

// Raises PtxError.
Program link_program(const ptx::Module& module, const PlaceVariables& place);

}  // namespace sluice::softgpu
