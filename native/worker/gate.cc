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

// Marks cost the stream and this thread about a microsecond each, so short launches get few.
void Gate::adapt(float ms) {
  if (ms < kShortMs && batch_ < kMaxBatch) batch_ *= 2;
  if (ms > kLongMs && batch_ > kMinBatch) batch_ /= 2;
}

void Gate::collect(bool wait_for_oldest) {
  while (!under_way_.empty()) {
    const Interval i = under_way_.front();
    const CUresult done = wait_for_oldest && lead_is_used_up() ? driver_.cuEventSynchronize(i.end)
                                                               : driver_.cuEventQuery(i.end);
    if (done == CUDA_ERROR_NOT_READY) return;
    float ms = 0;
    if (done == CUDA_SUCCESS &&
        driver_.cuEventElapsedTime_v2(&ms, i.begin, i.end) == CUDA_SUCCESS) {
      busy_ms_.store(busy_ms_.load(std::memory_order_relaxed) + static_cast<double>(ms),
                     std::memory_order_relaxed);
      adapt(ms);
    }
    lead_ -= i.launches;
    under_way_.pop_front();
    spare_.push_back(i.begin);
    if (!i.end_begins_next) spare_.push_back(i.end);
  }
}

void Gate::pass() {
  if (held_.load(std::memory_order_relaxed)) {
    std::unique_lock lock(held_mutex_);
    released_.wait(lock, [this] { return !held_; });
  }
  if (until_mark_ == 0) {
    std::lock_guard lock(mutex_);
    if (lead_is_used_up()) collect(true);
  }
}

// An interval runs from the first to the last of a batch of launches on one stream; what other
// streams do meanwhile lies within it.
CUresult Gate::issued(CUstream stream, uint32_t weight) {
  since_mark_ += weight;
  if (until_mark_ >= weight) {
    until_mark_ -= weight;
    return CUDA_SUCCESS;
  }
  std::lock_guard lock(mutex_);
  finish_interval(stream);
  collect(false);
  until_mark_ = weight < batch_ ? batch_ - 1 : 0;
  stream_ = stream;
  if (begin_) return CUDA_SUCCESS;
  begin_ = event();
  return begin_ ? driver_.cuEventRecord(begin_, stream) : CUDA_SUCCESS;
}

// Its end is the beginning of the next one where that follows on the same stream.
void Gate::finish_interval(CUstream next) {
  if (!begin_) return;
  CUevent end = event();
  if (!end || driver_.cuEventRecord(end, stream_) != CUDA_SUCCESS) {
    spare_.push_back(begin_);
    if (end) spare_.push_back(end);
    begin_ = nullptr;
    return;
  }
  const bool goes_on = next == stream_;
  under_way_.push_back({begin_, end, since_mark_, goes_on});
  lead_ += since_mark_;
  since_mark_ = 0;
  begin_ = goes_on ? end : nullptr;
}

void Gate::leave(CUstream stream) {
  std::lock_guard lock(mutex_);
  if (stream == stream_) finish_interval(nullptr);
}

void Gate::hold() { held_ = true; }

void Gate::release() {
  {
    std::lock_guard lock(held_mutex_);
    held_ = false;
  }
  released_.notify_all();
}

}  // namespace sluice::worker
