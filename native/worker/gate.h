// SPDX-License-Identifier: Apache-2.0
// The executor's gate (rule 11), one for each vGPU: keeps a bounded lead of launches over what the
// GPU has finished, measures the GPU time that the session used, and can be held. Compute shares
// and suspension are policies on it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>

#include "worker/driver.h"

namespace sluice::worker {

class Gate {
 public:
  explicit Gate(const Driver& driver) : driver_(driver) {}

  // Called by the executor before and after it issues a launch on `stream`. pass() waits while the
  // gate is held or the lead is used up.
  void pass();
  // `weight`: how many launches it stands for.
  CUresult issued(CUstream stream, uint32_t weight = 1);

  // The stream is about to be destroyed.
  void leave(CUstream stream);

  void hold();
  void release();
  bool held() const { return held_.load(std::memory_order_relaxed); }
  double gpu_busy_ms();

 private:
  static constexpr uint32_t kLaunchesPerMark = 64;
  static constexpr size_t kMarks = 16;  // 1,024 launches of lead

  struct Interval {
    CUevent begin, end;
  };
  CUevent event();
  void collect(bool wait_for_oldest);
  void finish_interval();

  const Driver& driver_;
  std::atomic<bool> held_{false};
  std::mutex mutex_;
  std::condition_variable released_;
  std::deque<Interval> under_way_;
  std::deque<CUevent> spare_;
  CUevent begin_ = nullptr;
  CUstream stream_ = nullptr;
  uint32_t until_mark_ = 0;  // launches that may still come before the next
  double busy_ms_ = 0;
};

}  // namespace sluice::worker
