// SPDX-License-Identifier: Apache-2.0
#include "client/cupti/clock.h"

#include <time.h>

#include <algorithm>
#include <atomic>

#include "client/cupti/answer.h"

namespace sluice::cupti {

namespace {

// Whoever stamps calls takes no lock.
std::atomic<Clock::Stamp> g_stamp{nullptr};
constexpr uint32_t kMostNodes = 64;
// Two looks at the profiler's clock say how fast it goes only when they are so far apart.
constexpr uint64_t kApartNs = 2'000'000;
// A GPU's stamps are another clock's than the node's, and that may be set while it records.
constexpr uint64_t kLenienceNs = 60'000'000'000;
// Beyond it a double is no int64_t.
constexpr double kMostSince = 9e18;

}  // namespace

uint64_t real_ns() {
  timespec at{};
  clock_gettime(CLOCK_REALTIME, &at);
  return static_cast<uint64_t>(at.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(at.tv_nsec);
}

Clock& Clock::get() {
  static Clock* one = new Clock;
  return *one;
}

// Of several looks the one that took least: the two readings are of one moment as nearly as can be.
Clock::Pair Clock::pair(Stamp stamp) {
  Pair best;
  uint64_t least = ~uint64_t{0};
  for (int i = 0; i < 5; ++i) {
    const uint64_t before = real_ns(), own = stamp(), after = real_ns();
    if (after - before >= least) continue;
    least = after - before;
    best = {before + (after - before) / 2, own};
  }
  return best;
}

void Clock::use(Stamp stamp) {
  std::lock_guard lock(mutex_);
  stamp_ = stamp;
  if (stamp) first_ = last_ = pair(stamp);
  g_stamp = stamp;
}

uint64_t Clock::now() const {
  const Stamp stamp = g_stamp.load(std::memory_order_relaxed);
  return stamp ? stamp() : real_ns();
}

void Clock::exchanged(uint32_t node, uint64_t sent, uint64_t at_node, uint64_t received) {
  if (node >= kMostNodes || at_node == 0 || at_node > kLatest || received < sent) return;
  std::lock_guard lock(mutex_);
  if (nodes_.size() <= node) nodes_.resize(node + 1);
  Difference& d = nodes_[node];
  d.first = d.first ? std::min(d.first, at_node) : at_node;
  d.last = std::max(d.last, at_node);
  const uint64_t round_trip = received - sent;
  if (d.known && round_trip > d.round_trip) return;
  const bool may_be_one = sent <= at_node && at_node <= received;
  const auto middle = static_cast<int64_t>(sent + round_trip / 2);
  d.known = true;
  d.ahead = may_be_one ? 0 : static_cast<int64_t>(at_node) - middle;
  d.round_trip = round_trip;
}

void Clock::look() {
  std::lock_guard lock(mutex_);
  if (!stamp_) return;
  while (real_ns() - first_.real < kApartNs) {
  }
  last_ = pair(stamp_);
}

bool Clock::saw(uint32_t node, uint64_t start, uint64_t end) const {
  if (start == 0 && end == 0) return true;
  std::lock_guard lock(mutex_);
  if (node >= nodes_.size() || !nodes_[node].known) return false;
  const Difference& d = nodes_[node];
  return start <= end && start + kLenienceNs >= d.first && end <= d.last + kLenienceNs;
}

uint64_t Clock::of_node(uint32_t node, uint64_t at) const {
  if (at == 0) return 0;
  std::lock_guard lock(mutex_);
  const int64_t ahead = node < nodes_.size() ? nodes_[node].ahead : 0;
  const auto real = static_cast<int64_t>(at) - ahead;
  if (!stamp_) return static_cast<uint64_t>(real);
  const double rate = last_.real > first_.real ? static_cast<double>(last_.own - first_.own) /
                                                     static_cast<double>(last_.real - first_.real)
                                               : 1.0;
  const auto since = static_cast<double>(real - static_cast<int64_t>(last_.real));
  const double own = std::clamp(since * rate, -kMostSince, kMostSince);
  return last_.own + static_cast<uint64_t>(static_cast<int64_t>(own));
}

}  // namespace sluice::cupti
