// SPDX-License-Identifier: Apache-2.0
#include "softgpu/memory/range_map.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace sluice::softgpu {

RangeMap& RangeMap::instance() {
  // Never destroyed: stream threads may still run when the process's destructors do.
  static RangeMap* map = new RangeMap;
  return *map;
}

void RangeMap::erase_locked(uintptr_t low, uintptr_t high) {
  auto it = ranges_.upper_bound(low);
  if (it != ranges_.begin()) --it;
  while (it != ranges_.end() && it->second.low < high) {
    Range old = it->second;
    if (old.high <= low) {
      ++it;
      continue;
    }
    it = ranges_.erase(it);
    if (old.low < low) ranges_[old.low] = Range{old.low, low, old.readers, old.writers};
    if (old.high > high) ranges_[high] = Range{high, old.high, old.readers, old.writers};
  }
}

void RangeMap::grant(uintptr_t low, size_t size, uint64_t readers, uint64_t writers) {
  if (size == 0) return;
  std::lock_guard lock(mutex_);
  erase_locked(low, low + size);
  ranges_[low] = Range{low, low + size, readers, writers};
  snapshot_.reset();
  generation_.fetch_add(1);
}

void RangeMap::retract(uintptr_t low, size_t size) {
  if (size == 0) return;
  std::vector<std::shared_ptr<Reader>> waiting;
  uint64_t wanted;
  {
    std::lock_guard lock(mutex_);
    erase_locked(low, low + size);
    snapshot_.reset();
    wanted = generation_.fetch_add(1) + 1;
    std::erase_if(readers_, [](const auto& reader) { return reader.expired(); });
    for (const auto& reader : readers_) {
      if (auto held = reader.lock()) waiting.push_back(std::move(held));
    }
  }
  for (const auto& reader : waiting) {
    for (int spins = 0;; ++spins) {
      uint64_t seen = reader->seen.load(std::memory_order_seq_cst);
      if (seen == 0 || seen >= wanted) break;
      if (spins < 64) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    }
  }
}

RangeMap::Snapshot RangeMap::snapshot() {
  std::lock_guard lock(mutex_);
  if (!snapshot_) {
    auto fresh = std::make_shared<std::vector<Range>>();
    fresh->reserve(ranges_.size());
    for (const auto& [low, range] : ranges_) {
      Range* last = fresh->empty() ? nullptr : &fresh->back();
      if (last && last->high == low && last->readers == range.readers &&
          last->writers == range.writers) {
        last->high = range.high;  // neighbours are one range to an access that straddles them
      } else {
        fresh->push_back(range);
      }
    }
    snapshot_ = std::move(fresh);
  }
  return snapshot_;
}

std::shared_ptr<RangeMap::Reader> RangeMap::add_reader() {
  auto reader = std::make_shared<Reader>();
  std::lock_guard lock(mutex_);
  readers_.push_back(reader);
  return reader;
}

MemoryView::MemoryView() : map_(RangeMap::instance()) {
  thread_local const std::shared_ptr<RangeMap::Reader> own = map_.add_reader();
  reader_ = own;
}

void MemoryView::enter_for_all() {
  enter(0);
  device_bit_ = ~0ull;
}

void MemoryView::enter(int device) {
  device_bit_ = 1ull << device;
  refresh();
}

void MemoryView::leave() { reader_->seen.store(0, std::memory_order_seq_cst); }

void MemoryView::forget() {
  read_low_ = write_low_ = 0;
  read_span_ = write_span_ = 0;
  snapshot_.reset();
}

void MemoryView::refresh() {
  forget();
  // Announce first, look again after: a retract in between either sees us or we see it.
  do {
    generation_ = map_.generation();
    reader_->seen.store(generation_, std::memory_order_seq_cst);
  } while (map_.generation() != generation_);
}

bool MemoryView::find(uintptr_t address, size_t size, bool write) {
  if (!snapshot_) snapshot_ = map_.snapshot();
  const std::vector<Range>& ranges = *snapshot_;
  auto after = std::upper_bound(ranges.begin(), ranges.end(), address,
                                [](uintptr_t a, const Range& r) { return a < r.low; });
  if (after == ranges.begin()) return false;
  const Range& range = *--after;
  if (address >= range.high || range.high - address < size) return false;
  if (((write ? range.writers : range.readers) & device_bit_) == 0) return false;
  if (write) {
    write_low_ = range.low;
    write_span_ = range.high - range.low;
  } else {
    read_low_ = range.low;
    read_span_ = range.high - range.low;
  }
  return true;
}

}  // namespace sluice::softgpu
