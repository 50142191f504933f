// SPDX-License-Identifier: Apache-2.0
// Addresses and ids as messages show them.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

namespace sluice::worker {

inline std::string hex_text(uint64_t v) {
  char text[32];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(v));
  return text;
}

}  // namespace sluice::worker
