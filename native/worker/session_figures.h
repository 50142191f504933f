// SPDX-License-Identifier: Apache-2.0
// What a session has done so far, in numbers that any thread may add to and look at.
#pragma once

#include <atomic>
#include <cstdint>

namespace sluice::worker {

struct SessionFigures {
  std::atomic<uint64_t> commands{0}, round_trips{0};
  std::atomic<uint64_t> replied{0};                   // bytes of answers
  std::atomic<uint64_t> shared_in{0}, shared_out{0};  // bytes by shared memory (traffic.h)
  std::atomic<uint64_t> activity{0};  // grows while there may be GPU work: the watchdog looks
};

}  // namespace sluice::worker
