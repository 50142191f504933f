// SPDX-License-Identifier: Apache-2.0
// What copies of memory (copy.cc) and of arrays (array_copy.cc) share.
#pragma once

#include <bit>

#include "worker/session.h"

namespace sluice::worker {

// Copies on the device and fills compute, as far as the GPU's other tenants are concerned: they
// pass the gate. Copies to the host and from there are the copy engines', and disturb nobody
// (docs/decisions/0003).
inline Gate::Work copy_work(uint64_t bytes) {
  return {1ull << 32 | static_cast<uint64_t>(std::bit_width(bytes))};
}
inline Gate::Work fill_work(uint64_t bytes) {
  return {2ull << 32 | static_cast<uint64_t>(std::bit_width(bytes))};
}

// Bytes from the first to the last of a rectangle, or 0 when it makes no sense.
uint64_t span_of(uint64_t pitch, uint64_t width, uint64_t rows);

// Bytes from `host` to the end of the arena's registration that holds it; without end for other
// memory. The driver takes no copy that runs from one registration into the next.
uint64_t registered_from(Session& s, uint64_t host);

}  // namespace sluice::worker
