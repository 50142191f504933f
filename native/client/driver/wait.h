// SPDX-License-Identifier: Apache-2.0
// Waiting, and what is learned from it: for a mark of the completion page, for a stream, for a
// device, for all devices that may use a piece of memory.
#pragma once

#include <cstdint>

#include "abi/cuda_driver.h"

namespace sluice::client {

class Session;
struct Device;
struct Stream;

// Waits until a mark shows `value`; spins first, then sleeps. An error when the session ends
// instead.
CUresult wait_mark(Session* s, uint32_t mark, uint64_t value);
// Waits for all that `stream` was given.
CUresult synchronize_stream(Session* s, Stream* stream);
// For a synchronous call of which the host cannot notice whether it waits: what the node is given
// later comes after all that `stream` was given.
CUresult end_unseen(Session* s, Stream* stream);
// Whether a wait for `stream` needs no answer: all that it would wait for is done, or cannot be
// noticed and is behind a fence now.
bool needs_no_wait(Session* s, Stream* stream);
// As cuMemFree does: returns when running kernels have ended, at once when the device is known to
// be idle.
CUresult wait_idle(Session* s, Device* d);
// The same for all devices that may use the memory of this one: before any of that is given up.
CUresult wait_unused(Session* s, Device* owner);

}  // namespace sluice::client
