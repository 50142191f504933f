// SPDX-License-Identifier: Apache-2.0
// What a session sent and waited for, printed at exit with SLUICE_STATS=1. Counting by function
// happens only then; the totals are always kept.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "wire/bodies/merging.h"

namespace sluice::client {

struct Statistics {
  static constexpr size_t kFunctions = 4096;

  // Fire and forget, under the session's append lock.
  uint64_t commands = 0;
  std::array<uint64_t, kFunctions> commands_of{};
  std::atomic<uint64_t> round_trips{0};
  std::atomic<uint64_t> bytes_in{0};
  std::array<std::atomic<uint32_t>, kFunctions> round_trips_of{};  // by wire::FrameHeader::function

  void count_round_trip(uint16_t function) {
    round_trips_of[function % kFunctions].fetch_add(1, std::memory_order_relaxed);
  }
  // On standard error: what the nodes say of commands that repeat.
  static void print_merged(const wire::MergeFigures& all);
  // On standard error: a line of totals, one for each function that was waited for, and one for
  // each of the twenty that were sent most often.
  void print(uint64_t bytes_out, uint64_t cache_hits) const;
};

}  // namespace sluice::client
