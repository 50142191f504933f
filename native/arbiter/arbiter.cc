// SPDX-License-Identifier: Apache-2.0
#include "arbiter/arbiter.h"

#include <algorithm>

#include "channel/futex.h"

namespace sluice::arbiter {

namespace {

// A worker that has a turn others wait for notices within this, or is stopped: then it loses it. On
// a host without a CPU to spare one that is not takes tens of milliseconds.
constexpr Nanoseconds kNoticeNs = 40'000'000;
// At once, of what ran after a turn was given back.
constexpr uint64_t kMostChargedNs = 1'000'000'000;

}  // namespace

bool Arbiter::gpu_bits(const std::vector<std::string>& gpus, uint64_t* bits, std::string* error) {
  *bits = 0;
  for (const std::string& gpu : gpus) {
    auto at = std::ranges::find(gpus_, gpu);
    if (at == gpus_.end()) {
      if (gpus_.size() == kMaxGpus)
        return *error = "gpus: an arbiter divides at most " + std::to_string(kMaxGpus) + " GPUs",
               false;
      at = gpus_.insert(gpus_.end(), gpu);
      together_.emplace_back(together_settings_);
      seen_.emplace_back();
    }
    *bits |= 1ull << (at - gpus_.begin());
  }
  if (*bits == 0) *error = "gpus: none is named";
  return *bits != 0;
}

// What its members are, it is.
void Arbiter::gather(Tenant& tenant) {
  tenant.members.clear();
  for (auto& [name, m] : members_)
    if (&tenants_.at(m.tenant) == &tenant) tenant.members.push_back(&m);
}

bool Arbiter::join(const std::string& name, const TenantRequest& request, TurnPage* page,
                   Nanoseconds now, std::string* error) {
  uint64_t bits;
  if (!gpu_bits(request.gpus, &bits, error)) return false;
  if (const auto known = members_.find(name); known != members_.end()) {
    if (tenants_.at(known->second.tenant).name != request.tenant)
      return *error = "id: the session is another tenant's", false;
    schedule_.change(known->second.tenant, request.percent, request.capped, now);
    claim_memory(known->second.tenant, known->second, request, now);
    return true;
  }
  const auto [known, fresh] = ids_.try_emplace(request.tenant, next_);
  const uint32_t id = known->second;
  if (fresh) {
    if (!schedule_.add(id, {bits, request.percent, request.capped}, now)) {
      ids_.erase(known);
      return *error = "percent: a share is 1 to 100", false;
    }
    ++next_;
    tenants_[id].name = request.tenant;
  }
  Tenant& tenant = tenants_.at(id);
  Member& m = members_[name];
  m = {};
  m.page = page;
  m.tenant = id;
  m.gpus = bits;
  m.turn = page->turn.load(std::memory_order_acquire);
  m.overran = page->overran.load(std::memory_order_relaxed);
  // As an arbiter before this one may have left it: whoever works drains, and asks.
  say(m, kNoTurn);
  gather(tenant);
  uint64_t all = 0;
  for (const Member* each : tenant.members) all |= each->gpus;
  schedule_.move(id, all, now);
  if (!fresh) schedule_.change(id, request.percent, request.capped, now);
  claim_memory(id, m, request, now);
  return true;
}

void Arbiter::leave(const std::string& name, Nanoseconds now) {
  const auto found = members_.find(name);
  if (found == members_.end()) return;
  const uint32_t id = found->second.tenant;
  members_.erase(found);
  Tenant& tenant = tenants_.at(id);
  gather(tenant);
  if (!tenant.members.empty()) {
    uint64_t all = 0;
    for (const Member* each : tenant.members) all |= each->gpus;
    schedule_.move(id, all, now);
    return claim_again(id, tenant, now);
  }
  schedule_.remove(id, now);
  residency_.remove(id);
  memory_changed_ = true;
  ids_.erase(tenant.name);
  tenants_.erase(id);
}

bool Arbiter::share(const std::string& tenant, uint32_t percent, bool capped, Nanoseconds now) {
  const auto found = ids_.find(tenant);
  if (found == ids_.end() || !schedule_.change(found->second, percent, capped, now)) return false;
  tenants_.at(found->second).percent = percent;
  claim_again(found->second, tenants_.at(found->second), now);
  return true;
}

void Arbiter::hold(const std::string& tenant, Nanoseconds lasts, Nanoseconds now) {
  const auto found = ids_.find(tenant);
  if (found == ids_.end()) return still_.push_back(tenant);
  Tenant& t = tenants_.at(found->second);
  t.held_until = now + lasts;
  t.still = false;
  schedule_.hold(found->second, now);
}

void Arbiter::go_on(const std::string& tenant) {
  const auto found = ids_.find(tenant);
  if (found == ids_.end()) return;
  tenants_.at(found->second).held_until = 0;
  schedule_.go_on(found->second);
}

// After the schedule's step: who has given its turn back has drained.
void Arbiter::look_held(Nanoseconds now, Nanoseconds* next) {
  for (auto& [id, t] : tenants_) {
    if (t.held_until == 0) continue;
    if (now >= t.held_until) {
      go_on(t.name);
      *next = std::min(*next, now + 1);
      continue;
    }
    *next = std::min(*next, t.held_until);
    if (!schedule_.holds(id) && !std::exchange(t.still, true)) still_.push_back(t.name);
  }
}

std::map<std::string, TenantFigures> Arbiter::figures(Nanoseconds now) const {
  std::map<std::string, TenantFigures> all;
  for (const auto& [name, id] : ids_) all[name] = schedule_.figures(id, now);
  return all;
}

// The number of the turn is written first: a worker that has read `until` finds its turn.
void Arbiter::say(Member& m, int64_t until) {
  m.until = until;
  m.page->turn.store(m.turn, std::memory_order_release);
  m.page->until.store(until, std::memory_order_release);
  m.page->changes.fetch_add(1, std::memory_order_seq_cst);
  channel::futex_wake(m.page->changes, 1 << 20);
}

void Arbiter::give(Member& m, int64_t until, Nanoseconds now) {
  if (m.open && m.until == until) return;
  if (!m.open) {
    m.open = true;
    m.noticed = false;
    ++m.turn;
  }
  m.told = now;
  say(m, until);
}

void Arbiter::close(Member& m) {
  m.open = false;
  if (m.until != kNoTurn) say(m, kNoTurn);
}

// A word of the worker's that harms itself alone.
void Arbiter::charge(Member& m) {
  const uint64_t overran = m.page->overran.load(std::memory_order_relaxed);
  if (overran == m.overran) return;
  const uint64_t more = std::min<uint64_t>(overran - m.overran, kMostChargedNs);
  m.overran = overran;
  schedule_.charge(m.tenant, static_cast<Nanoseconds>(more));
}

void Arbiter::read(Member& m, Nanoseconds now, Nanoseconds* next) {
  charge(m);
  const bool noticed = m.page->seen.load(std::memory_order_acquire) == m.turn;
  m.absent &= !noticed;
  if (!m.open) return;
  if (m.page->returned.load(std::memory_order_acquire) == m.turn) return close(m);
  m.noticed |= noticed;
  if (m.noticed || m.until >= kTogether) return;
  if (now < m.told + kNoticeNs) {
    *next = std::min(*next, m.told + kNoticeNs);
  } else {
    m.absent = true;
    close(m);
  }
}

void Arbiter::read(uint32_t id, Tenant& tenant, Nanoseconds now, Nanoseconds* next) {
  bool open = false, wants = false;
  for (Member* m : tenant.members) {
    read(*m, now, next);
    open |= m->open;
    wants |= m->wants();
  }
  if (!schedule_.holds(id)) {
    if (wants || schedule_.alone(id))
      schedule_.wants(id, now);
    else if (schedule_.waits(id))
      schedule_.gives_back(id, false, now);
    return;
  }
  if (!open) {
    // Alone, it is given its pages again, unless that turn was over before it was left alone.
    const bool alone = schedule_.alone(id) && !schedule_.is_held(id);
    if ((alone && !tenant.called_back) || schedule_.runs_together(id)) return;
    schedule_.gives_back(id, wants, now);
    tenant.called_back = 0;
    return end_cut(tenant);
  }
  if (tenant.called_back) help(id, tenant, now, next);
}

void Arbiter::publish(uint32_t id, Tenant& tenant, Nanoseconds now) {
  if (!schedule_.holds(id) || tenant.called_back) return;
  const bool alone = schedule_.alone(id) && !schedule_.is_held(id);
  const bool together = schedule_.runs_together(id);
  // Who is left alone in a turn that had an end has one without.
  const int64_t until = alone                      ? kAlone
                        : together                 ? kTogether
                        : tenant.until != kForever ? tenant.until
                                                   : kUntilWanted;
  for (Member* m : tenant.members)
    if (m->open || alone || (together && !m->absent) || m->wants()) give(*m, until, now);
}

void Arbiter::apply(const Decision& decision, Nanoseconds now) {
  for (const uint32_t id : decision.call_back) {
    Tenant& tenant = tenants_.at(id);
    tenant.called_back = now;
    tenant.help_again = tenant.help_until = tenant.cut_again = 0;
    for (Member* m : tenant.members)
      if (m->open && m->until > now) give(*m, now, now);
  }
  for (const Turn& t : decision.limit) tenants_.at(t.tenant).until = t.until;
  for (const Turn& t : decision.begin) {
    Tenant& tenant = tenants_.at(t.tenant);
    tenant.until = t.until;
    tenant.called_back = 0;
  }
}

Nanoseconds Arbiter::look(Nanoseconds now) {
  Nanoseconds next = kForever;
  for (auto& [id, tenant] : tenants_) read(id, tenant, now, &next);
  look_together(now, &next);
  look_memory(now, &next);
  const Decision decision = schedule_.step(now);
  apply(decision, now);
  for (const uint32_t id : decision.call_back) help(id, tenants_.at(id), now, &next);
  // The beat first: who learns that others have a share, or that it is held, finds that we live.
  const bool divided = std::ranges::any_of(tenants_, [this](const auto& each) {
    return !schedule_.alone(each.first) || schedule_.is_held(each.first);
  });
  if (divided) {
    next = std::min(next, now + kBeatNs);
    for (auto& [name, m] : members_) m.page->beat.store(now, std::memory_order_relaxed);
  }
  for (auto& [id, tenant] : tenants_) publish(id, tenant, now);
  look_held(now, &next);
  return std::min(next, decision.look_again);
}

}  // namespace sluice::arbiter
