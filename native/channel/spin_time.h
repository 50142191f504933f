// SPDX-License-Identifier: Apache-2.0
// How long it is worth looking for something before one sleeps until it comes. What is waited for
// comes after about as long as it did the last times, and to be woken takes tens of microseconds,
// in a guest more: who has waited for a short time looks for twice as long the next time, and who
// has waited for long looks for half as long, soon not at all. Of one thread at a time.
#pragma once

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

namespace sluice::channel {

// How many processors this process may use; at least 1.
inline int usable_processors() {
  static const int count = [] {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
    return std::max(1, static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)));  // more than the set holds
  }();
  return count;
}

// What whoever waits over a network looks for at most, in nanoseconds: a client for an answer, for
// less time than a native program looks for its GPU, and a worker or relay for the next commands.
inline constexpr uint64_t kLooksForAnswer = 1'000'000, kLooksForCommands = 500'000;

class SpinTime {
 public:
  // Nanoseconds. `least`: also where every wait was long, and where processors are few: who looks
  // takes one from who works then, the other side among them. On one processor nobody looks.
  struct Bounds {
    uint64_t least, most;
  };
  static constexpr int kFewProcessors = 4;
  // A round of looking that takes so long was interrupted: somebody else had the processor. Who
  // sleeps gets it back sooner than who has used it up by looking.
  static constexpr uint64_t kHeldUp = 50'000;
  static constexpr uint32_t kRests = 16, kMostRests = 1024;  // waits, after that; each time more

  explicit SpinTime(const Bounds& bounds = {0, 0}, int processors = usable_processors())
      : least_(processors > 1 ? bounds.least : 0),
        most_(processors >= kFewProcessors ? bounds.most : least_),
        nanoseconds_(least_) {}

  bool looks() const { return most_ > 0; }  // ever
  uint64_t nanoseconds() const { return rests_ > 0 ? least_ : nanoseconds_; }
  // After a wait, slept through or not.
  void waited(uint64_t so_long) {
    if (rests_ > 0) {
      --rests_;
    } else if (so_long <= nanoseconds_) {
      next_rests_ = kRests;
      return;
    }
    if (so_long >= 2 * most_)
      nanoseconds_ = nanoseconds_ > kLittle ? std::max(least_, nanoseconds_ / 2) : least_;
    else if (so_long > nanoseconds_)
      nanoseconds_ = std::min(most_, 2 * so_long);
  }
  // While it looked, others wanted the processor: it is left to them for some time.
  void held_up() {
    rests_ = next_rests_;
    next_rests_ = std::min(kMostRests, 2 * next_rests_);
  }

 private:
  static constexpr uint64_t kLittle = 20'000;  // not worth looking for

  uint64_t least_, most_, nanoseconds_;
  uint32_t rests_ = 0, next_rests_ = kRests;
};

}  // namespace sluice::channel
