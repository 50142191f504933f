// SPDX-License-Identifier: Apache-2.0
// What a session has done so far, in numbers that any thread may add to and look at.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "wire/bodies/merging.h"

namespace sluice::worker {

// Of launches as graphs (merge/merger.h). Each command that came where they are on is counted once
// in `replayed` or `left`, unless it is held.
struct MergingFigures {
  std::atomic<uint64_t> replayed{0}, launches{0};  // commands that graphs stood for, and the graphs
  std::atomic<uint64_t> made{0}, refused{0}, ended{0};  // pieces
  // Pieces that were not made, as what their libraries' objects were told had changed by then, or a
  // capture or a library's call was under way.
  std::atomic<uint64_t> stale{0}, busy{0};
  static constexpr size_t kReasons = std::extent_v<decltype(wire::MergeFigures::left)>;
  std::array<std::atomic<uint64_t>, kReasons> left{};  // commands that ran singly, by LeftSingle
  // By the leader alone, so that it costs a command next to nothing.
  void leave(wire::LeftSingle why, uint64_t commands = 1) {
    std::atomic<uint64_t>& count = left[static_cast<size_t>(why)];
    count.store(count.load(std::memory_order_relaxed) + commands, std::memory_order_relaxed);
  }
  uint64_t left_by(wire::LeftSingle why) const {
    return left[static_cast<size_t>(why)].load(std::memory_order_relaxed);
  }
  // Commands that no piece goes over, by their function; only where launches are merged.
  static constexpr size_t kFunctions = 4096;
  using ByFunction = std::array<std::atomic<uint32_t>, kFunctions>;
  std::unique_ptr<ByFunction> single{};
};

struct SessionFigures {
  MergingFigures merging;
  std::atomic<uint64_t> commands{0}, round_trips{0};
  std::atomic<uint64_t> replied{0};                   // bytes of answers
  std::atomic<uint64_t> shared_in{0}, shared_out{0};  // bytes by shared memory (traffic.h)
  std::atomic<uint64_t> activity{0};  // grows while there may be GPU work: the watchdog looks
};

}  // namespace sluice::worker
