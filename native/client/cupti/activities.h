// SPDX-License-Identifier: Apache-2.0
// Which kinds of records the profiler wants, and the thread that brings them meanwhile, so that
// neither the node nor this process has to keep many.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

#include "cupti_abi.h"

namespace sluice::cupti {

class Activities {
 public:
  static Activities& get();

  // A CUptiResult.
  int enable(uint32_t kind);
  int disable(uint32_t kind);
  void disable_all();
  // Everything that is complete, into the profiler's buffers; a thread of Sluice's own does so
  // every `milliseconds` from now on, 0: only what fills a buffer.
  int flush(bool forced);
  void flush_every(uint32_t milliseconds) { period_ms_ = milliseconds; }
  // The thread, before the session's end; enable() starts it again.
  void stop();

 private:
  int apply(uint64_t wanted);
  void run();

  std::mutex mutex_;  // of the kinds
  uint64_t wanted_ = 0;

  std::mutex thread_mutex_;
  std::condition_variable changed_;
  std::thread thread_;
  bool stops_ = false;
  std::atomic<bool> node_records_{false};
  std::atomic<uint32_t> period_ms_{0};
};

}  // namespace sluice::cupti
