// SPDX-License-Identifier: Apache-2.0
// A driver table for the executor's tests: fills write down their value, waits wait as long as a
// test wants, and everything else there is does nothing. One at a time in a process.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <vector>

#include "worker/driver.h"

namespace sluice::test {

class FakeDriver {
 public:
  FakeDriver() {
    table.cuCtxSetCurrent = [](CUcontext) { return CUDA_SUCCESS; };
    table.cuStreamQuery = [](CUstream) { return get()->stream_status.load(); };
    table.cuMemsetD32Async = [](CUdeviceptr, unsigned value, size_t, CUstream) {
      return get()->fill(value);
    };
    table.cuCtxSynchronize = [] {
      return get()->on_synchronize ? get()->on_synchronize() : CUDA_SUCCESS;
    };
    table.cuEventCreate = [](CUevent* e, unsigned) {
      static std::atomic<uintptr_t> next{0};
      *e = reinterpret_cast<CUevent>(++next);
      return CUDA_SUCCESS;
    };
    table.cuEventRecord = [](CUevent, CUstream) { return CUDA_SUCCESS; };
    table.cuEventQuery = table.cuEventSynchronize = [](CUevent) { return CUDA_SUCCESS; };
    table.cuEventElapsedTime_v2 = [](float* ms, CUevent, CUevent) {
      *ms = 0;
      return CUDA_SUCCESS;
    };
    table.cuGetErrorName = [](CUresult, const char** name) {
      *name = "FAKE_ERROR";
      return CUDA_SUCCESS;
    };
    current_ = this;
  }

  std::vector<unsigned> fills() {
    std::lock_guard lock(mutex_);
    return fills_;
  }
  size_t fill_count() {
    std::lock_guard lock(mutex_);
    return fills_.size();
  }
  // Whether it has come to `n` within twenty seconds.
  bool wait_fills(size_t n) {
    std::unique_lock lock(mutex_);
    return grown_.wait_for(lock, std::chrono::seconds(20), [&] { return fills_.size() >= n; });
  }

  worker::Driver table;
  std::function<CUresult()> on_synchronize;  // both set before the session runs
  std::function<void(unsigned)> on_fill;
  std::atomic<CUresult> fill_status{CUDA_SUCCESS}, stream_status{CUDA_SUCCESS};

 private:
  static FakeDriver* get() { return current_.load(); }
  CUresult fill(unsigned value) {
    if (on_fill) on_fill(value);
    std::lock_guard lock(mutex_);
    fills_.push_back(value);
    grown_.notify_all();
    return fill_status;
  }

  static inline std::atomic<FakeDriver*> current_{
      nullptr};  // the newest one: older sessions' watchdogs ask it too
  std::mutex mutex_;
  std::condition_variable grown_;
  std::vector<unsigned> fills_;
};

}  // namespace sluice::test
