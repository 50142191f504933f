// SPDX-License-Identifier: Apache-2.0
// Commands of cuDNN's backend API. A descriptor stays with the client, attribute by attribute,
// until it is finalized; then it crosses as a whole. A variant pack never crosses: its pointers
// travel with the execution. Pieces behind a struct are rounded up to 8 bytes.
#pragma once

#include <cstdint>

namespace sluice::wire {

// Element types, by their numbers in cudnnBackendAttributeType_t.
inline constexpr uint32_t kBackendHandle = 0, kBackendPointer = 6, kBackendDescriptor = 15;

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

// Creates, sets and finalizes. `attributes` of BackendAttribute with their elements follow;
// handles and descriptors by their ids. Answer: i64 status.
struct BackendBuild {
  uint64_t id;
  uint32_t type;
  uint32_t attributes;
};
struct BackendAttribute {
  uint32_t name, type;
  uint64_t count;
};

// `targets` ids of new descriptors of `target_type` follow, for an attribute that is descriptors.
// Answer: i64 status, i64 count, then the elements (none for descriptors).
struct BackendGet {
  uint64_t id;
  uint32_t name, type;
  int64_t requested;
  uint32_t targets, target_type;
};

struct BackendDestroy {
  uint64_t id;
};

// `pointers` unique ids (i64) follow, then as many words, then the values. A word is a device
// address, or kCarried and the offset of a value among `value_bytes`. Answer: i64 status.
struct BackendExecute {
  uint64_t handle, plan, workspace;
  uint32_t pointers, value_bytes;
};

}  // namespace sluice::wire
