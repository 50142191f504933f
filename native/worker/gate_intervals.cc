// SPDX-License-Identifier: Apache-2.0
// What the intervals of a gate tell: how long they and their parts took, how much of that was the
// GPU's time, and for how long it had nothing to do in between.
#include <algorithm>

#include "channel/futex.h"
#include "worker/gate.h"

namespace sluice::worker {

namespace {

constexpr float kMostGapNs = 100'000;  // longer is no gap between launches
constexpr float kEventNs = 1'000;      // from one event to the next, without a gap
constexpr float kLaunchNs = 2'500;     // of a call that thinks about nothing
constexpr uint64_t kLeadNapNs = 50'000;
// What the GPU has may wait for the host, and what tells of that may lie behind the launch that
// waits here: one goes on each time, to be read past.
constexpr int64_t kLeadStandsNs = 1'000'000'000;

int64_t now_ns() { return static_cast<int64_t>(channel::now_ns()); }

}  // namespace

CUevent Gate::event() {
  if (!spare_.empty()) {
    CUevent e = spare_.back();
    spare_.pop_back();
    return e;
  }
  CUevent e = nullptr;
  if (!driver_.cuEventCreate) return nullptr;  // then nothing is measured
  return driver_.cuEventCreate(&e, CU_EVENT_DEFAULT) == CUDA_SUCCESS ? e : nullptr;
}

void Gate::spare(CUevent event) {
  if (event) spare_.push_back(event);
}

// Marks cost the stream and this thread about a microsecond each, so short launches get few.
void Gate::adapt(float ms) {
  if (ms < kShortMs && batch_ < kMaxBatch) batch_ *= 2;
  if (ms > kLongMs && batch_ > kMinBatch) batch_ /= 2;
}

// Each part is taken to have been longer or shorter than expected as the whole was. What waited for
// another stream or for the host counts as well, so what is short is believed sooner.
void Gate::learn(const Interval& interval, float ns) {
  if (interval.launches)
    launch_ns_ += (ns / static_cast<float>(interval.launches) - launch_ns_) / 8;
  if (interval.ns <= 0) return;
  for (const Part& p : interval.parts) {
    float& known = kind_ns_[p.kind];
    const float took = std::max(p.ns * ns / interval.ns, 1.0f);
    known = known == 0 ? took : known + (took - known) / (took < known ? 2.0f : 4.0f);
  }
}

// The gap before an interval that a mark ended the one before of is like those between its
// launches, of which no event tells: the mark's place has nothing to do with what the client does.
// A pause is no such thing, and counts once. Where there was a gap the GPU waits on until the call
// that follows has launched something, which a library's does when it has thought for a while.
void Gate::watch(const Interval& i, float ns) {
  if (i.parts.empty()) return;  // in no turn
  float gap = 0;
  if (i.gap != Gap::kUnknown && counted_ && counted_on_ == i.stream && counted_ != i.begin) {
    float ms = 0;
    if (driver_.cuEventElapsedTime_v2(&ms, counted_, i.begin) == CUDA_SUCCESS)
      gap = std::clamp(ms * 1e6f - kEventNs, 0.0f, kMostGapNs);
  }
  const float dry = gap > 0 ? std::min(gap + std::max(i.call_ns - kLaunchNs, 0.0f), kMostGapNs) : 0;
  const auto launches = static_cast<float>(i.parts.size());
  const float within = i.gap == Gap::kAtMark ? std::min(dry, ns / launches) * (launches - 1) : 0;
  watched_ns_.fetch_add(static_cast<uint64_t>(ns + gap), std::memory_order_relaxed);
  dry_ns_.fetch_add(static_cast<uint64_t>(std::min(within + dry, ns + gap)),
                    std::memory_order_relaxed);
}

// What lies on several streams is the GPU's time once: an interval counts as far as it goes beyond
// those before it. On one stream that is all of it.
void Gate::finished(const Interval& i) {
  float ms = 0;
  if (i.begin && driver_.cuEventElapsedTime_v2(&ms, i.begin, i.end) == CUDA_SUCCESS) {
    adapt(ms);
    learn(i, ms * 1e6f);
    watch(i, ms * 1e6f);
  }
  if (!i.begin && !i.chained) return retire(i);
  const bool ordered = i.begin && (i.chained ? i.begin == counted_ : i.stream == counted_on_);
  float beyond = 0;
  if (counted_ && !ordered &&
      driver_.cuEventElapsedTime_v2(&beyond, counted_, i.end) == CUDA_SUCCESS)
    ms = i.chained ? beyond : std::min(ms, beyond);
  if (ms <= 0) return retire(i);
  busy_ms_.store(busy_ms_.load(std::memory_order_relaxed) + static_cast<double>(ms),
                 std::memory_order_relaxed);
  const CUevent before = counted_;
  const bool begins = counted_begins_ && before != i.begin;
  if (i.begin != before) spare(i.begin);
  if (!begins) spare(before);
  counted_ = i.end;
  counted_on_ = i.stream;
  counted_begins_ = i.end_begins_next;
}

// Its events are nobody's any more, except those that something else has.
void Gate::retire(const Interval& i) {
  if (i.begin == counted_)
    counted_begins_ = false;
  else
    spare(i.begin);
  if (!i.end_begins_next) spare(i.end);
}

void Gate::spare_begin() {
  const CUevent begin = std::exchange(begin_, nullptr);
  if (begin == counted_)
    counted_begins_ = false;
  else
    spare(begin);
  if (under_way_.empty()) busy_since_ = 0;
}

// Who has used up the lead has far more under way than the GPU does during a nap. To wait as the
// driver does, by looking, takes a processor from those who feed the GPU, as NCCL's threads do.
void Gate::collect(bool wait_for_oldest) {
  const int64_t came = wait_for_oldest ? now_ns() : 0;
  while (!under_way_.empty()) {
    const Interval& i = under_way_.front();
    const CUresult done = driver_.cuEventQuery(i.end);
    if (done == CUDA_ERROR_NOT_READY) {
      if (!wait_for_oldest || !lead_is_used_up() || now_ns() - came > kLeadStandsNs) return;
      nap(kLeadNapNs);
      continue;
    }
    if (done == CUDA_SUCCESS)
      finished(i);
    else
      retire(i);
    lead_ -= i.launches;
    under_way_ns_ -= i.ns;
    front_since_ = now_ns();
    under_way_.pop_front();
    busy_since_ = begin_ || !under_way_.empty() ? front_since_ : 0;
  }
  under_way_ns_ = 0;  // rounding
}

// While somebody waits for the GPU in there, or it works on and on, the clock goes on for it.
double Gate::gpu_busy_ms() {
  double ms = busy_ms_.load(std::memory_order_relaxed);
  if (const int64_t since = busy_since_.load(std::memory_order_relaxed))
    ms += static_cast<double>(std::max<int64_t>(0, now_ns() - since)) / 1e6;
  double shown = shown_ms_.load(std::memory_order_relaxed);
  while (shown < ms && !shown_ms_.compare_exchange_weak(shown, ms)) {
  }
  return std::max(shown, ms);
}

}  // namespace sluice::worker
