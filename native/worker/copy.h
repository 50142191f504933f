// SPDX-License-Identifier: Apache-2.0
// What copies of memory (copy.cc) and of arrays (array_copy.cc) share.
#pragma once

#include "worker/session.h"

namespace sluice::worker {

// Bytes from the first to the last of a rectangle, or 0 when it makes no sense.
uint64_t span_of(uint64_t pitch, uint64_t width, uint64_t rows);

// Bytes from `host` to the end of the arena's registration that holds it; without end for other
// memory. The driver takes no copy that runs from one registration into the next.
uint64_t registered_from(Session& s, uint64_t host);

}  // namespace sluice::worker
