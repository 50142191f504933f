// SPDX-License-Identifier: Apache-2.0
// How many collectives the session has issued on each communicator (docs/decisions/0006), shown to
// the arbiter on the page of its turns: ranks of one job end a turn where all have issued as many.
// NCCL's handlers (library/nccl.cc) say what communicators there are and what is issued on them;
// graphs hold what was captured into them and count it with each launch. A session without
// communicators has no part in this.
//
// Every rank of a communicator finds the same name for it without asking. What two ranks send one
// another is theirs alone, so each pair has a name for each direction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "arbiter/turn_page.h"

namespace sluice::worker {

class TurnKeeper;

class Collectives {
 public:
  // What is counted: a communicator's, by the session's id for it, and the name under which all
  // who take part count. No communicator: nothing is.
  struct One {
    uint64_t communicator = 0;
    uint64_t name = 0;
    auto operator<=>(const One&) const = default;
  };
  // With how often each.
  using Many = std::vector<std::pair<One, uint64_t>>;

  // Without one nothing is shown.
  void show(TurnKeeper* turns) { turns_ = turns; }

  // Names of what is made: by unique ids; by splitting, in which all of the parent's ranks take
  // part, those of no color too; by shrinking, in which those that are left do. 0 has no name, nor
  // has what is made of it.
  static uint64_t named(std::span<const std::byte> unique_ids);
  uint64_t split(uint64_t parent, int color);
  uint64_t shrunk(uint64_t parent, std::vector<int> excluded);

  // A rank here: -1 where it is not known, and what it sends or receives is not counted.
  void made(uint64_t communicator, uint64_t name, int rank);
  void ended(uint64_t communicator);

  One collective(uint64_t communicator);
  One sent(uint64_t communicator, int to);
  One received(uint64_t communicator, int from);

  // They have passed the gate and are about to be given to NCCL or the driver.
  void issue(const One& one, uint64_t times = 1);
  void issue(const Many& all);
  // They were refused there.
  void take_back(const Many& all);

  // Adds to what a graph holds. Of one with very many communicators not all.
  static void add(Many* to, const One& one, uint64_t times = 1);
  static void add(Many* to, const Many& all);

 private:
  static constexpr size_t kMost = 1 << 16;  // communicators and pairs: a client may make any number
  static constexpr size_t kNowhere = ~size_t{0};

  struct Communicator {
    uint64_t name = 0;
    int rank = -1;
    uint64_t splits = 0;
    std::map<uint64_t, uint64_t> shrunk;  // how often, by what was left out
  };
  struct Count {
    uint64_t issued = 0;
    uint64_t used = 0;  // when it was counted last
    size_t place = kNowhere;
  };
  One between(uint64_t communicator, int peer, bool sends);
  void add_to(const One& one, uint64_t times, bool back);
  Count* find(const One& one);
  void show(const One& one, Count& count);
  void hide(Count& count);

  TurnKeeper* turns_ = nullptr;
  std::mutex mutex_;  // what follows, and places of the page
  std::map<uint64_t, Communicator> communicators_;
  std::map<One, Count> counts_;
  std::map<size_t, One> places_;
  uint64_t now_ = 0;
};

}  // namespace sluice::worker
