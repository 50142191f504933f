// SPDX-License-Identifier: Apache-2.0
// Whose memory is on a GPU of which more is promised than it has: the policy, without I/O, clocks
// or threads (docs/oversubscription.md). The arbiter tells it what it sees of each tenant and what
// has moved, and does what step() says: who may take more memory, who is to go out, and who comes
// in.
//
// It promises that what tenants may have on a GPU never exceeds what there is, that nobody is moved
// unless somebody waits for the room, and that who has come in stays nine times as long as that
// took, unless he is idle. Bytes, on GPUs by their number; a tenant of several comes in to all of
// them or to none.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "arbiter/schedule.h"

namespace sluice::arbiter {

struct ResidencySettings {
  Nanoseconds idle = 10'000'000'000;  // who has had no work for so long gives way to anybody
  Nanoseconds again = 5'000'000'000;  // who could not be moved is left alone for so long
  Nanoseconds retry = 50'000'000;     // who found less room than was counted, while more is made
  Nanoseconds look = 50'000'000;      // while somebody waits
  Nanoseconds look_idle = 1'000'000'000;  // while nobody does: who works, and who does not
  Nanoseconds stay = 9;                   // times what it took to bring somebody in, and at most:
  Nanoseconds longest_stay = 60'000'000'000;
};

// One tenant's memory on one GPU.
struct MemoryUse {
  uint64_t taken = 0;    // on the GPU or out
  uint64_t asked = 0;    // and waits to take
  uint64_t staying = 0;  // of what is taken, what is known not to move
  uint64_t room = 0;     // how much it may take by now, asked for or not
};
template <typename T>
using ByGpu = std::map<uint32_t, T>;

// What the server says of a tenant.
struct MemoryClaim {
  uint32_t priority = 0, percent = 100;
  bool away = false;         // its whole grant is suspended, and wants nothing
  ByGpu<uint64_t> promised;  // its vGPUs' memory
  ByGpu<uint64_t> fixed;     // its contexts: besides, and never moved
};

struct MemoryFigures {
  uint64_t resident = 0, out = 0;
  uint64_t moves = 0;      // out and in, each
  Nanoseconds waited = 0;  // with work, for memory
  std::string why;         // what it waits for; empty: it does not
};

struct Move {
  uint32_t tenant;
  bool out;
  ByGpu<uint64_t> bytes;  // at least so many of those that can move; of one that comes in: all
};

class Residency {
 public:
  explicit Residency(const ResidencySettings& settings = {}) : settings_(settings) {}

  void set_idle(Nanoseconds idle) { settings_.idle = idle; }
  // How much there is for tenants, and how much of that is left free where more is promised, as
  // long as nobody has to wait for ever for it. A GPU of which nobody has said it has no bound.
  void set_gpu(uint32_t gpu, uint64_t bytes, uint64_t margin = 0);

  // One that is not there yet begins, on its GPUs.
  void claim(uint32_t tenant, const MemoryClaim& claim, Nanoseconds now);
  void remove(uint32_t tenant);
  // What the server finds: so much of it is out (nothing: it is in), and nothing is under way.
  void found(uint32_t tenant, const ByGpu<uint64_t>& out, Nanoseconds now);
  // The same after a move that it was told of. With a reason: it could not be moved; `missing`: so
  // much less was free on a GPU than what is counted says, and than it needed to come in.
  void moved(uint32_t tenant, const ByGpu<uint64_t>& out, const std::string& why_not,
             const ByGpu<uint64_t>& missing, Nanoseconds now);

  // So much host memory is there for it alone: it goes out sooner than one for which there is none.
  void keeps(uint32_t tenant, uint64_t bytes);

  // As its workers' pages are at a look. `waits`: a command of it waits for memory; `works`: it has
  // done or begun something since the last look.
  void see(uint32_t tenant, const ByGpu<MemoryUse>& uses, bool waits, bool works, Nanoseconds now);

  // After these, and at next_look(). What is to be moved.
  std::vector<Move> step(Nanoseconds now);
  Nanoseconds next_look() const { return next_look_; }

  // Whether the GPU's memory has to be asked for: more of it is promised than there is.
  bool bounded(uint32_t gpu) const { return bounded_.contains(gpu); }
  bool any_bounded() const { return !bounded_.empty(); }
  // Whether it may take all that it has asked for by now.
  bool granted(uint32_t tenant) const;
  MemoryFigures figures(uint32_t tenant, Nanoseconds now) const;

 private:
  enum class State : uint8_t { kIn, kGoingOut, kOut, kComingIn };
  struct Tenant {
    MemoryClaim claim;
    State state = State::kIn;
    bool waits = false;
    ByGpu<MemoryUse> uses;
    ByGpu<uint64_t> out;    // in host memory
    ByGpu<uint64_t> going;  // that it was told to move out
    ByGpu<uint64_t> stuck;  // what did not move when all was to
    uint64_t kept = 0;      // host memory that is there for it, beside what is out
    // Room that it needs besides, as was found when it was to come in: others take more than is
    // counted. Until then at least, where nobody can make it.
    ByGpu<uint64_t> besides;
    Nanoseconds besides_until = 0;
    bool retries = false;       // that room is being made, and nobody else comes in meanwhile
    Nanoseconds active_at = 0;  // when it last had work
    Nanoseconds waits_since = 0;
    Nanoseconds since = 0;       // up to when its waiting is counted
    Nanoseconds moving_for = 0;  // since when room is made for it; 0: none is
    Nanoseconds stay_began = 0, stays_until = 0, not_before = 0;
    MemoryFigures figures;
    bool moves() const { return state == State::kGoingOut || state == State::kComingIn; }
    bool is_out() const { return state == State::kOut; }
    bool stays(Nanoseconds now) const { return state == State::kIn && now < stays_until; }
    // It has work and lacks memory.
    bool lacks() const;
  };

  void count_promises();
  static uint64_t at(const ByGpu<uint64_t>& of, uint32_t gpu);
  static uint64_t wanted(const Tenant& t, uint32_t gpu);
  static uint64_t held(const Tenant& t, uint32_t gpu);
  // Of what is there; `ever`: also of what comes in.
  static uint64_t movable(const Tenant& t, uint32_t gpu, bool ever);
  static void count(Tenant& t, Nanoseconds now);
  bool idle(const Tenant& t, Nanoseconds now) const;
  int idle_class(const Tenant& t, Nanoseconds now) const;
  bool may_go(const Tenant& t, const Tenant& other, Nanoseconds now, bool ever) const;
  // What it lacks by GPU: where `soon`, what goes out already counts as free; `all`: what is left
  // free is there for it, too.
  ByGpu<uint64_t> shortage(const Tenant& t, bool soon, bool all) const;
  bool needs_all(uint32_t id, Nanoseconds now) const;
  // Who goes, and how much; empty: it does not suffice.
  std::map<uint32_t, ByGpu<uint64_t>> victims(uint32_t id, const ByGpu<uint64_t>& lacks,
                                              Nanoseconds now, bool ever) const;
  std::vector<uint32_t> in_order(Nanoseconds now) const;
  bool finds_room(uint32_t id, Nanoseconds now) const;
  bool needs_besides(Tenant& t, const ByGpu<uint64_t>& missing, Nanoseconds now);
  void serve(uint32_t id, ByGpu<bool>* closed, std::vector<Move>* moves, Nanoseconds now);
  void grant(Tenant& t);
  void stay(uint32_t id, Nanoseconds now);

  ResidencySettings settings_;
  ByGpu<uint64_t> gpus_, margins_;
  std::set<uint32_t> bounded_;
  std::map<uint32_t, Tenant> tenants_;
  std::string refusal_;  // why somebody could not be moved, for who waits for that
  Nanoseconds refused_until_ = 0;
  Nanoseconds next_look_ = kForever;
};

}  // namespace sluice::arbiter
