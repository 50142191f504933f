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
  double gpu_busy_ms() const { return busy_ms_.load(std::memory_order_relaxed); }

 private:
  static constexpr uint32_t kLead = 1024;  // launches
  static constexpr size_t kLeadMarks = 4;  // at least as many batches, however large
  // Launches between two marks: few when they take long, so that the lead is known in time.
  static constexpr uint32_t kMinBatch = 64, kMaxBatch = 256;
  static constexpr float kShortMs = 0.5, kLongMs = 2;

  struct Interval {
    CUevent begin, end;
    uint32_t launches;
    bool end_begins_next;
  };
  bool lead_is_used_up() const { return lead_ >= kLead && under_way_.size() >= kLeadMarks; }
  CUevent event();
  void adapt(float ms);
  void collect(bool wait_for_oldest);
  void finish_interval(CUstream next);

  const Driver& driver_;
  std::atomic<bool> held_{false};
  std::mutex held_mutex_;  // of released_ alone: release() waits for nobody who waits for the GPU
  std::condition_variable released_;
  std::mutex mutex_;  // what follows
  std::deque<Interval> under_way_;
  std::deque<CUevent> spare_;
  CUevent begin_ = nullptr;
  CUstream stream_ = nullptr;
  uint32_t batch_ = kMinBatch;
  uint32_t until_mark_ = 0;  // launches that may still come before the next
  uint32_t since_mark_ = 0;
  uint64_t lead_ = 0;               // launches of the intervals under way
  std::atomic<double> busy_ms_{0};  // read without the lock
};

}  // namespace sluice::worker
