// SPDX-License-Identifier: Apache-2.0
// What NVIDIA's libraries are called in the CUDA versions before the newest: clients have older
// ones' names, nodes look for them first.
#pragma once

#include <cstdint>
#include <string>

namespace sluice::wire {

struct OlderSoname {
  uint32_t major;
  const char *newest, *older;
};

inline constexpr OlderSoname kOlderSonames[] = {
#define SLUICE_OLDER_SONAME(major, newest, older) {major, newest, older},
#include "library/older.inc"
#undef SLUICE_OLDER_SONAME
    // What is forwarded by nobody, but needed by those that are.
    {12, "libnvJitLink.so.13", "libnvJitLink.so.12"},
};

// The name that a library has in a CUDA version; most have the same in all.
inline std::string older_soname(const std::string& newest, uint32_t major) {
  for (const OlderSoname& one : kOlderSonames)
    if (one.major == major && newest == one.newest) return one.older;
  return newest;
}

}  // namespace sluice::wire
