// SPDX-License-Identifier: Apache-2.0
#include "softgpu/runtime/log.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include "whole_number.h"

namespace sluice::softgpu {

int log_level() {
  static const int level = [] {
    const char* text = std::getenv("SLUICE_SOFTGPU_DEBUG");
    int level = 0;
    if (text && *text && !read_whole_number(text, &level))
      std::fprintf(stderr, "sluice-softgpu: SLUICE_SOFTGPU_DEBUG=%s is no number; using 0\n", text);
    return level;
  }();
  return level;
}

void log(int level, const char* format, ...) {
  if (level > log_level()) return;
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  std::fprintf(stderr, "sluice-softgpu: %s\n", text);
}

}  // namespace sluice::softgpu
