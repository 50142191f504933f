// SPDX-License-Identifier: Apache-2.0
#include "worker/compiler.h"

#include <utility>

namespace sluice::worker {

Compiler::~Compiler() {
  {
    std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

bool Compiler::run(std::function<void()> work) {
  std::unique_lock lock(mutex_);
  if (!thread_.started() && !thread_.start("compiler", [this] { thread_main(); })) return false;
  asked_.push_back(std::move(work));
  const uint64_t mine = ++taken_;
  changed_.notify_all();
  changed_.wait(lock, [&] { return done_ >= mine; });
  return true;
}

void Compiler::post(std::function<void()> work) {
  std::lock_guard lock(mutex_);
  if (!thread_.started()) return;
  asked_.push_back(std::move(work));
  ++taken_;
  changed_.notify_all();
}

bool Compiler::started() {
  std::lock_guard lock(mutex_);
  return thread_.started();
}

void Compiler::thread_main() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return over_ || !asked_.empty(); });
    if (asked_.empty()) return;
    std::function<void()> work = std::move(asked_.front());
    asked_.pop_front();
    lock.unlock();
    work();
    work = nullptr;  // what it held is let go of here
    lock.lock();
    ++done_;
    changed_.notify_all();
  }
}

}  // namespace sluice::worker
