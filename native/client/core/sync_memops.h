// SPDX-License-Identifier: Apache-2.0
// Allocations on which CUDA's synchronous functions wait even where they usually do not
// (CU_POINTER_ATTRIBUTE_SYNC_MEMOPS), by where they start. Copies and fills ask; while there is
// none, which is nearly always, that costs one load.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <set>

namespace sluice::client {

class SyncMemops {
 public:
  bool any() const { return any_.load(std::memory_order_relaxed); }

  bool has(uint64_t start) {
    std::lock_guard lock(mutex_);
    return starts_.contains(start);
  }

  void set(uint64_t start, bool on) {
    std::lock_guard lock(mutex_);
    if (on)
      starts_.insert(start);
    else
      starts_.erase(start);
    any_ = !starts_.empty();
  }

 private:
  std::atomic<bool> any_{false};
  std::mutex mutex_;
  std::set<uint64_t> starts_;
};

}  // namespace sluice::client
