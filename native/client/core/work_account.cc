// SPDX-License-Identifier: Apache-2.0
#include "client/core/work_account.h"

#include <algorithm>

#include "client/objects/device.h"
#include "client/objects/stream.h"

namespace sluice::client {

void WorkAccount::count(Stream& stream, bool seen, const Appending&) {
  if (captures(stream)) return;
  Device& device = *stream.device;
  DeviceWork& d = device.work;
  const bool alone = d.issued_ == d.idle_at_ || d.only_stream_ == &stream;
  d.only_stream_ = alone ? &stream : nullptr;
  stream.work.last_ = ++d.issued_;
  if (seen) stream.work.seen_ = d.issued_;
  if (&stream == &device.legacy || stream.flags & CU_STREAM_NON_BLOCKING) return;
  d.last_blocking_ = d.issued_;
  if (seen) d.seen_blocking_ = d.issued_;
}

void WorkAccount::note_done(Device& device, Stream* stream, uint64_t upto) {
  std::lock_guard lock(mutex_);
  DeviceWork& d = device.work;
  if (stream) stream->work.done_ = std::max(stream->work.done_, upto);
  if (upto <= d.idle_at_) return;
  if (!stream || d.only_stream_ == stream) d.idle_at_ = upto;
}

void WorkAccount::forget(Device& device, const Stream* stream) {
  std::lock_guard lock(mutex_);
  if (device.work.only_stream_ == stream) device.work.only_stream_ = nullptr;
}

uint64_t WorkAccount::issued(const Device& device) {
  std::lock_guard lock(mutex_);
  return device.work.issued_;
}

bool WorkAccount::idle(const Device& device) {
  std::lock_guard lock(mutex_);
  return device.work.issued_ == device.work.idle_at_;
}

uint64_t WorkAccount::add_event(Stream& stream) {
  const auto lock = appending();
  count(stream, true, lock);
  return stream.work.last_;
}

bool WorkAccount::finished(const Stream& stream) {
  const Device& device = *stream.device;
  std::lock_guard lock(mutex_);
  // A blocking stream's work waited for the default stream's before it; what that was given since
  // then is nothing of its own.
  uint64_t last = stream.work.last_;
  if (&stream == &device.legacy) last = std::max(last, device.work.last_blocking_);
  return last <= std::max(stream.work.done_, device.work.idle_at_);
}

bool WorkAccount::unseen(const Stream& stream) {
  const Device& device = *stream.device;
  std::lock_guard lock(mutex_);
  const DeviceWork& d = device.work;
  const auto none = [&](const StreamWork& w) { return w.seen_ <= std::max(w.done_, d.idle_at_); };
  if (stream.flags & CU_STREAM_NON_BLOCKING) return none(stream.work);
  return none(device.legacy.work) && d.seen_blocking_ <= d.idle_at_;
}

StreamPoint WorkAccount::point(const Stream& stream) {
  const Device& device = *stream.device;
  std::lock_guard lock(mutex_);
  // The legacy stream waits for the blocking ones and they for it, also when they get nothing of
  // their own to do.
  const bool apart = stream.flags & CU_STREAM_NON_BLOCKING;
  const uint64_t others = apart                       ? 0
                          : &stream == &device.legacy ? device.work.last_blocking_
                                                      : device.legacy.work.last_;
  if (others > stream.work.last_) return {device.work.issued_, true};
  return {stream.work.last_, false};
}

bool WorkAccount::passed(const Device& device, const Stream* stream, StreamPoint point) {
  std::lock_guard lock(mutex_);
  return device.work.idle_at_ >= point.work ||
         (!point.whole_device && stream->work.done_ >= point.work);
}

}  // namespace sluice::client
