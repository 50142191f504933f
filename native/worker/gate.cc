// SPDX-License-Identifier: Apache-2.0
#include "worker/gate.h"

namespace sluice::worker {

CUevent Gate::event() {
  if (!spare_.empty()) {
    CUevent e = spare_.back();
    spare_.pop_back();
    return e;
  }
  CUevent e = nullptr;
  return driver_.cuEventCreate(&e, CU_EVENT_DEFAULT) == CUDA_SUCCESS ? e : nullptr;
}

void Gate::collect(bool wait_for_oldest) {
  while (!under_way_.empty()) {
    const Interval i = under_way_.front();
    const CUresult done = wait_for_oldest && under_way_.size() >= kMarks
                              ? driver_.cuEventSynchronize(i.end)
                              : driver_.cuEventQuery(i.end);
    if (done == CUDA_ERROR_NOT_READY) return;
    float ms = 0;
    if (done == CUDA_SUCCESS && driver_.cuEventElapsedTime_v2(&ms, i.begin, i.end) == CUDA_SUCCESS)
      busy_ms_ += static_cast<double>(ms);
    under_way_.pop_front();
    spare_.push_back(i.begin);
    spare_.push_back(i.end);
  }
}

void Gate::pass() {
  if (held_.load(std::memory_order_relaxed)) {
    std::unique_lock lock(mutex_);
    released_.wait(lock, [this] { return !held_; });
  }
  if (until_mark_ == 0) {
    std::lock_guard lock(mutex_);
    if (under_way_.size() >= kMarks) collect(true);
  }
}

// An interval runs from the first to the last of a batch of launches on one stream; what other
// streams do meanwhile lies within it.
CUresult Gate::issued(CUstream stream, uint32_t weight) {
  if (until_mark_ >= weight) {
    until_mark_ -= weight;
    return CUDA_SUCCESS;
  }
  until_mark_ = weight < kLaunchesPerMark ? kLaunchesPerMark - 1 : 0;
  std::lock_guard lock(mutex_);
  finish_interval();
  collect(false);
  stream_ = stream;
  begin_ = event();
  return begin_ ? driver_.cuEventRecord(begin_, stream) : CUDA_SUCCESS;
}

void Gate::finish_interval() {
  if (!begin_) return;
  CUevent end = event();
  if (end && driver_.cuEventRecord(end, stream_) == CUDA_SUCCESS)
    under_way_.push_back({begin_, end});
  else
    spare_.push_back(begin_);
  begin_ = nullptr;
}

void Gate::leave(CUstream stream) {
  std::lock_guard lock(mutex_);
  if (stream == stream_) finish_interval();
}

void Gate::hold() { held_ = true; }

void Gate::release() {
  {
    std::lock_guard lock(mutex_);
    held_ = false;
  }
  released_.notify_all();
}

double Gate::gpu_busy_ms() {
  std::lock_guard lock(mutex_);
  return busy_ms_;
}

}  // namespace sluice::worker
