// SPDX-License-Identifier: Apache-2.0
// The end of a turn of several ranks (docs/decisions/0006): those that lag behind what another has
// issued go on until they have issued as much, so that nothing spins for a peer that is held.
#include <algorithm>

#include "arbiter/arbiter.h"
#include "channel/futex.h"

namespace sluice::arbiter {

namespace {

// Some workers of a tenant have drained, one has not: it may wait for what the others have not
// launched yet, by other means than collectives. They go on for a little, again and again, until
// it has. Where somebody is known to lag, that is what it waits for, most likely.
constexpr Nanoseconds kLaggingNs = 5'000'000, kLittleNs = 2'000'000, kLikelyNs = 100'000'000;
// Reading what one rank has issued, ten times over.
constexpr Nanoseconds kCutNs = 500;

}  // namespace

// Within the grace all the time, which is the tenant's. Then the next tenant has its turn, beside
// which it is for a little at a time and as much as its share.
bool Arbiter::may_help(uint32_t id, Tenant& tenant, Nanoseconds now, Nanoseconds* next) {
  const Nanoseconds grace = tenant.called_back + schedule_.grace();
  if (now < grace) {
    *next = std::min(*next, grace);
    tenant.help_until = grace;
    return true;
  }
  if (now >= std::max(tenant.help_again, grace)) {
    tenant.help_until = now + kLittleNs;
    tenant.help_again = now + kLittleNs * 100 / schedule_.percent(id);
  }
  const bool may = now < tenant.help_until;
  *next = std::min(*next, may ? tenant.help_until : tenant.help_again);
  return may;
}

void Arbiter::end_cut(Tenant& tenant) {
  for (Member* m : tenant.members)
    if (m->behind) m->page->cut_turn.store(0, std::memory_order_release);
  for (Member* m : tenant.members) m->behind = false;
}

// False: nobody lags who could go on. What stands on the pages is a worker's word, of which the
// members of its own tenant alone are told.
bool Arbiter::draw_cut(Tenant& tenant, Nanoseconds now) {
  progress_.clear();
  places_.clear();
  tenant.lags = false;
  for (Member* m : tenant.members) {
    m->behind = m->cut_changed = false;
    const size_t used = std::min<size_t>(m->page->places.load(std::memory_order_acquire), kPlaces);
    for (size_t i = 0; i < used; ++i) {
      const Issued& one = m->page->issued[i];
      const uint64_t name = one.communicator.load(std::memory_order_seq_cst);
      const uint64_t count = one.count.load(std::memory_order_seq_cst);
      if (name == 0 || one.communicator.load(std::memory_order_acquire) != name) continue;
      progress_.push_back({name, count, m->open});
      places_.push_back({m, i});
    }
  }
  if (progress_.empty()) return false;
  tenant.cut_again = now + kCutNs * static_cast<Nanoseconds>(progress_.size());
  arbiter::draw_cut(progress_, order_);
  for (size_t i = 0; i < progress_.size(); ++i)
    places_[i].member->behind |= progress_[i].upto > progress_[i].issued;
  bool any = false;
  for (size_t i = 0; i < progress_.size(); ++i) {
    Member& m = *places_[i].member;
    if (!m.behind) continue;
    tenant.lags = true;
    any |= m.open || m.wants();  // another one has nothing to issue yet, and rings when it has
    const uint64_t word = cut_word(progress_[i].communicator, progress_[i].upto);
    const uint64_t before = m.page->cut[places_[i].place].exchange(word, std::memory_order_relaxed);
    m.cut_changed |= before != word;
  }
  return any;
}

void Arbiter::help(uint32_t id, Tenant& tenant, Nanoseconds now, Nanoseconds* next) {
  if (now < tenant.cut_again) {
    *next = std::min(*next, tenant.cut_again);
    return;
  }
  const bool may = draw_cut(tenant, now) && may_help(id, tenant, now, next);
  for (Member* m : tenant.members) {
    if (!m->behind || !may) {
      m->page->cut_turn.store(0, std::memory_order_release);
      continue;
    }
    const bool reopened = !m->open && m->wants();
    if (!m->open && !reopened) continue;
    const uint32_t turn = m->turn + (reopened ? 1 : 0);
    const uint32_t before = m->page->cut_turn.exchange(turn, std::memory_order_release);
    if (reopened)
      give(*m, tenant.called_back, now);
    else if (m->cut_changed || before != turn)
      say(*m, m->until);
  }
  // Since when somebody drains who may wait for others: one that was helped may, too.
  Nanoseconds since = kForever;
  for (const Member* m : tenant.members)
    if (m->open) since = std::min(since, std::max(m->until, tenant.called_back) + kLaggingNs);
  if (since == kForever || tenant.members.size() == 1) return;
  if (tenant.lags) since = std::max(since, tenant.called_back + schedule_.grace() + kLikelyNs);
  if (now < since)
    *next = std::min(*next, since);
  else if (may || may_help(id, tenant, now, next))
    help_laggards(tenant, std::min(now + kLittleNs, tenant.help_until), now);
}

void Arbiter::help_laggards(Tenant& tenant, Nanoseconds until, Nanoseconds now) {
  for (Member* m : tenant.members)
    if (!m->open && m->wants()) give(*m, until, now);
}

}  // namespace sluice::arbiter
