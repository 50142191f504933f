// SPDX-License-Identifier: Apache-2.0
// Whether a session has sent what no client of ours sends, and what that was. The first reason
// counts. Any thread may reject; the executor looks after every command and ends the session.
#pragma once

#include <atomic>
#include <mutex>
#include <string>

namespace sluice::worker {

class Rejection {
 public:
  void reject(const std::string& reason) {
    std::lock_guard lock(mutex_);
    if (rejected_) return;
    reason_ = reason;
    rejected_ = true;
  }
  bool rejected() const { return rejected_.load(std::memory_order_relaxed); }
  std::string reason() const {
    std::lock_guard lock(mutex_);
    return reason_;
  }

 private:
  std::atomic<bool> rejected_{false};
  mutable std::mutex mutex_;
  std::string reason_;
};

}  // namespace sluice::worker
