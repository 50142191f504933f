// SPDX-License-Identifier: Apache-2.0
// Sizes of the elements that cuDNN's backend API has (native/api/bodies/cudnn_backend.yaml).
#pragma once

#include "wire/bodies/cudnn_backend.h"

namespace sluice::wire {

// Bytes of one element; 0 for a type that is not known.
constexpr uint32_t backend_element_bytes(uint32_t type) {
  switch (type) {
    case 0:   // handle
    case 3:   // int64
    case 5:   // double
    case 6:   // pointer
    case 15:  // descriptor
      return 8;
    case 2:   // boolean
    case 24:  // char
      return 1;
    case 26:  // fraction
      return 16;
    default:
      return type <= 30 ? 4 : 0;
  }
}

// Whether both ask for the same attribute, for however many of it.
constexpr bool same_attribute(const BackendQuestion& a, const BackendQuestion& b) {
  return a.name == b.name && a.type == b.type && a.target_type == b.target_type;
}

}  // namespace sluice::wire
