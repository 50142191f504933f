// SPDX-License-Identifier: Apache-2.0
// Tenants that run at once instead of in turns (docs/decisions/0007): what together.h is told of
// them, by their pages and the schedule, and what the schedule is told in return.
#include <algorithm>
#include <bit>

#include "arbiter/arbiter.h"

namespace sluice::arbiter {

// What stands on the pages is a worker's word; together.h says what that counts for.
Seen Arbiter::seen(uint32_t id, const Tenant& tenant, Nanoseconds now) const {
  const Tenancy tenancy = schedule_.tenancy(id);
  Seen s;
  s.tenant = id;
  s.percent = tenancy.percent;
  s.members = static_cast<uint32_t>(tenant.members.size());
  s.fit = !tenancy.capped && std::has_single_bit(tenancy.gpus) && !schedule_.is_held(id);
  s.waits = schedule_.waits(id);
  s.holds = schedule_.holds(id);
  s.held = schedule_.figures(id, now).held;
  for (const Member* m : tenant.members) {
    s.launches += m->page->launches.load(std::memory_order_relaxed);
    s.busy_ns += m->page->busy.load(std::memory_order_relaxed);
    s.watched_ns += m->page->watched.load(std::memory_order_relaxed);
    s.dry_ns += m->page->dry.load(std::memory_order_relaxed);
  }
  return s;
}

bool Arbiter::is_together(uint32_t id) const {
  const uint64_t gpus = schedule_.tenancy(id).gpus;
  return std::has_single_bit(gpus) &&
         together_[static_cast<size_t>(std::countr_zero(gpus))].has(id);
}

void Arbiter::look_together(Nanoseconds now, Nanoseconds* next) {
  for (auto& of_gpu : seen_) of_gpu.clear();
  for (const auto& [id, tenant] : tenants_)
    for (uint64_t left = schedule_.tenancy(id).gpus; left; left &= left - 1)
      seen_[static_cast<size_t>(std::countr_zero(left))].push_back(seen(id, tenant, now));
  for (size_t gpu = 0; gpu < gpus_.size(); ++gpu) {
    together_[gpu].look(seen_[gpu], together_allowed_, now);
    *next = std::min(*next, together_[gpu].next_look());
  }
  std::vector<uint32_t> begin, end;
  for (auto& [id, tenant] : tenants_) {
    const bool is = is_together(id);
    if (is == schedule_.runs_together(id)) continue;
    (is ? begin : end).push_back(id);
    if (!is) continue;
    end_cut(tenant);  // of a turn that was being given back
    tenant.called_back = 0;
    tenant.until = kForever;
  }
  schedule_.begin_together(begin, now);
  schedule_.end_together(end, now);
}

}  // namespace sluice::arbiter
