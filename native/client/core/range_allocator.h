// SPDX-License-Identifier: Apache-2.0
// Best-fit allocation of address ranges: the bookkeeping under device windows, slabs and the arena.
// Touches no memory, takes no lock.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <utility>

namespace sluice::client {

class RangeAllocator {
 public:
  static constexpr uint64_t kNone = ~0ull;

  void add(uint64_t start, uint64_t bytes) { insert_free(start, bytes); }

  // The start of a range of `bytes`, kNone when no free range is large enough. `bytes` sets the
  // alignment of all starts by always being a multiple of the allocator's unit.
  uint64_t allocate(uint64_t bytes) {
    const auto it = by_size_.lower_bound({bytes, 0});
    if (it == by_size_.end()) return kNone;
    const auto [size, start] = *it;
    by_size_.erase(it);
    by_start_.erase(start);
    if (size > bytes) insert_free(start + bytes, size - bytes);
    used_.emplace(start, bytes);
    return start;
  }

  // The same at a multiple of `alignment`, a power of two.
  uint64_t allocate(uint64_t bytes, uint64_t alignment) {
    for (auto it = by_size_.lower_bound({bytes, 0}); it != by_size_.end(); ++it) {
      const auto [size, start] = *it;
      const uint64_t at = (start + alignment - 1) & ~(alignment - 1);
      if (at - start <= size - bytes && allocate_at(at, bytes)) return at;
    }
    return kNone;
  }

  // Exactly this range; false when not all of it is free.
  bool allocate_at(uint64_t start, uint64_t bytes) {
    auto it = by_start_.upper_bound(start);
    if (it == by_start_.begin()) return false;
    const auto [from, size] = *--it;
    if (start - from >= size || bytes > size - (start - from)) return false;
    by_size_.erase({size, from});
    by_start_.erase(it);
    if (start > from) insert_free(from, start - from);
    if (from + size > start + bytes) insert_free(start + bytes, from + size - start - bytes);
    used_.emplace(start, bytes);
    return true;
  }

  // The bytes given back, 0 when nothing starts there.
  uint64_t release(uint64_t start) {
    const auto it = used_.find(start);
    if (it == used_.end()) return 0;
    const uint64_t bytes = it->second;
    used_.erase(it);
    insert_free(start, bytes);
    return bytes;
  }

  // The allocation that contains `address`.
  bool find(uint64_t address, uint64_t* start, uint64_t* bytes) const {
    auto it = used_.upper_bound(address);
    if (it == used_.begin()) return false;
    --it;
    if (address - it->first >= it->second) return false;
    *start = it->first;
    *bytes = it->second;
    return true;
  }

  // The allocation with the lowest address.
  bool first(uint64_t* start, uint64_t* bytes) const {
    if (used_.empty()) return false;
    *start = used_.begin()->first;
    *bytes = used_.begin()->second;
    return true;
  }
  size_t used_count() const { return used_.size(); }

 private:
  void insert_free(uint64_t start, uint64_t bytes) {
    auto next = by_start_.lower_bound(start);
    if (next != by_start_.end() && next->first == start + bytes) {
      bytes += next->second;
      by_size_.erase({next->second, next->first});
      next = by_start_.erase(next);
    }
    if (next != by_start_.begin()) {
      auto before = std::prev(next);
      if (before->first + before->second == start) {
        start = before->first;
        bytes += before->second;
        by_size_.erase({before->second, before->first});
        by_start_.erase(before);
      }
    }
    by_start_.emplace(start, bytes);
    by_size_.emplace(bytes, start);
  }

  std::map<uint64_t, uint64_t> by_start_;
  std::set<std::pair<uint64_t, uint64_t>> by_size_;
  std::map<uint64_t, uint64_t> used_;
};

}  // namespace sluice::client
