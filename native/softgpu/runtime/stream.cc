// SPDX-License-Identifier: Apache-2.0
#include "softgpu/runtime/stream.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "channel/thread.h"

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
    start_thread();
  } else if (!busy_) {
    work_.notify_one();
  }
  return Point{shared_from_this(), sequence};
}

bool Stream::claim(Point& point) {
  std::lock_guard lock(mutex_);
  if (busy_ || !queue_.empty()) return false;
  busy_ = true;
  point = Point{shared_from_this(), ++submitted_};
  return true;
}

void Stream::finish() {
  std::lock_guard lock(mutex_);
  busy_ = false;
  completed_.fetch_add(1, std::memory_order_release);
  done_.notify_all();
  if (!queue_.empty()) work_.notify_one();
}

// Where there is no thread to be had, whoever waits for the work does it, or a later one is found.
void Stream::start_thread() {
  started_ = channel::start_detached("", [self = shared_from_this()] { self->run(); });
}

void Stream::close() {
  std::unique_lock lock(mutex_);
  closed_ = true;
  // Work that nobody will wait for any more.
  if (!started_ && !queue_.empty()) start_thread();
  while (!started_ && !busy_ && !queue_.empty()) execute_front(lock);
  work_.notify_one();
}

Point Stream::tail() {
  std::lock_guard lock(mutex_);
  return Point{shared_from_this(), submitted_};
}

void Stream::execute_front(std::unique_lock<std::mutex>& lock) {
  busy_ = true;
  Queued next = std::move(queue_.front());
  queue_.pop_front();
  lock.unlock();
  for (const Point& point : next.after) point.wait();
  next.after.clear();
  next.operation();
  next.operation = nullptr;
  lock.lock();
  busy_ = false;
  completed_.fetch_add(1, std::memory_order_release);
  done_.notify_all();
}

void Stream::wait(uint64_t sequence) {
  if (completed(sequence)) return;
  std::unique_lock lock(mutex_);
  while (!completed(sequence)) {
    if (!busy_ && !queue_.empty()) {
      execute_front(lock);
    } else {
      done_.wait(lock);
    }
  }
  // What comes after is the stream's own thread's again.
  if (!busy_ && !queue_.empty()) work_.notify_one();
}

// The thread holds the stream alive until it is closed and empty.
void Stream::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [&] { return (!busy_ && !queue_.empty()) || (closed_ && queue_.empty()); });
    if (queue_.empty()) return;
    execute_front(lock);
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
    using Microseconds = std::chrono::microseconds;
    auto pause = waited < std::chrono::milliseconds(5)    ? Microseconds(20)
                 : waited < std::chrono::milliseconds(50) ? Microseconds(100)
                 : waited < std::chrono::seconds(1)       ? Microseconds(1000)
                                                          : Microseconds(5000);
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
