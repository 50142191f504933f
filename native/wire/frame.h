// SPDX-License-Identifier: Apache-2.0
// The one framing of every channel: what a command and a reply look like as bytes.
// Used by client, worker, doorbell and the generated stubs. A frame is a FrameHeader and a body;
// its size is a multiple of 8, so that a body struct of 8-byte alignment can be copied out as it
// is. Little endian, append-only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "wire/command_registry.h"

namespace sluice::wire {

inline constexpr uint16_t kProtocolMajor = 1;
inline constexpr uint16_t kProtocolMinor = 0;
inline constexpr uint32_t kMaxFrameBytes = 1u << 20;      // one command, its inline data included
inline constexpr uint32_t kInlineChunkBytes = 64u << 10;  // data carried inside one command
inline constexpr uint32_t kMaxReplyBytes = 16u << 20;     // body of one reply on a network channel

struct FrameHeader {
  uint32_t size;      // header and body, multiple of 8
  uint16_t function;  // ControlFunction, or an id of native/api/ids.lock or library_ids.lock
  uint16_t lane;      // where the reply goes; kNoLane for fire and forget
  uint32_t sequence;  // of the lane: the reply carries it back
  uint32_t context;   // device index + 1 of the calling thread's current context, 0 = none
};
static_assert(sizeof(FrameHeader) == 16);

inline constexpr uint16_t kNoLane = 0xffff;
// Lanes of a network channel; a slot has channel::kLaneCount. A lane has one command under way.
inline constexpr uint16_t kStreamLanes = 256;
// Beside the status of a reply: kernels have printed something, to be fetched with kReadOutput.
inline constexpr uint32_t kOutputWaiting = 1u << 31;
// The answer goes on: the rest is fetched on the same lane with kReplyRest.
inline constexpr uint32_t kMoreFollows = 1u << 30;
// The longest answer in all.
inline constexpr size_t kMaxAnswer = 4 << 20;

// Numbers of commands: Sluice's own (native/api/commands.yaml), CUDA's functions from here on
// (native/api/ids.lock), the libraries' (native/api/library_ids.lock), and again Sluice's own.
inline constexpr uint16_t kFirstApiFunction = 64;
inline constexpr uint16_t kFirstLibraryFunction = 1024;

inline constexpr size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

}  // namespace sluice::wire
