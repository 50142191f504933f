// SPDX-License-Identifier: Apache-2.0
// check.h for the driver API.
#pragma once

#include <cuda.h>

#include "check.h"

inline void require_driver(CUresult result, const char* what, int line) {
  if (result == CUDA_SUCCESS) return;
  const char* text = nullptr;
  cuGetErrorString(result, &text);
  std::fflush(stdout);
  std::fprintf(stderr, "line %d: %s: %s (%d)\n", line, what, text != nullptr ? text : "?",
               static_cast<int>(result));
  std::exit(1);
}

#define REQUIRE_DRIVER(call) require_driver((call), #call, __LINE__)
