// SPDX-License-Identifier: Apache-2.0
#include "client/cupti/activities.h"

#include <unistd.h>

#include <chrono>
#include <cstdlib>

#include "client/cupti/calls.h"
#include "client/cupti/node.h"
#include "client/cupti/recorder.h"
#include "client/cupti/session.h"

namespace sluice::cupti {

namespace {

constexpr uint64_t kOfNode =
    bit(kMemcpy) | bit(kMemset) | bit(kKernel) | bit(kConcurrentKernel) | bit(kMemcpyPeer);
constexpr uint64_t kOfCalls = bit(kRuntime) | bit(kDriver) | bit(kExternalCorrelation);
// Overhead of CUPTI's own in the program: there is none to tell of.
constexpr uint64_t kTaken = kOfNode | kOfCalls | bit(kOverhead);

// How often the node is asked for what it has meanwhile.
constexpr std::chrono::milliseconds kBetween(200);

}  // namespace

Activities& Activities::get() {
  static Activities* one = new Activities;
  return *one;
}

// Under the mutex.
int Activities::apply(uint64_t wanted) {
  const auto* s = session();
  if (!s) {
    say_once("a profiler was started without Sluice's libcuda.so.1: nothing is recorded");
    return kNotInitialized;
  }
  const uint64_t node = wanted & kOfNode;
  if (node && !s->is_open() && s->open() != CUDA_SUCCESS) return kNotInitialized;
  int result = kSuccess;
  std::string why;
  if (node != (wanted_ & kOfNode) && !set_nodes(node, &why) && node) {
    say_once(why.c_str());
    if (node & ~wanted_) result = kNotSupported;  // less is always to be had
    wanted &= ~kOfNode | (wanted_ & kOfNode);
    set_nodes(wanted & kOfNode, &why);
  }
  wanted_ = wanted;
  node_records_ = (wanted & kOfNode) != 0;
  Calls::get().record(wanted & kOfCalls, node_records_);
  std::lock_guard lock(thread_mutex_);
  if (node_records_ && !thread_.joinable()) {
    // Before the session's own end, which was registered when it opened.
    static const bool registered = std::atexit([] { get().stop(); }) == 0;
    if (registered) {
      stops_ = false;
      thread_ = std::thread([this] { run(); });
    }
  }
  return result;
}

int Activities::enable(uint32_t kind) {
  if (kind >= 64) return kInvalidKind;
  const uint64_t one = uint64_t{1} << kind;
  if (!(one & kTaken)) {
    say_once(
        "a profiler asked for records that Sluice does not make: it makes those of kernels, "
        "copies, "
        "fills, calls and external correlation");
    return kNotSupported;
  }
  std::lock_guard lock(mutex_);
  return apply(wanted_ | one);
}

int Activities::disable(uint32_t kind) {
  if (kind >= 64) return kInvalidKind;
  // What has been recorded by now is still the profiler's.
  std::lock_guard lock(mutex_);
  const uint64_t one = uint64_t{1} << kind;
  if (!(wanted_ & one)) return kSuccess;
  if (one & kOfNode) fetch_nodes(false);
  return apply(wanted_ & ~one);
}

void Activities::disable_all() {
  std::lock_guard lock(mutex_);
  if (wanted_) apply(0);
}

int Activities::flush(bool forced) {
  if (!Recorder::get().has_buffers()) return kInvalidOperation;
  fetch_nodes(forced);
  Recorder::get().deliver(true);
  return kSuccess;
}

void Activities::run() {
  const pid_t here = getpid();
  auto last = std::chrono::steady_clock::now();
  std::unique_lock lock(thread_mutex_);
  while (!stops_) {
    const uint32_t period = period_ms_.load();
    changed_.wait_for(lock,
                      period ? std::min(kBetween, std::chrono::milliseconds(period)) : kBetween);
    if (stops_ || getpid() != here) return;
    lock.unlock();
    if (node_records_) fetch_nodes(false);
    const auto now = std::chrono::steady_clock::now();
    const bool due = period && now - last >= std::chrono::milliseconds(period);
    if (due) last = now;
    if (due || Recorder::get().much_waits()) Recorder::get().deliver(due);
    lock.lock();
  }
}

void Activities::stop() {
  {
    std::lock_guard lock(thread_mutex_);
    if (!thread_.joinable()) return;
    stops_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

}  // namespace sluice::cupti
