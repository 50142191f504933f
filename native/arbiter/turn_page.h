// SPDX-License-Identifier: Apache-2.0
// The page that one worker and the arbiter share (rule 11). Each writes words of its own, and the
// arbiter believes of the worker's only what the worker harms itself with. The server makes it, of
// a size that is sealed (server/sessions/turn_pages.py), and an eventfd beside it, by which the
// worker has the arbiter look; the arbiter wakes the worker by `changes`.
#pragma once

#include <array>
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
// Tenants that do not fill the GPU together run at once for now (together.h). A worker of before
// takes it for a time that never comes.
constexpr int64_t kTogether = kAlone - 2;

// The arbiter writes `beat` at least so often while anybody waits, and a worker that sees an older
// one goes on without turns until there is a newer one.
constexpr int64_t kBeatNs = 100'000'000, kDeadNs = 500'000'000;

// Communicators whose collectives are counted on a page.
constexpr size_t kPlaces = 128;

// How many collectives a rank here has issued on a communicator. While a place changes hands its
// communicator is 0, which is none.
struct Issued {
  std::atomic<uint64_t> communicator;
  std::atomic<uint64_t> count;
};

// Up to how many the rank may go on issuing, and the end of the communicator's name, as one word:
// it may be about what was in the place before. 0: no further.
constexpr int kCutBits = 48;
constexpr uint64_t cut_word(uint64_t communicator, uint64_t upto) {
  constexpr uint64_t kCount = (1ull << kCutBits) - 1;
  return communicator << kCutBits | (upto & kCount);
}
constexpr bool is_behind(uint64_t cut, uint64_t communicator, uint64_t count) {
  return cut != 0 && (cut ^ cut_word(communicator, 0)) >> kCutBits == 0 &&
         cut > cut_word(communicator, count);
}

// Memory (residency.h), of the session's first vGPUs; one that has more is not asked of any.
constexpr size_t kMemoryPlaces = wire::kTurnPageMemoryPlaces;

struct MemoryWords {
  // The worker's. `calls` counts how often a command began to wait for memory, or for its session
  // to come back; `waits`: so many do. `begun` and `done` count commands. It asks for one vGPU at a
  // time, as one thread of a session runs what allocates.
  alignas(64) std::atomic<uint32_t> calls;
  std::atomic<uint32_t> waits;
  std::atomic<uint64_t> begun, done;
  std::atomic<uint64_t> asked;
  std::atomic<uint32_t> asked_of;
  std::atomic<uint32_t> spoken;  // 1: it writes these words; one of an earlier release does not
  std::array<std::atomic<uint64_t>, kMemoryPlaces> taken, staying;
  // The arbiter's, and the server's before the worker has the page: of which vGPUs the worker may
  // take so much and no more (bits); a futex that counts every change.
  alignas(64) std::atomic<uint32_t> changes;
  std::atomic<uint32_t> bounded;
  std::array<std::atomic<uint64_t>, kMemoryPlaces> room;
};

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
  std::atomic<uint32_t> places;   // how many of the `issued` are in use
  // Sums, written before a turn is given back, and every now and then while tenants run at once:
  // what it has launched; nanoseconds in which it had work under way; of its turns, how long they
  // were looked at, and for how much of that the GPU had run dry, as the next launch was late.
  std::atomic<uint64_t> launches;
  std::atomic<uint64_t> busy;
  std::atomic<uint64_t> watched;
  std::atomic<uint64_t> dry;
  // The arbiter's: the turn at whose end `cut` holds, and that, by the places of `issued`.
  alignas(64) std::atomic<uint32_t> cut_turn;
  std::array<std::atomic<uint64_t>, kPlaces> cut;
  // The worker's.
  alignas(64) std::array<Issued, kPlaces> issued;
  MemoryWords memory;
};

constexpr size_t kTurnPageBytes = wire::kTurnPageBytes;
static_assert(sizeof(TurnPage) <= kTurnPageBytes);
// Workers and arbiters of several releases share pages: words are added, and stay where they are.
static_assert(offsetof(TurnPage, launches) == 160 && offsetof(TurnPage, cut_turn) == 192 &&
              offsetof(TurnPage, memory) == 3328 &&
              offsetof(TurnPage, memory.bounded) == wire::kTurnPageBoundedAt);
static_assert(std::atomic<int64_t>::is_always_lock_free);

}  // namespace sluice::arbiter
