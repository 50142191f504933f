// SPDX-License-Identifier: Apache-2.0
// Whether the tenants of one GPU run at once instead of in turns: the policy, without I/O, clocks
// or threads (docs/decisions/0007). The arbiter calls it at each look with what it sees of each
// tenant, and does what is() says then.
//
// It promises that nobody has less than his share for it: all are let run at once on trial, and
// only as long as each gets on as fast as his share of his own turns would have him. What a tenant
// says of itself counts for its own pace alone, so one that lies can end it and nothing more.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "arbiter/schedule.h"

namespace sluice::arbiter {

// One tenant of the GPU at a look. Sums grow; what its workers say may be anything.
struct Seen {
  uint32_t tenant = 0;
  uint32_t percent = 100;
  uint32_t members = 1;
  bool fit = true;  // not capped, and has this GPU alone
  bool waits = false, holds = false;
  Nanoseconds held = 0;                 // its turns; the arbiter's own figure
  uint64_t launches = 0;                // its workers', as all of these
  uint64_t busy_ns = 0;                 // that it had work under way
  uint64_t watched_ns = 0, dry_ns = 0;  // of its turns, and for how much of that the GPU ran dry
};

struct TogetherSettings {
  Nanoseconds measure = 600'000'000;    // in turns, before each trial
  Nanoseconds window = 300'000'000;     // that one measurement takes, and
  Nanoseconds least_held = 10'000'000;  // of turns in it
  Nanoseconds recent = 2'000'000'000;   // who worked since counts as one who works
  // How old what was measured may be: of one who works, and of one who rests.
  Nanoseconds fresh = 5'000'000'000, known = 90'000'000'000;
  Nanoseconds settle = 20'000'000;            // until turns have ended and pages are written
  Nanoseconds look = 100'000'000;             // between two looks at how each gets on
  Nanoseconds trial = 200'000'000;            // at most; who has not worked enough is judged later
  Nanoseconds least_busy = 20'000'000;        // of which a pace is known
  Nanoseconds lease = 60'000'000'000;         // of work at once; then paces are measured anew
  Nanoseconds proven = 10'000'000'000;        // what went well for so long was no failure
  Nanoseconds after_failure = 5'000'000'000;  // at least, whatever changes; then five times that
  Nanoseconds longest = 600'000'000'000;      // and so on up to this
  double least_dry = 0.2;  // of its turns: who leaves the GPU idle for less fills it
  double begins = 1.0;     // of what each has in turns, at least, for a trial to go on
  double goes_on = 0.97;   // and from then on
};

class Together {
 public:
  explicit Together(const TogetherSettings& settings = {}) : settings_(settings) {}

  // After each change, and at next_look(). Not `allowed`: in turns.
  void look(std::span<const Seen> seen, bool allowed, Nanoseconds now);

  // Whether those who are in it run at once. The others have no turn, and it ends when one waits.
  bool is() const { return phase_ != Phase::kTurns; }
  bool has(uint32_t tenant) const;
  Nanoseconds next_look() const { return is() ? look_at_ : kForever; }

 private:
  enum class Phase : uint8_t { kTurns, kSettling, kTrial, kKept };
  struct Tenant {
    uint32_t percent = 100, members = 1;
    bool fit = true;
    // In turns: since when it is measured, and what was found last.
    bool based = false, known = false;
    Seen base;
    Nanoseconds based_at = 0, known_at = 0;
    double speed = 0;  // launches in a nanosecond of its turns
    double dry = 0;    // of its turns
    uint64_t launches = 0;
    Nanoseconds worked_at = 0;
    bool in = false;      // is one of those who run at once
    bool worked = false;  // since that began
    bool judged = false;  // in this trial
    Seen from;            // since when its pace is measured
    Nanoseconds from_at = 0;
    uint64_t busy_ns = 0;     // as the last look saw it
    bool busy = false;        // and whether it had grown
    Nanoseconds busy_at = 0;  // the last time that it had
  };
  bool changed(std::span<const Seen> seen) const;
  void begin_anew(std::span<const Seen> seen, Nanoseconds now);
  void measure(const Seen& seen, Nanoseconds now);
  bool may_try(std::span<const Seen> seen, Nanoseconds now) const;
  bool works(const Tenant& t, Nanoseconds now) const;
  bool fills_it_not(const Tenant& t, Nanoseconds now) const;
  void enter(Nanoseconds now);
  void leave(Nanoseconds again, Nanoseconds now);
  void fail(Nanoseconds now);
  void judge(std::span<const Seen> seen, Nanoseconds now);
  double percents_since(const Tenant& tenant) const;
  bool falls_behind(Tenant& t, const Seen& s, Nanoseconds now) const;

  const TogetherSettings settings_;
  std::map<uint32_t, Tenant> tenants_;
  Phase phase_ = Phase::kTurns;
  Nanoseconds entered_ = 0, look_at_ = 0;
  Nanoseconds worked_ = 0;       // of this lease
  Nanoseconds last_worked_ = 0;  // when somebody last did in it
  Nanoseconds try_at_ = 0;       // not before, as things stand
  Nanoseconds not_before_ = 0;   // nor before that, whoever comes and goes
  Nanoseconds back_off_ = 0;     // of the last failure
};

}  // namespace sluice::arbiter
