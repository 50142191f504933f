// SPDX-License-Identifier: Apache-2.0
// Diagnostics on stderr. SLUICE_SOFTGPU_DEBUG: 0 only what a user must know (default), 1 also why
// calls and kernels failed, 2 also what was loaded and launched.
#pragma once

namespace sluice::softgpu {

int log_level();
[[gnu::format(printf, 2, 3)]] void log(int level, const char* format, ...);

}  // namespace sluice::softgpu
