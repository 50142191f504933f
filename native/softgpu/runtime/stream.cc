// SPDX-License-Identifier: Apache-2.0
#include "softgpu/runtime/stream.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace sluice::softgpu {
namespace {

std::atomic<uint64_t> next_stream_id{1};

thread_local bool inside_callback = false;

std::mutex& poll_mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}
std::condition_variable& poll_changed() {
  static auto* changed = new std::condition_variable;
  return *changed;
}
std::atomic<int> pollers{0};

}  // namespace

bool Point::done() const { return !stream || stream->completed(sequence); }

void Point::wait() const {
  if (stream) stream->wait(sequence);
}

Stream::Stream(Context& context, unsigned flags, int priority, bool legacy)
    : context_(context),
      flags_(flags),
      priority_(priority),
      legacy_(legacy),
      id_(next_stream_id.fetch_add(1)) {}

Stream::~Stream() = default;

Point Stream::push(Operation operation, std::vector<Point> after) {
  std::erase_if(after, [](const Point& point) { return point.done(); });
  std::lock_guard lock(mutex_);
  uint64_t sequence = ++submitted_;
  queue_.push_back({std::move(operation), std::move(after), sequence});
  if (!started_) {
    started_ = true;
    std::thread(thread_main, shared_from_this()).detach();
  } else {
    changed_.notify_all();
  }
  return Point{shared_from_this(), sequence};
}

bool Stream::claim(Point& point) {
  std::lock_guard lock(mutex_);
  if (completed_.load(std::memory_order_relaxed) != submitted_) return false;
  point = Point{shared_from_this(), ++submitted_};
  return true;
}

void Stream::finish() {
  std::lock_guard lock(mutex_);
  completed_.fetch_add(1, std::memory_order_release);
  changed_.notify_all();
}

void Stream::close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

Point Stream::tail() {
  std::lock_guard lock(mutex_);
  return Point{shared_from_this(), submitted_};
}

void Stream::wait(uint64_t sequence) {
  if (completed(sequence)) return;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return completed(sequence); });
}

// The thread holds the stream alive until it is closed and empty.
void Stream::thread_main(std::shared_ptr<Stream> self) { self->run(); }

void Stream::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] {
      if (queue_.empty()) return closed_;
      // A place before ours may have been claimed by a thread that works on it now.
      return completed_.load(std::memory_order_relaxed) + 1 == queue_.front().sequence;
    });
    if (queue_.empty()) return;
    Queued next = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    for (const Point& point : next.after) point.wait();
    next.after.clear();
    next.operation();
    next.operation = nullptr;
    lock.lock();
    completed_.fetch_add(1, std::memory_order_release);
    changed_.notify_all();
  }
}

std::shared_ptr<EventMark> Event::mark() const {
  std::lock_guard lock(mutex_);
  return mark_;
}

void Event::set_mark(std::shared_ptr<EventMark> mark) {
  std::lock_guard lock(mutex_);
  mark_ = std::move(mark);
}

void poll_until(const std::function<bool()>& ready, const std::function<bool()>& abandoned) {
  using Clock = std::chrono::steady_clock;
  for (int i = 0; i < 200; ++i) {
    if (ready() || abandoned()) return;
    if (i > 20) std::this_thread::yield();
  }
  auto start = Clock::now();
  pollers.fetch_add(1);
  for (;;) {
    if (ready() || abandoned()) break;
    // The writer may be another process that cannot wake us, so look often at first.
    auto waited = Clock::now() - start;
    auto pause = waited < std::chrono::milliseconds(5)   ? std::chrono::microseconds(20)
                 : waited < std::chrono::milliseconds(50) ? std::chrono::microseconds(100)
                                                          : std::chrono::microseconds(1000);
    std::unique_lock lock(poll_mutex());
    poll_changed().wait_for(lock, pause);
  }
  pollers.fetch_sub(1);
}

void notify_pollers() {
  if (pollers.load() == 0) return;
  std::lock_guard lock(poll_mutex());
  poll_changed().notify_all();
}

bool in_host_callback() { return inside_callback; }
void set_in_host_callback(bool inside) { inside_callback = inside; }

}  // namespace sluice::softgpu
