// SPDX-License-Identifier: Apache-2.0
// Streams and events: queues of work that a thread per stream executes in order.
// A stream's thread starts with its first queued operation and sleeps while there is none; a thread
// that waits for the stream executes what has not been started yet, so that launch and synchronise
// need no change of thread. Order
// between streams is expressed by points ("stream S has finished its n-th operation"), which
// operations wait for; the legacy default stream is built from nothing else (see Context::submit).
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "abi/cuda_driver.h"

namespace sluice::softgpu {

class Stream;
class Context;
struct CapturedPoint;

// A place in a stream's work. Done once the stream has completed `sequence` operations.
struct Point {
  std::shared_ptr<Stream> stream;
  uint64_t sequence = 0;

  bool done() const;
  void wait() const;
};

class Stream : public std::enable_shared_from_this<Stream> {
 public:
  using Operation = std::function<void()>;

  Stream(Context& context, unsigned flags, int priority, bool legacy);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Appends work that starts when everything before it and all of `after` is done.
  Point push(Operation operation, std::vector<Point> after);
  // If nothing is queued, claims the next place for the calling thread, which must call finish().
  bool claim(Point& point);
  void finish();
  // Lets the thread end once the queue is empty. The stream takes no work afterwards.
  void close();

  Point tail();
  bool completed(uint64_t sequence) const {
    return completed_.load(std::memory_order_acquire) >= sequence;
  }
  void wait(uint64_t sequence);

  Context& context() const { return context_; }
  unsigned flags() const { return flags_; }
  int priority() const { return priority_; }
  bool legacy() const { return legacy_; }
  bool blocking() const { return (flags_ & 1u) == 0; }  // not CU_STREAM_NON_BLOCKING
  uint64_t id() const { return id_; }
  // Kept for who asks.
  void set_attribute(int id, const CUlaunchAttributeValue& value) {
    std::lock_guard lock(mutex_);
    attributes_[id] = value;
  }
  CUlaunchAttributeValue attribute(int id) {
    std::lock_guard lock(mutex_);
    const auto known = attributes_.find(id);
    return known == attributes_.end() ? CUlaunchAttributeValue{} : known->second;
  }
  void copy_attributes(Stream& from) {
    if (&from == this) return;
    std::scoped_lock lock(mutex_, from.mutex_);
    attributes_ = from.attributes_;
  }

 private:
  struct Queued {
    Operation operation;
    std::vector<Point> after;
    uint64_t sequence;
  };
  void run();
  void execute_front(std::unique_lock<std::mutex>& lock);
  void start_thread();

  Context& context_;
  const unsigned flags_;
  const int priority_;
  const bool legacy_;
  const uint64_t id_;
  std::mutex mutex_;
  std::condition_variable work_;  // for the stream's own thread
  std::condition_variable done_;  // for those who wait
  std::deque<Queued> queue_;
  bool busy_ = false;  // an operation is being executed, by whichever thread
  uint64_t submitted_ = 0;
  std::atomic<uint64_t> completed_{0};
  bool started_ = false;
  bool closed_ = false;
  std::map<int, CUlaunchAttributeValue> attributes_;
};

// What one cuEventRecord produced; an event points at the latest of them.
struct EventMark {
  Point point;
  std::atomic<int64_t> nanoseconds{-1};     // when the stream reached it, -1 before
  std::shared_ptr<CapturedPoint> captured;  // recorded in a capturing stream: no point then
};

class Event {
 public:
  Event(Context& context, unsigned flags) : context_(context), flags_(flags) {}
  Context& context() const { return context_; }
  unsigned flags() const { return flags_; }
  std::shared_ptr<EventMark> mark() const;
  void set_mark(std::shared_ptr<EventMark> mark);

 private:
  Context& context_;
  const unsigned flags_;
  mutable std::mutex mutex_;
  std::shared_ptr<EventMark> mark_;
};

// Polls `ready` until it holds or `abandoned` does, without burning a core for long.
void poll_until(const std::function<bool()>& ready, const std::function<bool()>& abandoned);
// Wakes pollers in this process: memory that they watch has been written.
void notify_pollers();

// True on a thread that is executing a host callback, where CUDA calls are not permitted.
bool in_host_callback();
void set_in_host_callback(bool inside);

}  // namespace sluice::softgpu
