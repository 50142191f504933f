// SPDX-License-Identifier: Apache-2.0
// Times of records. All are the profiler's: nanoseconds of CLOCK_REALTIME, or whatever the function
// that it registered says. A node's times come nearer to them by exchanges of stamps: an answer
// that was underway from `sent` to `received` says that the node's clock showed `node` at some
// moment between, which bounds the difference by half a round trip; the closest exchange counts.
// Where that leaves it possible that both clocks are one, as on one host, they are taken for one.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

namespace sluice::cupti {

// Nanoseconds of CLOCK_REALTIME.
uint64_t real_ns();

class Clock {
 public:
  using Stamp = uint64_t (*)();

  static Clock& get();

  // The profiler's own clock; nullptr: CLOCK_REALTIME.
  void use(Stamp stamp);
  // Now, in the profiler's time.
  uint64_t now() const;

  // An exchange with a node, in real_ns() and the node's nanoseconds.
  void exchanged(uint32_t node, uint64_t sent, uint64_t at_node, uint64_t received);
  // Looks at both clocks of this machine; before times of nodes are turned into the profiler's.
  void look();
  // Whether a node can have seen work from `start` to `end`: between its first and its last
  // exchange, give or take a minute, or at a time that it does not know (0).
  bool saw(uint32_t node, uint64_t start, uint64_t end) const;
  // A node's time in the profiler's.
  uint64_t of_node(uint32_t node, uint64_t at) const;

 private:
  struct Pair {
    uint64_t real = 0, own = 0;
  };
  struct Difference {
    bool known = false;
    int64_t ahead = 0;  // of the node's clock before ours
    uint64_t round_trip = 0;
    uint64_t first = 0, last = 0;  // the least and the most that its clock showed
  };
  static Pair pair(Stamp stamp);

  mutable std::mutex mutex_;
  Stamp stamp_ = nullptr;
  Pair first_, last_;
  std::vector<Difference> nodes_;
};

}  // namespace sluice::cupti
