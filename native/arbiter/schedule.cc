// SPDX-License-Identifier: Apache-2.0
#include "arbiter/schedule.h"

#include <algorithm>
#include <array>
#include <utility>

namespace sluice::arbiter {

namespace {

constexpr double kNobody = std::numeric_limits<double>::infinity();
constexpr double kUrgent = 0.25;  // of a period: what a waker must have left to go before a holder

bool sensible(uint32_t percent) { return percent >= 1 && percent <= 100; }

}  // namespace

// What passed since the last time is somebody's: of who has a turn, used; of who waits, waited.
void Schedule::count(Tenant& t, Nanoseconds now) const {
  if (now <= t.since) return;
  const Nanoseconds passed = now - t.since;
  const auto time = static_cast<double>(passed);
  t.since = now;
  t.allowance = std::min(t.allowance + t.share() * time, most_allowance(t));
  if (t.state == State::kWaiting) t.figures.waited += passed;
  if (!t.has_turn()) return;
  t.figures.held += passed;
  if (t.state == State::kTogether) {
    t.figures.together += passed;
    return;
  }
  t.paid += time / t.share();
  t.allowance = std::max(t.allowance - time, least_allowance(t));
}

void Schedule::count_all(Nanoseconds now) {
  for (auto& [id, t] : tenants_) count(t, now);
}

// Two periods' worth, so that waiting for its turn costs it nothing.
double Schedule::most_allowance(const Tenant& t) const {
  return std::max(2 * t.share() * static_cast<double>(settings_.period),
                  2 * static_cast<double>(settings_.least_turn));
}

// What one who is capped owes is bounded as what one owes the others is.
double Schedule::least_allowance(const Tenant& t) const {
  return -settings_.debt_periods * t.share() * static_cast<double>(settings_.period);
}

// Of those who want the GPUs that it wants.
double Schedule::least_paid_beside(const Tenant& tenant) const {
  double least = kNobody;
  for (const auto& [id, t] : tenants_)
    if (t.active() && t.meets(tenant)) least = std::min(least, t.paid);
  return least;
}

bool Schedule::may_run(const Tenant& t) const {
  if (t.held) return false;
  return !t.tenancy.capped || t.allowance >= static_cast<double>(settings_.least_turn);
}

bool Schedule::wanted_by_others(const Tenant& tenant) const {
  return std::ranges::any_of(tenants_, [&](const auto& each) {
    const Tenant& t = each.second;
    return t.state == State::kWaiting && t.meets(tenant) && may_run(t);
  });
}

bool Schedule::wanted_urgently(const Tenant& tenant) const {
  return std::ranges::any_of(tenants_, [&](const auto& each) {
    const Tenant& t = each.second;
    return t.state == State::kWaiting && t.urgent && t.meets(tenant) && may_run(t) &&
           t.paid < tenant.paid;
  });
}

// Its part of a period among those who want its GPUs, on the one where that is least.
Nanoseconds Schedule::turn(const Tenant& tenant) const {
  uint32_t most = tenant.tenancy.percent;
  for (uint64_t left = tenant.tenancy.gpus; left; left &= left - 1) {
    const uint64_t gpu = left & -left;
    uint32_t sum = 0;
    for (const auto& [id, t] : tenants_)
      if ((t.tenancy.gpus & gpu) && (t.active() || &t == &tenant)) sum += t.tenancy.percent;
    most = std::max(most, sum);
  }
  Nanoseconds turn = settings_.period * tenant.tenancy.percent / most;
  if (tenant.tenancy.capped) turn = std::min(turn, static_cast<Nanoseconds>(tenant.allowance));
  return std::max(turn, settings_.least_turn);
}

bool Schedule::add(uint32_t tenant, const Tenancy& tenancy, Nanoseconds now) {
  if (!tenancy.gpus || !sensible(tenancy.percent) || tenants_.contains(tenant)) return false;
  Tenant t;
  t.tenancy = tenancy;
  t.since = t.until = now;
  t.allowance = t.share() * static_cast<double>(settings_.period);
  tenants_.emplace(tenant, t);
  return true;
}

bool Schedule::change(uint32_t tenant, uint32_t percent, bool capped, Nanoseconds now) {
  const auto found = tenants_.find(tenant);
  if (found == tenants_.end() || !sensible(percent)) return false;
  Tenant& t = found->second;
  count_all(now);
  // What it is ahead of the others, in time of the GPU, stays.
  const double others = least_paid_beside(t), before = t.share();
  t.tenancy.percent = percent;
  t.tenancy.capped = capped;
  if (others != kNobody) t.paid = others + (t.paid - others) * before / t.share();
  t.allowance = std::min(t.allowance, most_allowance(t));
  return true;
}

bool Schedule::move(uint32_t tenant, uint64_t gpus, Nanoseconds now) {
  const auto found = tenants_.find(tenant);
  if (found == tenants_.end() || !gpus) return false;
  count_all(now);
  found->second.tenancy.gpus = gpus;
  return true;
}

void Schedule::remove(uint32_t tenant, Nanoseconds now) {
  count_all(now);
  tenants_.erase(tenant);
}

// Sleeping pays debts back and earns credit, as long as a period's: what nobody wanted at the time
// is not owed.
void Schedule::wants(uint32_t tenant, Nanoseconds now) {
  const auto found = tenants_.find(tenant);
  if (found == tenants_.end() || found->second.active()) return;
  Tenant& t = found->second;
  count_all(now);
  const auto period = static_cast<double>(settings_.period);
  const double ahead = std::max(t.ahead - static_cast<double>(now - t.until),
                                std::min(t.ahead, -settings_.credit_periods * period));
  if (const double others = least_paid_beside(t); others != kNobody) t.paid = others + ahead;
  t.urgent = ahead <= -kUrgent * period;
  t.state = State::kWaiting;
}

void Schedule::gives_back(uint32_t tenant, bool more, Nanoseconds now) {
  const auto found = tenants_.find(tenant);
  if (found == tenants_.end()) return;
  Tenant& t = found->second;
  count_all(now);
  const auto period = static_cast<double>(settings_.period);
  const double others = least_paid_beside(t);
  t.ahead = 0;
  if (others != kNobody) {
    t.ahead = std::min(t.paid - others, settings_.debt_periods * period);
    t.paid = others + t.ahead;  // what is owed to one who goes on wanting stays owed
    t.ahead = std::max(t.ahead, -settings_.credit_periods * period);
  }
  if (t.active()) t.until = now;
  t.urgent = more && t.ahead <= -kUrgent * period;  // it used little of its share, and goes on so
  t.state = more ? State::kWaiting : State::kIdle;
}

void Schedule::begin_together(const std::vector<uint32_t>& tenants, Nanoseconds now) {
  count_all(now);
  for (const uint32_t id : tenants) {
    wants(id, now);  // what it is ahead or behind stays
    const auto found = tenants_.find(id);
    if (found == tenants_.end()) continue;
    found->second.state = State::kTogether;
    found->second.urgent = false;
  }
}

void Schedule::end_together(const std::vector<uint32_t>& tenants, Nanoseconds now) {
  count_all(now);
  for (const uint32_t id : tenants) {
    const auto found = tenants_.find(id);
    if (found == tenants_.end() || found->second.state != State::kTogether) continue;
    found->second.state = State::kCalledBack;
    found->second.until = now;
    ended_together_.push_back(id);
  }
}

// A turn without an end has one, and not at once: what passed a gate that asked nobody is issued by
// then.
void Schedule::hold(uint32_t tenant, Nanoseconds now) {
  const auto found = tenants_.find(tenant);
  if (found == tenants_.end()) return;
  Tenant& t = found->second;
  if (!t.held && t.state == State::kHolding && !t.limited) t.until = now + settings_.least_turn;
  t.held = true;
}

void Schedule::go_on(uint32_t tenant) {
  if (const auto found = tenants_.find(tenant); found != tenants_.end()) found->second.held = false;
}

bool Schedule::is_held(uint32_t tenant) const {
  const auto found = tenants_.find(tenant);
  return found != tenants_.end() && found->second.held;
}

void Schedule::charge(uint32_t tenant, Nanoseconds time) {
  const auto found = tenants_.find(tenant);
  if (found == tenants_.end()) return;
  Tenant& t = found->second;
  t.figures.held += time;
  (t.active() ? t.paid : t.ahead) += static_cast<double>(time) / t.share();
  t.allowance = std::max(t.allowance - static_cast<double>(time), least_allowance(t));
}

bool Schedule::holds(uint32_t tenant) const {
  const auto found = tenants_.find(tenant);
  return found != tenants_.end() && found->second.has_turn();
}

bool Schedule::waits(uint32_t tenant) const {
  const auto found = tenants_.find(tenant);
  return found != tenants_.end() && found->second.state == State::kWaiting;
}

bool Schedule::runs_together(uint32_t tenant) const {
  const auto found = tenants_.find(tenant);
  return found != tenants_.end() && found->second.state == State::kTogether;
}

bool Schedule::alone(uint32_t tenant) const {
  const auto found = tenants_.find(tenant);
  if (found == tenants_.end() || found->second.tenancy.capped) return false;
  return std::ranges::none_of(tenants_,
                              [&](const auto& each) { return each.second.meets(found->second); });
}

uint32_t Schedule::percent(uint32_t tenant) const {
  const auto found = tenants_.find(tenant);
  return found == tenants_.end() ? 100 : found->second.tenancy.percent;
}

Tenancy Schedule::tenancy(uint32_t tenant) const {
  const auto found = tenants_.find(tenant);
  return found == tenants_.end() ? Tenancy{} : found->second.tenancy;
}

TenantFigures Schedule::figures(uint32_t tenant, Nanoseconds now) const {
  const auto found = tenants_.find(tenant);
  if (found == tenants_.end()) return {};
  Tenant t = found->second;
  count(t, now);
  if (t.state >= State::kCalledBack) t.figures.overdue = now - t.until;
  return t.figures;
}

// A turn ends when its time is over and somebody else wants the GPU, when one who woke with credit
// wants it, or when a capped tenant has used what it may.
void Schedule::call_back(Nanoseconds now, Decision* decision) {
  for (auto& [id, t] : tenants_) {
    if (t.state == State::kCalledBack && now >= t.until + settings_.grace)
      t.state = State::kOverdue;
    if (t.state != State::kHolding) continue;
    const bool wanted = wanted_by_others(t);
    const bool over = (t.tenancy.capped && t.allowance <= 0) ||
                      ((wanted || t.held) && now >= t.until) ||
                      (now >= t.began + settings_.least_turn && wanted_urgently(t));
    if (over) {
      t.state = State::kCalledBack;
      t.until = now;
      decision->call_back.push_back(id);
    } else if ((wanted || t.held) && !t.limited) {
      t.limited = true;
      decision->limit.push_back({id, t.until});
    }
  }
}

// Wakers with credit first, then in the order of what they have paid. Who cannot begin, since some
// of its GPUs are another's, keeps its place on the rest: who comes later may have them until then.
void Schedule::begin(Nanoseconds now, Decision* decision) {
  std::vector<std::pair<uint32_t, Tenant*>> waiting;
  for (auto& [id, t] : tenants_)
    if (t.state == State::kWaiting && may_run(t)) waiting.emplace_back(id, &t);
  std::ranges::stable_sort(waiting, {}, [](const auto& each) {
    return std::pair(!each.second->urgent, each.second->paid);
  });
  uint64_t taken = 0;
  std::vector<const Tenant*> holders;
  const auto take = [&](const Tenant& t) {
    taken |= t.tenancy.gpus;
    holders.push_back(&t);
  };
  for (const auto& [id, t] : tenants_)
    if (t.keeps_others_out()) take(t);
  std::array<Nanoseconds, kMaxGpus> lent_until;
  lent_until.fill(kForever);
  const auto each_gpu = [](uint64_t gpus, auto&& what) {
    for (uint32_t gpu = 0; gpu < kMaxGpus; ++gpu)
      if (gpus >> gpu & 1) what(gpu);
  };
  for (auto& [id, t] : waiting) {
    const uint64_t gpus = t->tenancy.gpus;
    if (gpus & taken) {
      Nanoseconds free_at = now;
      for (const Tenant* holder : holders)
        if (holder->meets(*t)) free_at = std::max(free_at, holder->until);
      each_gpu(gpus, [&](uint32_t g) { lent_until[g] = std::min(lent_until[g], free_at); });
      continue;
    }
    Nanoseconds until = now + turn(*t);
    each_gpu(gpus, [&](uint32_t g) { until = std::min(until, lent_until[g]); });
    if (until < now + settings_.least_turn) continue;  // not worth the change
    t->state = State::kHolding;
    t->urgent = false;
    t->began = now;
    t->until = until;
    take(*t);
    ++t->figures.turns;
  }
  for (auto& [id, t] : waiting)
    if (t->state == State::kHolding) {
      t->limited = wanted_by_others(*t);
      decision->begin.push_back({id, t->limited ? t->until : kForever});
    }
}

Nanoseconds Schedule::next_look(Nanoseconds now) const {
  Nanoseconds next = kForever;
  const auto least = static_cast<double>(settings_.least_turn);
  const auto after = [&](double time) { return now + 1 + static_cast<Nanoseconds>(time); };
  for (const auto& [id, t] : tenants_) {
    if (t.state == State::kCalledBack) next = std::min(next, t.until + settings_.grace);
    if (t.state == State::kWaiting && !t.held && !may_run(t))
      next = std::min(next, after((least - t.allowance) / t.share()));
    if (t.state != State::kHolding) continue;
    if (t.held || wanted_by_others(t)) next = std::min(next, t.until);
    if (wanted_urgently(t)) next = std::min(next, t.began + settings_.least_turn);
    if (t.tenancy.capped && t.share() < 1)
      next = std::min(next, after(t.allowance / (1 - t.share())));
  }
  return next == kForever ? next : std::max(next, now + 1);
}

Decision Schedule::step(Nanoseconds now) {
  Decision decision;
  decision.call_back = std::exchange(ended_together_, {});
  std::erase_if(decision.call_back, [this](uint32_t id) { return !tenants_.contains(id); });
  count_all(now);
  call_back(now, &decision);
  begin(now, &decision);
  decision.look_again = next_look(now);
  return decision;
}

}  // namespace sluice::arbiter
