// SPDX-License-Identifier: Apache-2.0
// A value for every number of [begin, end), kept as runs of equal values. What it costs is in the
// number of runs, not in the numbers. Used for pages; knows nothing of them.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>

namespace sluice::client {

template <class T>
class IntervalMap {
 public:
  struct Run {
    uint64_t from, to;
    T value;
  };

  IntervalMap(uint64_t begin, uint64_t end, T initial) : begin_(begin), end_(end) {
    runs_.emplace(begin, initial);
  }

  uint64_t begin() const { return begin_; }
  uint64_t end() const { return end_; }
  size_t run_count() const { return runs_.size(); }

  // The run that contains `at`, which lies inside.
  Run at(uint64_t at) const {
    const auto it = std::prev(runs_.upper_bound(at));
    return run(it);
  }

  // Calls f(Run) for each run of [from, to), cut to it, in order. `f` must not change the map.
  template <class F>
  void for_each(uint64_t from, uint64_t to, F f) const {
    if (from >= to) return;
    for (auto it = std::prev(runs_.upper_bound(from)); it != runs_.end() && it->first < to; ++it) {
      Run r = run(it);
      if (r.from < from) r.from = from;
      if (r.to > to) r.to = to;
      f(r);
    }
  }

  void set(uint64_t from, uint64_t to, T value) {
    if (from >= to) return;
    split(from);
    split(to);
    auto it = runs_.erase(runs_.lower_bound(from), runs_.lower_bound(to));
    it = runs_.emplace_hint(it, from, value);
    if (const auto next = std::next(it); next != runs_.end() && next->second == value)
      runs_.erase(next);
    if (it != runs_.begin() && std::prev(it)->second == value) runs_.erase(it);
  }

 private:
  using Iterator = typename std::map<uint64_t, T>::const_iterator;

  Run run(Iterator it) const {
    const auto next = std::next(it);
    return {it->first, next == runs_.end() ? end_ : next->first, it->second};
  }
  // A run begins at `at`, unless that is an end.
  void split(uint64_t at) {
    if (at <= begin_ || at >= end_) return;
    const auto it = std::prev(runs_.upper_bound(at));
    if (it->first != at) runs_.emplace(at, it->second);
  }

  uint64_t begin_, end_;
  std::map<uint64_t, T> runs_;
};

}  // namespace sluice::client
