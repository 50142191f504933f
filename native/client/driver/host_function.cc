// SPDX-License-Identifier: Apache-2.0
// Host functions and stream callbacks (rule 4): the stream writes a mark, a thread here runs the
// function, its answer lets the stream go on. Where no page is shared the stream is drained and the
// function runs on the calling thread.
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <set>
#include <vector>

#include "channel/futex.h"
#include "channel/thread.h"
#include "client/core/log.h"
#include "client/driver/graph.h"
#include "client/driver/wait.h"

using namespace sluice::client;
namespace wire = sluice::wire;

namespace {

struct Pending {
  Session* s;
  Device* device;
  uint32_t ready_mark, done_mark;
  uint64_t value;
  std::function<void(CUresult)> run;
  std::shared_ptr<Handshake> words;  // of a graph's node: no marks then

  // The words are the worker's, and it tells.
  bool remote() const { return words && !words->ready; }
  std::pair<uint32_t, uint64_t> told_as() const { return {device->place.node, words->address}; }
  bool ready() const {
    if (!words && ready_mark == wire::kNoMark) return true;
    return words ? words->ready->load(std::memory_order_acquire) != 0
                 : s->marks().reached(ready_mark, value);
  }
  void finish(CUresult status) {
    if (words && words->ready) words->ready->store(0, std::memory_order_relaxed);
    ManagedMemory::runs_host_function() = true;
    run(status);
    ManagedMemory::runs_host_function() = false;
    if (remote())
      s->tell(*device, wire::kSignalDone, wire::SignalDone{words->address});
    else if (words)
      words->done->store(1, std::memory_order_release);
    else if (done_mark != wire::kNoMark)
      s->marks().word(done_mark).store(value, std::memory_order_release);
    device->host_functions.fetch_sub(1);
    if (words) words->runs.fetch_sub(1, std::memory_order_release);
    if (words || ready_mark == wire::kNoMark) return;
    s->marks().give_back(ready_mark);
    s->marks().give_back(done_mark);
  }
};

// One thread runs all host functions, one after the other and in the order in which streams reach
// them, as CUDA's own does.
class Runner {
 public:
  void add(Pending p) {
    std::lock_guard lock(mutex_);
    pending_.push_back(std::move(p));
    start();
    wanted_.notify_one();
  }
  // Whether there is a thread to run functions on; says so where there is none.
  bool ready() {
    std::lock_guard lock(mutex_);
    return start();
  }

 private:
  bool start() {
    if (started_) return true;
    started_ = sluice::channel::start_detached(
        "sluice-callback", [this] { loop(); }, sluice::channel::Signals::kBlocked);
    if (!started_)
      log_once(LogLevel::kError,
               "no thread can be started for host functions: the limit of processes and threads "
               "is reached (ulimit -u, or pids.max of the cgroup), or memory is");
    return started_;
  }

  void loop() {
    uint64_t pause = 1'000;
    std::unique_lock lock(mutex_);
    for (;;) {
      wanted_.wait(lock, [this] { return !pending_.empty(); });
      auto it = pending_.begin();
      CUresult status = CUDA_SUCCESS;
      const Pending* remote = nullptr;
      for (; it != pending_.end(); ++it) {
        if (it->remote() ? told_.erase(it->told_as()) != 0 : it->ready()) break;
        if ((status = it->s->sticky()) != CUDA_SUCCESS) break;
        if (it->remote() && (!remote || it->device->place.node > asked_last_)) remote = &*it;
      }
      if (it == pending_.end() && remote) {
        // Of several nodes one after the other.
        asked_last_ = remote->device->place.node;
        Session* const session = remote->s;
        const Device& device = *remote->device;
        lock.unlock();
        const std::vector<uint64_t> told = ask(session, device);
        lock.lock();
        for (const uint64_t address : told) told_.emplace(device.place.node, address);
        continue;
      }
      if (it == pending_.end()) {
        lock.unlock();
        sluice::channel::sleep_ns(pause);
        pause = std::min<uint64_t>(pause * 2, 500'000);
        lock.lock();
        continue;
      }
      pause = 1'000;
      Pending p = std::move(*it);
      pending_.erase(it);
      lock.unlock();
      p.finish(status);
      p = {};
      lock.lock();
    }
  }

  // Waits a while in the worker for words of its own that runs of graphs have made ready.
  static std::vector<uint64_t> ask(Session* s, const Device& device) {
    std::vector<uint64_t> told(256);
    size_t got = 0;
    const CUresult e =
        s->exchange(wire::kSignalWait, wire::SignalWait{kWaitMilliseconds}, {},
                    std::as_writable_bytes(std::span(told)), &got, nullptr, device.context());
    told.resize(e == CUDA_SUCCESS ? std::min(got / sizeof(uint64_t), told.size()) : 0);
    return told;
  }
  static constexpr uint64_t kWaitMilliseconds = 100;

  std::mutex mutex_;
  std::condition_variable wanted_;
  std::deque<Pending> pending_;
  std::set<std::pair<uint32_t, uint64_t>> told_;  // ready, and the run not yet begun
  uint32_t asked_last_ = 0;
  bool started_ = false;
};

Runner& runner() {
  static Runner* r = new Runner();  // never destroyed: its thread may outlive main
  return *r;
}

// `function`: the application's, where CUDA lets a graph have it.
CUresult enqueue(CUstream handle, CUhostFn function, void* data,
                 std::function<void(CUresult)> run) {
  Session* s;
  Device* d;
  Stream* stream;
  if (const CUresult e = enter(&s, &d); e != CUDA_SUCCESS) return e;
  if (const CUresult e = stream_for_work(s, d, handle, &stream); e != CUDA_SUCCESS) return e;
  if (stream->capture)
    return function ? capture_host_function(s, stream, function, data) : s->captures.refuse(stream);
  if (!s->marks()) {
    // No shared page: the function runs when everything before it is done, and the stream gets
    // nothing new meanwhile.
    if (const CUresult e = synchronize_stream(s, stream); e != CUDA_SUCCESS) return e;
    run(CUDA_SUCCESS);
    return CUDA_SUCCESS;
  }
  if (!runner().ready()) return CUDA_ERROR_OUT_OF_MEMORY;
  Pending p{s, stream->device, s->marks().take(), s->marks().take(), 0, std::move(run), nullptr};
  if (p.ready_mark == wire::kNoMark || p.done_mark == wire::kNoMark) {
    s->marks().give_back(p.ready_mark);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  // One value for both words, larger than anything either has shown.
  p.value = std::max(s->marks().next(p.ready_mark), s->marks().next(p.done_mark));
  s->marks().raise(p.ready_mark, p.value);
  s->marks().raise(p.done_mark, p.value);
  stream->device->host_functions.fetch_add(1);
  const wire::HostFunction h{stream->wire_id, p.ready_mark, p.done_mark, p.value};
  const CUresult e = s->post(wire::kHostFunction, h, {}, stream, stream->device->context());
  if (e != CUDA_SUCCESS) return e;
  runner().add(std::move(p));
  return CUDA_SUCCESS;
}

}  // namespace

bool sluice::client::host_functions_run() { return runner().ready(); }

void sluice::client::expect_call(Session* s, Device* device, const HostCall& call) {
  device->host_functions.fetch_add(1);
  call.words->runs.fetch_add(1, std::memory_order_relaxed);
  runner().add({s, device, wire::kNoMark, wire::kNoMark, 0,
                [run = call.run](CUresult status) {
                  if (status == CUDA_SUCCESS) run();
                },
                call.words});
}

void sluice::client::run_soon(Session* s, Device* device, std::function<void()> run) {
  device->host_functions.fetch_add(1);
  runner().add({s, device, wire::kNoMark, wire::kNoMark, 0,
                [run = std::move(run)](CUresult) { run(); }, nullptr});
}

extern "C" {

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
  if (!function) return CUDA_ERROR_INVALID_VALUE;
  return enqueue(stream, function, data, [=](CUresult status) {
    if (status == CUDA_SUCCESS) function(data);  // as CUDA: not called after an error
  });
}

CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void* data,
                             unsigned int flags) {
  if (!callback || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return enqueue(stream, nullptr, nullptr,
                 [=](CUresult status) { callback(stream, status, data); });
}

}  // extern "C"
