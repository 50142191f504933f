// SPDX-License-Identifier: Apache-2.0
#include "client/cupti/recorder.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace sluice::cupti {

namespace {

// A callback of the profiler's that asks for a flush is within one already.
thread_local bool in_delivery = false;

}  // namespace

size_t record_bytes(uint32_t kind) {
  switch (kind) {
    case kMemcpy:
      return sizeof(CopyRecord);
    case kMemcpyPeer:
      return sizeof(PeerCopyRecord);
    case kMemset:
      return sizeof(FillRecord);
    case kKernel:
    case kConcurrentKernel:
      return sizeof(KernelRecord);
    case kDriver:
    case kRuntime:
      return sizeof(CallRecord);
    case kExternalCorrelation:
      return sizeof(ExternalRecord);
    default:
      return 0;
  }
}

// A node may say that it lost any number of them.
void Recorder::drop(size_t records) {
  size_t before = dropped_.load();
  while (!dropped_.compare_exchange_weak(before, before + std::min(records, ~before))) {
  }
}

// Lives for ever: threads of the program may be in calls while the process ends.
Recorder& Recorder::get() {
  static Recorder* one = new Recorder;
  return *one;
}

void Recorder::use(BufferRequested requested, BufferCompleted completed) {
  std::lock_guard lock(delivering_);
  requested_ = requested;
  completed_ = completed;
}

void Recorder::add(const void* record, size_t bytes) {
  const auto* at = static_cast<const std::byte*>(record);
  {
    std::lock_guard lock(mutex_);
    if (waiting_.size() + bytes > kMostBytes) return drop(1);
    waiting_.insert(waiting_.end(), at, at + bytes);
  }
  if (!buffer_.load(std::memory_order_relaxed)) take_buffer();
}

void Recorder::take_buffer() {
  if (in_delivery) return;
  std::unique_lock delivery(delivering_, std::try_to_lock);
  if (!delivery || buffer_) return;  // whoever delivers asks for one
  in_delivery = true;
  ask();
  in_delivery = false;
}

void Recorder::ask() {
  uint8_t* buffer = nullptr;
  if (const BufferRequested requested = requested_.load()) requested(&buffer, &size_, &most_);
  buffer_ = buffer;
}

bool Recorder::much_waits() {
  std::lock_guard lock(mutex_);
  return waiting_.size() >= kMuchBytes;
}

void Recorder::complete() {
  uint8_t* const buffer = buffer_.exchange(nullptr);
  if (const BufferCompleted completed = completed_.load(); buffer && completed)
    completed(nullptr, 0, buffer, size_, used_);
  size_ = used_ = most_ = count_ = 0;
}

void Recorder::fill(const std::vector<std::byte>& records) {
  for (size_t at = 0; at < records.size();) {
    uint32_t kind = 0;
    std::memcpy(&kind, records.data() + at, sizeof kind);
    const size_t bytes = record_bytes(kind);
    if (buffer_ && (used_ + bytes > size_ || (most_ && count_ >= most_))) complete();
    if (!buffer_) {
      ask();
      if (!buffer_ || size_ < bytes) {
        drop(1);
        at += bytes;
        if (buffer_) complete();
        continue;
      }
    }
    std::memcpy(buffer_.load() + used_, records.data() + at, bytes);
    used_ += bytes;
    ++count_;
    at += bytes;
  }
}

void Recorder::deliver(bool all) {
  if (in_delivery) return;
  std::lock_guard delivery(delivering_);
  in_delivery = true;
  std::vector<std::byte> records;
  {
    std::lock_guard lock(mutex_);
    records.swap(waiting_);
  }
  fill(records);
  if (all && buffer_) complete();
  in_delivery = false;
}

const char* Recorder::kept(const char* text) {
  std::lock_guard lock(texts_mutex_);
  const auto known = texts_.find(text);
  if (known != texts_.end()) return known->c_str();
  const size_t bytes = std::strlen(text);
  if (texts_.size() >= kMostTexts || text_bytes_ + bytes > kMostTextBytes)
    return "(one of too many names)";
  text_bytes_ += bytes;
  return texts_.emplace(text).first->c_str();
}

}  // namespace sluice::cupti
