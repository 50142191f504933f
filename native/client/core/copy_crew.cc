// SPDX-License-Identifier: Apache-2.0
#include "client/core/copy_crew.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <thread>

#include "channel/futex.h"
#include "channel/thread.h"

namespace sluice::client {

namespace {

constexpr size_t kWorthIt = 256 << 10;  // per thread
constexpr uint64_t kSpinNs = 300'000;   // the time of a piece on the bus and some

class Crew {
 public:
  // As many helpers as there are threads to be had.
  explicit Crew(unsigned helpers) {
    while (helpers_ < helpers && channel::start_detached(
                                     "sluice-copy", [this, index = helpers_ + 1] { help(index); },
                                     channel::Signals::kBlocked))
      ++helpers_;
  }

  void copy(std::byte* to, const std::byte* from, size_t bytes) {
    const size_t share = (bytes / (helpers_ + 1) + 63) / 64 * 64;
    to_ = to, from_ = from, bytes_ = bytes, share_ = share;
    left_.store(helpers_, std::memory_order_relaxed);
    round_.fetch_add(1, std::memory_order_seq_cst);
    if (sleeping_.load(std::memory_order_seq_cst) > 0) channel::futex_wake(round_, 64);
    part(0);
    while (left_.load(std::memory_order_acquire) > 0) channel::cpu_relax();
  }

 private:
  void part(unsigned index) {
    const size_t begin = std::min(bytes_, share_ * index);
    const size_t end = index == helpers_ ? bytes_ : std::min(bytes_, begin + share_);
    std::memcpy(to_ + begin, from_ + begin, end - begin);
  }

  void help(unsigned index) {
    for (uint32_t done = 0;;) {
      const uint64_t since = channel::now_ns();
      while (round_.load(std::memory_order_acquire) == done) {
        for (int i = 0; i < 50; ++i) channel::cpu_relax();
        if (channel::now_ns() - since < kSpinNs) continue;
        sleeping_.fetch_add(1, std::memory_order_seq_cst);
        channel::futex_wait(round_, done);
        sleeping_.fetch_sub(1, std::memory_order_seq_cst);
      }
      ++done;
      part(index);
      left_.fetch_sub(1, std::memory_order_release);
    }
  }

  unsigned helpers_ = 0;  // set before the first round
  std::byte* to_ = nullptr;
  const std::byte* from_ = nullptr;
  size_t bytes_ = 0, share_ = 0;
  alignas(64) std::atomic<uint32_t> round_{0};
  alignas(64) std::atomic<uint32_t> left_{0};
  std::atomic<uint32_t> sleeping_{0};
};

unsigned helper_count() {
  const unsigned cores = std::thread::hardware_concurrency();
  return cores < 8 ? 0 : std::min(3u, cores / 4 - 1);
}

}  // namespace

void crew_copy(std::byte* to, const std::byte* from, size_t bytes) {
  static const unsigned helpers = helper_count();
  if (helpers == 0 || bytes < kWorthIt * (helpers + 1)) {
    std::memcpy(to, from, bytes);
    return;
  }
  static Crew* crew = new Crew(helpers);  // its threads end with the process
  crew->copy(to, from, bytes);
}

}  // namespace sluice::client
