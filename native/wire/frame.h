// SPDX-License-Identifier: Apache-2.0
// The one framing of every channel: what a command and a reply look like as bytes.
// Used by client, worker, doorbell and the generated stubs. A frame is a FrameHeader
// (native/api/protocol.yaml) and a body; its size is a multiple of 8, so that a body struct of
// 8-byte alignment can be copied out as it is. Little endian, append-only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "wire/command_registry.h"
#include "wire/protocol.h"

namespace sluice::wire {

inline constexpr size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

}  // namespace sluice::wire
