// SPDX-License-Identifier: Apache-2.0
#include "client/core/fences.h"

#include <algorithm>

#include "client/core/session.h"
#include "client/core/stream_order.h"
#include "client/objects/device.h"

namespace sluice::client {

bool Fences::passed(const Fence& f) {
  // Of a stream that is gone only the whole device's progress tells.
  if (f.stream) return session_.work().passed(*f.device, f.stream, f.point);
  return session_.work().passed(*f.device, nullptr, {f.point.work, true});
}

uint64_t Fences::event_of(Device* device) {
  const auto at =
      std::ranges::find_if(spare_, [&](const Spare& spare) { return spare.device == device; });
  if (at != spare_.end()) {
    const uint64_t event = at->event;
    spare_.erase(at);
    return event;
  }
  return make_order_event(session_, device);
}

void Fences::drop_passed() {
  const auto drop = [this](const auto& is_done) {
    std::erase_if(fences_, [&](const Fence& f) {
      if (!is_done(f)) return false;
      spare_.push_back({f.device, f.event});
      return true;
    });
  };
  drop([this](const Fence& f) { return passed(f); });
  if (fences_.size() < many_) return;
  drop([this](const Fence& f) {
    return session_.ask(*f.device, wire::kEventQuery, wire::EventQuery{f.event}) == CUDA_SUCCESS;
  });
  many_ = std::max(kMany, 2 * fences_.size());
}

CUresult Fences::set(Stream* stream, bool seen) {
  if (captures(*stream)) return CUDA_SUCCESS;
  std::lock_guard lock(mutex_);
  Device* device = stream->device;
  const StreamPoint point = session_.work().point(*stream);
  if (session_.work().passed(*device, stream, point)) return CUDA_SUCCESS;
  auto f = std::ranges::find_if(fences_, [&](const Fence& each) { return each.stream == stream; });
  if (f != fences_.end() && f->point.work == point.work) return CUDA_SUCCESS;
  if (f == fences_.end()) {
    drop_passed();
    const uint64_t event = event_of(device);
    if (!event) return CUDA_ERROR_OUT_OF_MEMORY;
    const bool apart = stream->flags & CU_STREAM_NON_BLOCKING;
    fences_.push_back({stream, device, apart, stream == &device->legacy, seen, event, 0, point});
    f = fences_.end() - 1;
  }
  f->seen |= seen;
  f->point = point;
  const wire::EventRecord record{f->event, stream->wire_id, wire::kNoMark, 0, 0};
  const CUresult e = session_.tell(*device, wire::kEventRecord, record);
  if (e != CUDA_SUCCESS) return e;
  // Its own stream has nothing to join, unless it has still others to.
  const std::atomic_ref joined(stream->fence);
  const bool up_to_date = joined.load(std::memory_order_relaxed) == newest_;
  f->number = newest_ + 1;
  if (up_to_date) joined.store(f->number, std::memory_order_release);
  newest_.store(f->number, std::memory_order_release);
  return CUDA_SUCCESS;
}

CUresult Fences::catch_up(Stream* stream) {
  if (captures(*stream)) return CUDA_SUCCESS;  // what is recorded runs somewhere later
  if (stream->joins_nothing) return CUDA_SUCCESS;
  std::lock_guard lock(mutex_);
  const std::atomic_ref joined(stream->fence);
  const uint64_t before = joined.load(std::memory_order_relaxed);
  const Device& device = *stream->device;
  const bool apart = stream->flags & CU_STREAM_NON_BLOCKING, legacy = stream == &device.legacy;
  for (const Fence& f : fences_) {
    if (f.number <= before || f.stream == stream) continue;
    if (f.device->place.node != device.place.node) continue;  // whose memory it does not reach
    if (f.device == &device && ((f.legacy && !apart) || (legacy && !f.apart))) continue;
    if (passed(f)) continue;
    const wire::StreamWaitEvent wait{stream->wire_id, f.event, 0, 0};
    if (const CUresult e = session_.tell(device, wire::kStreamWaitEvent, wait); e != CUDA_SUCCESS)
      return e;
    session_.work().add(*stream, f.seen);
  }
  joined.store(newest_, std::memory_order_release);
  return CUDA_SUCCESS;
}

CUresult Fences::show_memory() {
  if (shown_.exchange(true)) return CUDA_SUCCESS;
  std::lock_guard lock(mutex_);
  for (const Fence& f : fences_) {
    if (passed(f)) continue;
    const CUresult e = session_.ask(*f.device, wire::kEventSynchronize, wire::EventId{f.event});
    if (e != CUDA_SUCCESS) return e;
  }
  return CUDA_SUCCESS;
}

void Fences::forget(const Stream* stream) {
  std::lock_guard lock(mutex_);
  for (Fence& f : fences_) {
    if (f.stream != stream) continue;
    if (passed(f)) f.point.work = 0;  // it may be dropped
    f.stream = nullptr;
  }
}

}  // namespace sluice::client
