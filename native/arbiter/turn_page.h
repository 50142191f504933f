// SPDX-License-Identifier: Apache-2.0
// The page that one worker and the arbiter share (rule 11). Each writes words of its own, and the
// arbiter believes of the worker's only what the worker harms itself with. The server makes it, of
// a size that is sealed (server/sessions/turn_pages.py), and an eventfd beside it, by which the
// worker has the arbiter look; the arbiter wakes the worker by `changes`.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "wire/protocol.h"

namespace sluice::arbiter {

// What `until` says where it is no time of CLOCK_MONOTONIC in nanoseconds.
constexpr int64_t kNoTurn = 0;
// Nobody else has a share of these GPUs: the gate does nothing.
constexpr int64_t kAlone = std::numeric_limits<int64_t>::max();
// Somebody has, and wants none of it now. What is under way stays little, so that one who wakes
// need not wait for long.
constexpr int64_t kUntilWanted = kAlone - 1;

// The arbiter writes `beat` at least so often while anybody waits, and a worker that sees an older
// one goes on without turns until there is a newer one.
constexpr int64_t kBeatNs = 100'000'000, kDeadNs = 500'000'000;

struct TurnPage {
  uint64_t magic;  // wire::kTurnPageMagic
  // The arbiter's.
  alignas(64) std::atomic<uint32_t> changes;  // counts every change of the two below; a futex
  std::atomic<uint32_t> turn;                 // number of the last turn that was given
  std::atomic<int64_t> until;                 // when that is over: one of the above, or a time
  std::atomic<int64_t> beat;
  // The worker's.
  alignas(64) std::atomic<uint32_t> wants;  // 1: it has work, with a turn or without
  std::atomic<uint32_t> seen;               // the last turn that it has noticed
  std::atomic<uint32_t> returned;           // the last one that it has given back
  std::atomic<uint64_t> overran;  // nanoseconds of the GPU after turns that it had given back
};

constexpr size_t kTurnPageBytes = wire::kTurnPageBytes;
static_assert(sizeof(TurnPage) <= kTurnPageBytes);
static_assert(std::atomic<int64_t>::is_always_lock_free);

}  // namespace sluice::arbiter
