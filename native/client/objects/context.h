// SPDX-License-Identifier: Apache-2.0
// Contexts as the application holds them: the driver's own, and green ones.
#pragma once

#include <cstdint>

namespace sluice::client {

struct Device;

struct Context {
  Device* device = nullptr;
  unsigned flags = 0;
  bool primary = false;
  uint64_t green = 0;  // the green context that it stands for
  uint32_t uses = 1;   // cuCtxCreate and cuCtxAttach count up, cuCtxDetach down
};

// A part of a device's multiprocessors (driver/green_context.cc).
struct GreenContext {
  Device* device = nullptr;
  uint64_t context = 0;   // the handle that cuCtxFromGreenCtx gives
  uint64_t standard = 0;  // the stream that its null stream stands for
};

}  // namespace sluice::client
