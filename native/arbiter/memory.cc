// SPDX-License-Identifier: Apache-2.0
// Memory of tenants on GPUs of which more is promised than they have (docs/oversubscription.md):
// what residency.h is told of them, by the words of their pages, and what they are told.
#include <algorithm>
#include <utility>

#include "arbiter/arbiter.h"
#include "channel/futex.h"

namespace sluice::arbiter {

namespace {

constexpr auto kOrdered = std::memory_order_seq_cst;

uint32_t bit(size_t place) { return 1u << place; }

void wake(MemoryWords& words) {
  words.changes.fetch_add(1, kOrdered);
  channel::futex_wake(words.changes, 1 << 20);
}

}  // namespace

uint32_t Arbiter::number_of(const std::string& gpu) {
  return static_cast<uint32_t>(std::ranges::find(gpus_, gpu) - gpus_.begin());
}

ByGpu<uint64_t> Arbiter::by_number(const std::map<std::string, uint64_t>& bytes) {
  ByGpu<uint64_t> found;
  for (const auto& [gpu, n] : bytes)
    if (const uint32_t number = number_of(gpu); number < gpus_.size()) found[number] += n;
  return found;
}

bool Arbiter::set_memory(const std::string& gpu, uint64_t bytes, uint64_t margin,
                         std::string* error) {
  uint64_t bits = 0;
  if (!gpu_bits({gpu}, &bits, error)) return false;
  residency_.set_gpu(number_of(gpu), bytes, margin);
  memory_changed_ = true;
  return true;
}

void Arbiter::claim_memory(uint32_t id, Member& m, const TenantRequest& request, Nanoseconds now) {
  m.memory_gpus.clear();
  m.promised.clear();
  m.fixed.clear();
  ByGpu<uint64_t> out;
  if (request.memory.empty() || request.memory.size() > kMemoryPlaces) return;
  for (const MemberMemory& one : request.memory) {
    const uint32_t gpu = number_of(one.gpu);
    if (gpu >= gpus_.size()) return m.memory_gpus.clear();  // none of the tenant's
    m.memory_gpus.push_back(gpu);
    m.promised[gpu] += one.promised;
    m.fixed[gpu] = one.fixed;
    out[gpu] = one.out;
  }
  // Of one that is new here, an arbiter before this one may have said how much it may have.
  for (size_t place = m.room.size(); place < m.memory_gpus.size(); ++place) {
    const MemoryWords& words = m.page->memory;
    const bool bound = words.bounded.load(kOrdered) & bit(place);
    m.room.push_back(bound ? words.room[place].load(kOrdered) : Member::kBoundless);
  }
  Tenant& tenant = tenants_.at(id);
  tenant.priority = request.priority;
  tenant.percent = request.percent;
  tenant.away = request.away;
  claim_again(id, tenant, now);
  see_memory(id, tenant, now);
  residency_.found(id, out, now);
  residency_.keeps(id, request.kept);
}

// Members of one tenant have its vGPUs in common: what is promised is so once, contexts are each
// member's own.
void Arbiter::claim_again(uint32_t id, const Tenant& tenant, Nanoseconds now) {
  MemoryClaim claim{tenant.priority, tenant.percent, tenant.away, {}, {}};
  for (const Member* m : tenant.members) {
    for (const auto& [gpu, bytes] : m->promised)
      claim.promised[gpu] = std::max(claim.promised[gpu], bytes);
    for (const auto& [gpu, bytes] : m->fixed) claim.fixed[gpu] += bytes;
  }
  if (claim.promised.empty())
    residency_.remove(id);
  else
    residency_.claim(id, claim, now);
  memory_changed_ = true;
}

void Arbiter::memory_moved(const std::string& tenant, const std::map<std::string, uint64_t>& out,
                           const std::string& why_not,
                           const std::map<std::string, uint64_t>& missing, Nanoseconds now) {
  const auto found = ids_.find(tenant);
  if (found == ids_.end()) return;
  see_memory(found->second, tenants_.at(found->second), now);
  residency_.moved(found->second, by_number(out), why_not, by_number(missing), now);
  memory_changed_ = true;
}

void Arbiter::memory_kept(const std::string& tenant, uint64_t bytes) {
  const auto found = ids_.find(tenant);
  if (found != ids_.end()) residency_.keeps(found->second, bytes);
}

// How much its page allows falls to what it has and asks for. The worker writes what it asks for,
// and then reads how much it may have; this writes that first: one of the two sees the other's.
ByGpu<MemoryUse> Arbiter::memory_of(Member& m) const {
  MemoryWords& words = m.page->memory;
  const bool spoken = words.spoken.load(std::memory_order_acquire) == 1;
  ByGpu<MemoryUse> uses;
  for (size_t place = 0; place < m.memory_gpus.size(); ++place) {
    const uint32_t gpu = m.memory_gpus[place];
    MemoryUse& use = uses[gpu];
    if (!spoken) {  // of an earlier release: it has all that it may, and none of it moves
      use.taken = use.staying = use.room = m.promised.at(gpu);
      continue;
    }
    const auto wanted = [&] {
      const bool this_one = words.asked_of.load(kOrdered) == place;
      return words.taken[place].load(kOrdered) + (this_one ? words.asked.load(kOrdered) : 0);
    };
    const uint64_t before = m.room[place];
    uint64_t room = std::min(before, wanted());
    words.room[place].store(room, kOrdered);
    if (residency_.bounded(gpu))
      words.bounded.fetch_or(bit(place), kOrdered);
    else if (words.bounded.fetch_and(~bit(place), kOrdered) & bit(place))
      wake(words);
    if (const uint64_t again = std::min(before, wanted()); again > room)
      words.room[place].store(room = again, kOrdered);
    m.room[place] = residency_.bounded(gpu) ? room : Member::kBoundless;
    const uint64_t taken = words.taken[place].load(kOrdered);
    use.taken += taken;
    use.staying += words.staying[place].load(std::memory_order_relaxed);
    use.room += room;
    if (words.asked_of.load(kOrdered) == place) use.asked += words.asked.load(kOrdered);
  }
  return uses;
}

void Arbiter::see_memory(uint32_t id, Tenant& tenant, Nanoseconds now) {
  ByGpu<MemoryUse> all;
  bool waits = false, works = false;
  for (Member* m : tenant.members) {
    if (m->memory_gpus.empty()) continue;
    for (const auto& [gpu, use] : memory_of(*m)) {
      MemoryUse& sum = all[gpu];
      sum.taken += use.taken;
      sum.asked += use.asked;
      sum.staying += use.staying;
      sum.room += use.room;
    }
    const MemoryWords& words = m->page->memory;
    waits |= words.waits.load(kOrdered) != 0;
    const uint64_t begun = words.begun.load(std::memory_order_relaxed);
    const uint64_t done = words.done.load(std::memory_order_relaxed);
    works |= begun != m->begun || done != m->done || begun != done;
    m->begun = begun;
    m->done = done;
  }
  residency_.see(id, all, waits, works && !waits, now);
}

// All that it has asked for by now.
void Arbiter::grant_memory(Member& m) {
  MemoryWords& words = m.page->memory;
  bool more = false;
  for (size_t place = 0; place < m.memory_gpus.size(); ++place) {
    const bool this_one = words.asked_of.load(kOrdered) == place;
    const uint64_t wanted =
        words.taken[place].load(kOrdered) + (this_one ? words.asked.load(kOrdered) : 0);
    if (wanted <= m.room[place]) continue;
    words.room[place].store(m.room[place] = wanted, kOrdered);
    more = true;
  }
  if (!more) return;
  wake(words);
}

void Arbiter::look_memory(Nanoseconds now, Nanoseconds* next) {
  bool called = std::exchange(memory_changed_, false) || now >= memory_at_;
  for (auto& [name, m] : members_) {
    const uint32_t calls = m.page->memory.calls.load(kOrdered);
    called |= std::exchange(m.calls, calls) != calls;
  }
  if (called) {
    for (auto& [id, tenant] : tenants_) see_memory(id, tenant, now);
    for (const Move& move : residency_.step(now)) {
      MemoryOrder order{tenants_.at(move.tenant).name, move.out, {}};
      for (const auto& [gpu, bytes] : move.bytes) order.bytes[gpus_[gpu]] = bytes;
      memory_orders_.push_back(std::move(order));
    }
    for (auto& [id, tenant] : tenants_)
      if (residency_.granted(id))
        for (Member* m : tenant.members) grant_memory(*m);
    memory_at_ = residency_.next_look();
  }
  *next = std::min(*next, memory_at_);
}

std::map<std::string, MemoryFigures> Arbiter::memory_figures(Nanoseconds now) const {
  std::map<std::string, MemoryFigures> all;
  for (const auto& [name, id] : ids_) all[name] = residency_.figures(id, now);
  return all;
}

}  // namespace sluice::arbiter
