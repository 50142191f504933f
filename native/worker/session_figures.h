// SPDX-License-Identifier: Apache-2.0
// What a session has done so far, in numbers that any thread may add to and look at.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

namespace sluice::worker {

// Of launches as graphs (merge/merger.h).
struct MergingFigures {
  std::atomic<uint64_t> replayed{0}, launches{0};  // commands that graphs stood for, and the graphs
  std::atomic<uint64_t> made{0}, refused{0}, ended{0};  // pieces
  // Commands of pieces that were expected and did not come to their end: the next command did not
  // come in time, was another, or one that no piece goes over.
  std::atomic<uint64_t> late{0}, differing{0}, cut_short{0};
  // Commands that came while it looked away; pieces that were not made, as what their libraries'
  // objects were told had changed by then, or a capture was under way.
  std::atomic<uint64_t> unseen{0}, stale{0}, busy{0};
  // Commands that no piece goes over, by their function.
  static constexpr size_t kFunctions = 4096;
  std::array<std::atomic<uint32_t>, kFunctions> single{};
};

struct SessionFigures {
  MergingFigures merging;
  std::atomic<uint64_t> commands{0}, round_trips{0};
  std::atomic<uint64_t> replied{0};                   // bytes of answers
  std::atomic<uint64_t> shared_in{0}, shared_out{0};  // bytes by shared memory (traffic.h)
  std::atomic<uint64_t> activity{0};  // grows while there may be GPU work: the watchdog looks
};

}  // namespace sluice::worker
