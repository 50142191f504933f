// SPDX-License-Identifier: Apache-2.0
// Whose turn it is on each GPU of a node: the arbiter's policy, without I/O, clocks or threads. Who
// calls it says what happened and when, and is told which turns begin and which are called back.
//
// Deficit round robin, kept as one number for each tenant: `paid`, the time that it had the GPU
// divided by its share. Whoever has paid least is next, for its share of a period; so each has one
// turn in a period, what a turn took too long is missing from the next ones, and who wakes after a
// while goes first. Being one number, it also orders a tenant of several GPUs (a gang), which has
// its turn on all of them or on none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <vector>

#include "wire/protocol.h"

namespace sluice::arbiter {

using Nanoseconds = int64_t;  // of a monotonic clock, or a span of it
constexpr Nanoseconds kForever = std::numeric_limits<Nanoseconds>::max();
constexpr uint32_t kMaxGpus = wire::kMaxTurnGpus;  // bits of Tenancy::gpus

struct ScheduleSettings {
  Nanoseconds period = 50'000'000;  // in which each who wants has a turn; 10 to 200 ms
  // What beginning and draining take, some 0.2 ms, is the tenant's own: of a turn, a tenth.
  Nanoseconds least_turn = 2'000'000;
  Nanoseconds grace = 20'000'000;  // from the end of a turn until the next one begins beside it
  double credit_periods = 1;       // what one who slept is ahead of the others, at most
  double debt_periods = 20;        // what one who ran too long is behind them, at most
};

// What a grant is to the GPUs of a node. Sessions of one job are one tenant.
struct Tenancy {
  uint64_t gpus = 0;       // bit i: it has a share of GPU i
  uint32_t percent = 100;  // of each of them, 1 to 100
  bool capped = false;     // never more than that, even where nobody else wants it
};

struct Turn {
  uint32_t tenant;
  Nanoseconds until;  // kForever: until somebody else wants one of its GPUs
};

struct Decision {
  std::vector<Turn> begin;
  std::vector<Turn> limit;          // turns that had no end and have one now
  std::vector<uint32_t> call_back;  // turns that are over: who has them drains and gives back
  Nanoseconds look_again = kForever;
};

struct TenantFigures {
  Nanoseconds held = 0;    // its turns, those that ran over included
  Nanoseconds waited = 0;  // wanting, without a turn
  uint64_t turns = 0;
  Nanoseconds overdue = 0;   // since its last turn was over, while it has not given that back
  Nanoseconds together = 0;  // of those held: at once with others
};

class Schedule {
 public:
  explicit Schedule(const ScheduleSettings& settings) : settings_(settings) {}

  // False: no GPU, an unknown one, a share out of bounds, or a tenant that is there already.
  bool add(uint32_t tenant, const Tenancy& tenancy, Nanoseconds now);
  bool change(uint32_t tenant, uint32_t percent, bool capped, Nanoseconds now);
  // Of which GPUs it has a share from now on.
  bool move(uint32_t tenant, uint64_t gpus, Nanoseconds now);
  // It is gone, turn or not: its process has ended.
  void remove(uint32_t tenant, Nanoseconds now);

  // It has work and no turn. Said again, it changes nothing.
  void wants(uint32_t tenant, Nanoseconds now);
  // It has drained; `more`: and still has work. Without a turn it waits no longer.
  void gives_back(uint32_t tenant, bool more, Nanoseconds now);

  // So much of it ran without a turn.
  void charge(uint32_t tenant, Nanoseconds time);

  // These run at once from now on, whether they have work or not: nobody is called back, owes
  // anything for it or waits. Who meets them has no turn meanwhile.
  void begin_together(const std::vector<uint32_t>& tenants, Nanoseconds now);
  // They do so no more, and are called back by the next step.
  void end_together(const std::vector<uint32_t>& tenants, Nanoseconds now);

  // It has no turn from now on, until it may go on; one that it has is over soon.
  void hold(uint32_t tenant, Nanoseconds now);
  void go_on(uint32_t tenant);
  bool is_held(uint32_t tenant) const;

  // From the next turns on.
  void set_period(Nanoseconds period) { settings_.period = period; }

  // After any of these, and at `look_again`.
  Decision step(Nanoseconds now);

  bool holds(uint32_t tenant) const;
  bool waits(uint32_t tenant) const;
  bool runs_together(uint32_t tenant) const;
  // Whether nobody else has a share of its GPUs, so that it need not be disturbed.
  bool alone(uint32_t tenant) const;
  uint32_t percent(uint32_t tenant) const;  // its share; 100 of one that is not there
  Tenancy tenancy(uint32_t tenant) const;   // no GPUs of one that is not there
  Nanoseconds grace() const { return settings_.grace; }
  TenantFigures figures(uint32_t tenant, Nanoseconds now) const;

 private:
  enum class State : uint8_t {
    kIdle,
    kWaiting,
    kHolding,
    kTogether,    // at once with others
    kCalledBack,  // its turn is over, it drains
    kOverdue,     // and has not within the grace: others run beside it
  };
  struct Tenant {
    Tenancy tenancy;
    State state = State::kIdle;
    bool urgent = false;               // woke with much of its share unused
    double paid = 0;                   // nanoseconds of a whole GPU; by which turns are given
    double ahead = 0;                  // while idle: what it had paid more than the others
    double allowance = 0;              // of one that is capped: what it may still use, nanoseconds
    Nanoseconds since = 0;             // up to when its time was counted
    Nanoseconds began = 0, until = 0;  // its turn, or when it fell idle
    bool limited = false;              // it knows the end of its turn
    bool held = false;
    TenantFigures figures;
    double share() const { return tenancy.percent / 100.0; }
    bool has_turn() const { return state >= State::kHolding; }
    bool keeps_others_out() const { return has_turn() && state != State::kOverdue; }
    bool active() const { return state != State::kIdle; }
    bool meets(const Tenant& other) const {
      return this != &other && (tenancy.gpus & other.tenancy.gpus);
    }
  };
  void count(Tenant& tenant, Nanoseconds now) const;
  void count_all(Nanoseconds now);
  double least_paid_beside(const Tenant& tenant) const;
  double most_allowance(const Tenant& tenant) const;
  double least_allowance(const Tenant& tenant) const;
  bool may_run(const Tenant& tenant) const;
  bool wanted_by_others(const Tenant& tenant) const;
  bool wanted_urgently(const Tenant& tenant) const;
  Nanoseconds turn(const Tenant& tenant) const;
  void call_back(Nanoseconds now, Decision* decision);
  void begin(Nanoseconds now, Decision* decision);
  Nanoseconds next_look(Nanoseconds now) const;

  ScheduleSettings settings_;
  std::map<uint32_t, Tenant> tenants_;
  std::vector<uint32_t> ended_together_;  // since the last step
};

}  // namespace sluice::arbiter
