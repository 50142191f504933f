// SPDX-License-Identifier: Apache-2.0
// A node of simulated time: programs that launch kernels of a length, GPUs that run one program's
// kernels at a time, and a schedule between them.
#pragma once

#include <map>
#include <random>
#include <vector>

#include "arbiter/schedule.h"

namespace sluice::test {

using arbiter::kForever;
using arbiter::Nanoseconds;

constexpr Nanoseconds kMicrosecond = 1'000, kMillisecond = 1'000'000, kSecond = 1'000'000'000;

struct Program {
  arbiter::Tenancy tenancy;
  Nanoseconds kernel = 100 * kMicrosecond;
  // 0: launches without end. Otherwise as much at a time, with pauses between, random ones of this
  // mean where `random_pauses`.
  Nanoseconds work = 0, pause = 0;
  bool random_pauses = false;
  Nanoseconds first = 0;                // when it begins
  std::map<int, Nanoseconds> long_one;  // kernels, by number, that are longer
};

class Node {
 public:
  explicit Node(const arbiter::ScheduleSettings& settings = {}) : schedule(settings) {}

  uint32_t add(const Program& program);
  void remove(uint32_t tenant);
  void run(Nanoseconds until);

  // Of the time since mark().
  double part(uint32_t tenant) const;  // of a GPU, in percent
  double busy() const;                 // of one GPU, in percent
  void mark();
  const std::vector<Nanoseconds>& answers(uint32_t t) const { return programs_.at(t).answers; }

  arbiter::Schedule schedule;
  Nanoseconds now = 0;
  size_t most_at_once = 0;  // turns on one GPU

 private:
  struct Running {
    Program program;
    Nanoseconds left = 0;  // of the work of this time
    Nanoseconds asked = 0;
    Nanoseconds ends = kForever;   // of its kernel
    Nanoseconds wakes = kForever;  // when it has work again
    Nanoseconds until = 0;         // of its turn
    bool called_back = false;
    int launched = 0;
    Nanoseconds done = 0, marked = 0;
    std::vector<Nanoseconds> answers;  // from work to its end
  };
  void launch(Running& r);
  bool ended(uint32_t tenant, Running& r);
  void look();

  std::map<uint32_t, Running> programs_;
  std::mt19937 random_{7};
  uint32_t next_ = 1;
  Nanoseconds marked_ = 0;
};

}  // namespace sluice::test
