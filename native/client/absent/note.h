// SPDX-License-Identifier: Apache-2.0
// What the libraries of this folder share. Each stands in for a library of NVIDIA's that has
// nothing to do on a forwarded GPU: programs link it, so it must be there, and every call of it
// answers what its documentation calls unavailable. None opens a session or needs libcuda.so.1.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice::absent {

// What is said of a library; generated from native/api/absent.yaml.
struct Library {
  const char* name;
  const char* offers;
  const char* meaning;
  const char* status;  // what most of its functions answer
};

struct Name {
  int value;
  const char* text;
};

// Says once per library and process, on the screen and in the log, who called what and what
// follows.
void note(const Library& library, const char* function, const void* caller);

// The name of a status, or null if it is none of them.
template <size_t kCount>
const char* name_of(const Name (&names)[kCount], int value) {
  for (const Name& name : names)
    if (name.value == value) return name.text;
  return nullptr;
}

}  // namespace sluice::absent
