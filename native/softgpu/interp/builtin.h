// SPDX-License-Identifier: Apache-2.0
// The device functions that CUDA's compiler expects the driver to provide: vprintf, __assertfail,
// malloc, free, and cudaGraphSetConditional of the device runtime. Called by the warp scheduler for
// the lanes of exec.mask.
#pragma once

#include <string_view>

#include "softgpu/interp/exec.h"

namespace sluice::softgpu {

// kNone if the name is not one of them.
Builtin builtin_named(std::string_view name);
bool call_builtin(Exec& exec, const Function& callee, const CallSite& site);

}  // namespace sluice::softgpu
