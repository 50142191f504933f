// SPDX-License-Identifier: Apache-2.0
// The one thread on which the driver links and compiles a session's PTX (link.cc, code.cc).
//
// NVIDIA's compiler keeps state of its own for each thread. Where the calls of a link came from
// several living threads, which is what a worker's lanes are, it wrote through stale pointers at
// the next compilation: docs/decisions/0002-one-thread-compiles.md. Machine code is loaded by
// whichever lane asks.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>

#include "channel/thread.h"

namespace sluice::worker {

class Compiler {
 public:
  Compiler() = default;
  ~Compiler();
  Compiler(const Compiler&) = delete;

  // Runs `work` behind all that was asked for before, and waits for it. No context is current
  // there that the work has not made so. False: there is no thread to be had, and nothing was done.
  [[nodiscard]] bool run(std::function<void()> work);
  // Runs it there without being waited for, if anything ever ran there.
  void post(std::function<void()> work);
  bool started();

 private:
  void thread_main();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> asked_;
  uint64_t taken_ = 0, done_ = 0;  // how many were asked for, and have ended
  bool over_ = false;
  channel::Thread thread_;
};

}  // namespace sluice::worker
