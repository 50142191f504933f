// SPDX-License-Identifier: Apache-2.0
// A GPU of simulated time whose tenants launch kernels of a length, each so long after the one
// before as their CPUs need: in turns by shares, or at once, when the driver slices between them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>

#include "arbiter/together.h"

namespace sluice::arbiter {

struct Launches {
  double gap_us = 10, kernel_us = 4;  // from one launch to the next, and of the GPU
  uint32_t percent = 10;
  bool fit = true;
  double active = 1;  // the part of the time in which it has work
  // Of what it says.
  double launches = 1, busy = 1, dry = 1;  // as many times as is true

  double wants() const { return std::min(1.0, kernel_us / gap_us); }   // of the GPU, while it works
  double alone() const { return 1000 / std::max(gap_us, kernel_us); }  // launches in a nanosecond
};

class SlicingGpu {
 public:
  explicit SlicingGpu(const TogetherSettings& settings = {}) : together(settings) {}

  // In steps of 10 ms.
  void run(Nanoseconds time) {
    for (const Nanoseconds end = now + time; now < end; now += kStep) step();
  }
  void step() {
    const bool at_once = together.is();
    double percents = 0, wanted = 0;
    for (auto& [id, t] : tenants)
      if (t.active > 0) percents += t.percent, wanted += t.active * t.wants();
    // The driver gives each that wants it as much, and takes some of it for each change.
    const double least = fair_part(1 - switching);
    for (auto& [id, t] : tenants) {
      Seen& s = seen_[id];
      s.tenant = id;
      s.percent = t.percent;
      s.fit = t.fit;
      const bool in = together.has(id);
      const double time = static_cast<double>(kStep);
      double part = 0;  // of what it does alone
      if (at_once && in) {
        part = std::min(t.active * t.wants(), wanted > 1 - switching ? least : 1.0) / t.wants();
        s.busy_ns += static_cast<uint64_t>(t.busy * t.active * time);
      } else if (!at_once && t.active > 0) {
        const double held = std::min(1.0, t.active) * t.percent / percents;
        part = held * (1 - handover);
        s.held += static_cast<Nanoseconds>(held * time);
        s.watched_ns += static_cast<uint64_t>(held * time);
        s.dry_ns += static_cast<uint64_t>(std::min(1.0, (1 - t.wants()) * t.dry) * held * time);
      }
      s.waits = t.active > 0 && !in;
      done[id] += part * t.alone() * time / 1e6;
      s.launches += static_cast<uint64_t>(part * t.alone() * time / 1e6 * t.launches);
    }
    std::vector<Seen> all;
    all.reserve(tenants.size());
    for (auto& [id, t] : tenants) all.push_back(seen_[id]);
    together.look(all, allowed, now);
    together_ns += together.is() ? kStep : 0;
    began += together.is() && !at_once;
  }

  Together together;
  std::map<uint32_t, Launches> tenants;
  std::map<uint32_t, double> done;  // launches of each
  bool allowed = true;
  double handover = 0.05, switching = 0.05;  // of the time, in turns and at once
  Nanoseconds now = 0, together_ns = 0;
  int began = 0;  // how often

 private:
  static constexpr Nanoseconds kStep = 10'000'000;

  // What each can have of so much: those that want less leave the rest to the others.
  double fair_part(double left) const {
    std::vector<double> wants;
    for (const auto& [id, t] : tenants)
      if (t.active > 0) wants.push_back(t.active * t.wants());
    std::ranges::sort(wants);
    for (size_t i = 0; i < wants.size(); ++i) {
      const double each = left / static_cast<double>(wants.size() - i);
      if (wants[i] >= each) return each;
      left -= wants[i];
    }
    return 1;
  }
  std::map<uint32_t, Seen> seen_;
};

}  // namespace sluice::arbiter
