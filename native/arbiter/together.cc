// SPDX-License-Identifier: Apache-2.0
#include "arbiter/together.h"

#include <algorithm>

namespace sluice::arbiter {

namespace {

constexpr Nanoseconds kBackOff = 5;  // times as long after each failure
constexpr uint64_t kLeastWatchedNs = 1'000'000;

// A worker's word may fall, too.
uint64_t growth(uint64_t now, uint64_t before) { return now > before ? now - before : 0; }

}  // namespace

bool Together::has(uint32_t tenant) const {
  const auto found = tenants_.find(tenant);
  return is() && found != tenants_.end() && found->second.in;
}

bool Together::changed(std::span<const Seen> seen) const {
  return seen.size() != tenants_.size() || std::ranges::any_of(seen, [this](const Seen& s) {
           const auto found = tenants_.find(s.tenant);
           if (found == tenants_.end()) return true;
           const Tenant& t = found->second;
           return t.percent != s.percent || t.members != s.members || t.fit != s.fit;
         });
}

// Other tenants, or other shares: what failed before says nothing of these.
void Together::begin_anew(std::span<const Seen> seen, Nanoseconds now) {
  tenants_.clear();
  for (const Seen& s : seen) {
    Tenant& t = tenants_[s.tenant];
    t.percent = s.percent;
    t.members = s.members;
    t.fit = s.fit;
    t.launches = s.launches;
    t.worked_at = now - settings_.recent;
  }
  back_off_ = 0;
  leave(settings_.measure, now);
}

// Between two of its turns, as its workers write their sums when they give one back.
void Together::measure(const Seen& s, Nanoseconds now) {
  Tenant& t = tenants_.at(s.tenant);
  if (s.waits || growth(s.launches, t.launches)) t.worked_at = now;
  t.launches = s.launches;
  if (s.holds) return;
  const auto begin = [&] {
    t.based = true;
    t.base = s;
    t.based_at = now;
  };
  if (!t.based) return begin();
  const Nanoseconds held = s.held - t.base.held;
  if (now - t.based_at < settings_.window || held < settings_.least_held) return;
  const uint64_t watched = growth(s.watched_ns, t.base.watched_ns);
  const uint64_t launches = growth(s.launches, t.base.launches);
  const uint64_t dry = growth(s.dry_ns, t.base.dry_ns);
  t.known = watched >= kLeastWatchedNs && launches > 0;
  t.known_at = now;
  t.speed = static_cast<double>(launches) / static_cast<double>(held);
  t.dry = t.known ? static_cast<double>(dry) / static_cast<double>(watched) : 0;
  begin();
}

bool Together::works(const Tenant& t, Nanoseconds now) const {
  return now - t.worked_at < settings_.recent;
}

bool Together::fills_it_not(const Tenant& t, Nanoseconds now) const {
  const Nanoseconds age = works(t, now) ? settings_.fresh : settings_.known;
  return t.known && now - t.known_at < age && t.dry >= settings_.least_dry;
}

bool Together::may_try(std::span<const Seen> seen, Nanoseconds now) const {
  if (now < std::max(try_at_, not_before_)) return false;
  size_t working = 0;
  for (const Seen& s : seen) {
    const Tenant& t = tenants_.at(s.tenant);
    const bool has_work = works(t, now);
    if (!t.fit || ((has_work || s.holds || s.waits) && !fills_it_not(t, now))) return false;
    working += has_work;
  }
  return working > 1;
}

void Together::enter(Nanoseconds now) {
  for (auto& [id, t] : tenants_) {
    t.in = fills_it_not(t, now);
    t.worked = t.judged = t.busy = false;
  }
  phase_ = Phase::kSettling;
  entered_ = last_worked_ = now;
  worked_ = 0;
  look_at_ = now + settings_.settle;
}

// What is known of those who worked meanwhile is of before, and measured anew; who did not work has
// nothing else. What ends soon, for whatever reason, is followed by a while in turns: or who comes
// and goes could have it tried, fill the GPU and be gone before the next look, over and over.
void Together::leave(Nanoseconds again, Nanoseconds now) {
  if (is() && now - entered_ < settings_.proven) not_before_ = now + settings_.after_failure;
  for (auto& [id, t] : tenants_) {
    t.based = false;
    t.known &= !(t.in && t.worked);
    t.in = false;
  }
  phase_ = Phase::kTurns;
  try_at_ = now + again;
}

void Together::fail(Nanoseconds now) {
  if (now - entered_ >= settings_.proven) back_off_ = 0;
  back_off_ =
      back_off_ == 0 ? settings_.after_failure : std::min(back_off_ * kBackOff, settings_.longest);
  leave(back_off_, now);
}

// Of all those who had work since then, it included: among so many its share is divided in turns.
// Where nobody says that he had, all count who may: one who hides that he has work gains nothing.
double Together::percents_since(const Tenant& tenant) const {
  double working = 0, all = 0;
  bool others = false;
  for (const auto& [id, t] : tenants_) {
    if (!t.in) continue;
    all += t.percent;
    if (&t != &tenant && t.busy_at <= tenant.from_at) continue;
    working += t.percent;
    others |= &t != &tenant;
  }
  return others ? working : all;
}

// A pace is of the time in which there was work: who has less to do has not fallen behind.
bool Together::falls_behind(Tenant& t, const Seen& s, Nanoseconds now) const {
  const auto passed = static_cast<uint64_t>(now - t.from_at);
  const uint64_t busy = std::min(growth(s.busy_ns, t.from.busy_ns), passed);
  if (busy < static_cast<uint64_t>(settings_.least_busy)) return false;
  const auto launches = static_cast<double>(growth(s.launches, t.from.launches));
  const double due = t.speed * t.percent / percents_since(t);
  t.judged = true;
  return launches / static_cast<double>(busy) <
         due * (phase_ == Phase::kTrial ? settings_.begins : settings_.goes_on);
}

void Together::judge(std::span<const Seen> seen, Nanoseconds now) {
  look_at_ = now + settings_.look;
  for (const Seen& s : seen) {
    Tenant& t = tenants_.at(s.tenant);
    t.busy = growth(s.busy_ns, t.busy_ns) > 0;
    t.busy_ns = s.busy_ns;
    if (t.busy) t.busy_at = now;
    if (phase_ != Phase::kSettling) continue;
    t.from = s;
    t.from_at = now;
  }
  if (phase_ == Phase::kSettling) {
    phase_ = Phase::kTrial;
    return;
  }
  bool behind = false, all = true;
  int busy = 0;
  for (const Seen& s : seen) {
    Tenant& t = tenants_.at(s.tenant);
    if (!t.in || !t.busy) continue;
    t.worked = true;
    ++busy;
    behind |= falls_behind(t, s, now);
    all &= t.judged;
  }
  if (busy > 0) last_worked_ = now;
  if (busy > 1) worked_ += settings_.look;
  if (behind) return fail(now);
  for (const Seen& s : seen) {
    Tenant& t = tenants_.at(s.tenant);
    if (growth(s.busy_ns, t.from.busy_ns) < static_cast<uint64_t>(settings_.least_busy)) continue;
    t.from = s;
    t.from_at = now;
  }
  if (phase_ == Phase::kTrial && (all || now - entered_ >= settings_.trial)) phase_ = Phase::kKept;
}

void Together::look(std::span<const Seen> seen, bool allowed, Nanoseconds now) {
  if (changed(seen)) begin_anew(seen, now);
  if (!is()) {
    for (const Seen& s : seen) measure(s, now);
    if (allowed && may_try(seen, now)) enter(now);
    return;
  }
  const bool wanted = std::ranges::any_of(
      seen, [this](const Seen& s) { return s.waits && !tenants_.at(s.tenant).in; });
  if (wanted || !allowed) return leave(settings_.measure, now);
  if (worked_ >= settings_.lease || now - last_worked_ >= settings_.known) {
    back_off_ = 0;
    return leave(settings_.measure, now);
  }
  if (now >= look_at_) judge(seen, now);
}

}  // namespace sluice::arbiter
