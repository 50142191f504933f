// SPDX-License-Identifier: Apache-2.0
// The client's side of the completion page: words that the worker's streams write when they get
// somewhere. Hands words out and takes them back; a word's values only ever grow, also across
// owners, so that a late write of an old owner cannot look like a new one's.
#pragma once

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

#include "channel/slot.h"
#include "wire/bodies/commands.h"

namespace sluice::client {

class Marks {
 public:
  // `page` is nullptr where no memory is shared: then no marks are to be had.
  void open(std::atomic<uint64_t>* page) {
    page_ = page;
    values_.assign(page ? channel::kMarkCount : 0, 0);
    for (uint32_t i = static_cast<uint32_t>(values_.size()); i > 0; --i) free_.push_back(i - 1);
  }
  // Events leave some for those who cannot do without: staging pieces and host functions.
  uint32_t take(bool can_do_without = false) {
    std::lock_guard lock(mutex_);
    if (free_.size() <= kKept) collect();
    if (free_.size() <= (can_do_without ? kKept : 0)) return wire::kNoMark;
    const uint32_t mark = free_.back();
    free_.pop_back();
    return mark;
  }
  // A mark whose last write is still under way somewhere is not handed out before it has landed: a
  // late write of a smaller value would hide the new owner's.
  void give_back(uint32_t mark) {
    if (mark == wire::kNoMark) return;
    std::lock_guard lock(mutex_);
    (reached(mark, values_[mark]) ? free_ : pending_).push_back(mark);
  }
  // The next value of a mark that the caller owns.
  uint64_t next(uint32_t mark) { return ++values_[mark]; }
  void raise(uint32_t mark, uint64_t value) { values_[mark] = std::max(values_[mark], value); }
  bool reached(uint32_t mark, uint64_t value) const {
    return page_[mark].load(std::memory_order_acquire) >= value;
  }
  std::atomic<uint64_t>& word(uint32_t mark) { return page_[mark]; }
  explicit operator bool() const { return page_ != nullptr; }

 private:
  static constexpr size_t kKept = 256;

  void collect() {
    std::vector<uint32_t> still;
    for (uint32_t mark : pending_) (reached(mark, values_[mark]) ? free_ : still).push_back(mark);
    pending_ = std::move(still);
  }

  std::atomic<uint64_t>* page_ = nullptr;
  std::mutex mutex_;
  std::vector<uint32_t> free_, pending_;
  std::vector<uint64_t> values_;
};

}  // namespace sluice::client
