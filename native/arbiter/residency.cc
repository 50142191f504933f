// SPDX-License-Identifier: Apache-2.0
#include "arbiter/residency.h"

#include <algorithm>
#include <bit>
#include <tuple>
#include <utility>

namespace sluice::arbiter {

namespace {

constexpr const char* kMade = "room is being made for it on the GPU";
constexpr const char* kLater = "others are before it, or have their time on the GPU";
constexpr const char* kNever =
    "what else is on the GPU cannot be moved for it: it stays there, or has a higher priority";

// Who has not worked for so long may be idle soon.
constexpr Nanoseconds kRests = 2'000'000'000;
// And it pauses, as a training never does between two steps.
constexpr Nanoseconds kPauses = 500'000'000;

// Who has been idle for 16 times as long as another is idle for longer, whatever the one keeps.
constexpr int kClassBits = 4;
constexpr Nanoseconds kLeast = 1'000'000;

uint64_t less(uint64_t from, uint64_t bytes) { return from - std::min(from, bytes); }

}  // namespace

uint64_t Residency::at(const ByGpu<uint64_t>& of, uint32_t gpu) {
  const auto found = of.find(gpu);
  return found == of.end() ? 0 : found->second;
}

uint64_t Residency::wanted(const Tenant& t, uint32_t gpu) {
  const auto found = t.uses.find(gpu);
  return found == t.uses.end() ? 0 : found->second.taken + found->second.asked;
}

// Of the GPU, its contexts included. What it has been allowed to take counts as taken.
uint64_t Residency::held(const Tenant& t, uint32_t gpu) {
  const auto found = t.uses.find(gpu);
  if (found == t.uses.end()) return at(t.claim.fixed, gpu);
  const MemoryUse& use = found->second;
  const bool whole = t.state == State::kComingIn || t.out.empty();
  const uint64_t there = whole ? std::max(use.taken, use.room) : less(use.taken, at(t.out, gpu));
  return at(t.claim.fixed, gpu) + there;
}

uint64_t Residency::movable(const Tenant& t, uint32_t gpu, bool ever) {
  const auto found = t.uses.find(gpu);
  if (found == t.uses.end()) return 0;
  const uint64_t stays = std::max(found->second.staying, at(t.stuck, gpu));
  const uint64_t out = ever && t.state == State::kComingIn ? 0 : at(t.out, gpu);
  return less(found->second.taken, stays + out);
}

bool Residency::Tenant::lacks() const {
  if (claim.away || moves()) return false;
  if (is_out()) return waits;
  return std::ranges::any_of(uses, [](const auto& each) {
    return each.second.taken + each.second.asked > each.second.room;
  });
}

void Residency::count(Tenant& t, Nanoseconds now) {
  const bool waiting = t.waits_since != 0 && !t.claim.away;
  if (waiting && now > t.since) t.figures.waited += now - std::max(t.since, t.waits_since);
  t.since = now;
}

void Residency::claim(uint32_t tenant, const MemoryClaim& claim, Nanoseconds now) {
  auto [found, fresh] = tenants_.try_emplace(tenant);
  Tenant& t = found->second;
  count(t, now);
  t.claim = claim;
  if (fresh) t.active_at = t.since = now;
  count_promises();
}

void Residency::set_gpu(uint32_t gpu, uint64_t bytes, uint64_t margin) {
  gpus_[gpu] = bytes;
  margins_[gpu] = margin;
  count_promises();
}

void Residency::remove(uint32_t tenant) {
  tenants_.erase(tenant);
  for (auto& [id, t] : tenants_) t.besides.clear();  // it may have had what was not counted
  count_promises();
}

void Residency::count_promises() {
  bounded_.clear();
  ByGpu<uint64_t> promised;
  for (const auto& [id, t] : tenants_)
    for (const auto& of : {t.claim.promised, t.claim.fixed})
      for (const auto& [gpu, bytes] : of) promised[gpu] += bytes;
  for (const auto& [gpu, bytes] : promised)
    if (const auto known = gpus_.find(gpu); known != gpus_.end() && bytes > known->second)
      bounded_.insert(gpu);
}

void Residency::found(uint32_t tenant, const ByGpu<uint64_t>& out, Nanoseconds now) {
  const auto found = tenants_.find(tenant);
  if (found == tenants_.end()) return;
  Tenant& t = found->second;
  count(t, now);
  const bool is_out = std::ranges::any_of(out, [](const auto& each) { return each.second > 0; });
  t.going.clear();
  t.out = is_out ? out : ByGpu<uint64_t>{};
  // What it was allowed to take when it was to come in, it is not any more.
  if (is_out) {
    for (auto& [gpu, use] : t.uses) use.room = std::min(use.room, use.taken);
    t.stays_until = 0;
  }
  t.state = is_out ? State::kOut : State::kIn;
}

// What a worker says is missing makes more room for itself alone, which it could also have asked
// for. Twice as much each time, as what is free may be in pieces that are too small.
bool Residency::needs_besides(Tenant& t, const ByGpu<uint64_t>& missing, Nanoseconds now) {
  bool more = false;
  for (const auto& [gpu, bytes] : missing) {
    if (bytes == 0) continue;
    uint64_t& besides = t.besides[gpu];
    const uint64_t before = besides;
    const uint64_t most = at(t.claim.promised, gpu);
    besides = std::min(before + std::min(std::max(before, bytes), most), most);
    more |= besides > before;
  }
  if (more) t.besides_until = now + settings_.again;
  return more;
}

void Residency::keeps(uint32_t tenant, uint64_t bytes) {
  const auto found = tenants_.find(tenant);
  if (found != tenants_.end()) found->second.kept = bytes;
}

void Residency::moved(uint32_t tenant, const ByGpu<uint64_t>& out, const std::string& why_not,
                      const ByGpu<uint64_t>& missing, Nanoseconds now) {
  const auto known = tenants_.find(tenant);
  if (known == tenants_.end()) return;
  Tenant& t = known->second;
  const bool was_going = t.state == State::kGoingOut, was_coming = t.state == State::kComingIn;
  const ByGpu<uint64_t> going = t.going;
  found(tenant, out, now);
  t.stuck.clear();
  t.retries = false;
  if (!why_not.empty()) {
    t.retries = was_coming && needs_besides(t, missing, now);
    t.not_before = now + (t.retries ? settings_.retry : settings_.again);
    if (was_coming) t.figures.why = why_not;
    refusal_ = why_not;
    refused_until_ = now + settings_.again;
    return;
  }
  if (was_going || was_coming) ++t.figures.moves;
  if (was_going)
    for (const auto& [gpu, bytes] : going)
      if (at(out, gpu) < bytes) t.stuck[gpu] = less(t.uses[gpu].taken, at(out, gpu));
  if (was_coming && t.state == State::kIn) stay(tenant, now);
}

void Residency::see(uint32_t tenant, const ByGpu<MemoryUse>& uses, bool waits, bool works,
                    Nanoseconds now) {
  const auto found = tenants_.find(tenant);
  if (found == tenants_.end()) return;
  Tenant& t = found->second;
  count(t, now);
  const ByGpu<MemoryUse> before = std::exchange(t.uses, uses);
  t.waits = waits;
  // Until it is in, it has what was set aside for it, whatever it asks for meanwhile.
  if (t.state == State::kComingIn)
    for (auto& [gpu, use] : t.uses)
      if (const auto had = before.find(gpu); had != before.end()) use.room = had->second.room;
  // A page is its worker's word: it wants no more than it was promised, and harms nobody by it.
  for (auto& [gpu, use] : t.uses) {
    const uint64_t bound = 2 * at(t.claim.promised, gpu);  // code is charged besides
    use.taken = std::min(use.taken, bound);
    use.asked = std::min(use.asked, bound - use.taken);
    if (!bounded(gpu)) use.room = use.taken + use.asked;
  }
  if (works) t.active_at = now;
  if (!t.lacks() && !t.moves()) {
    t.waits_since = t.moving_for = 0;
    t.figures.why.clear();
  } else if (t.waits_since == 0 && t.lacks()) {
    t.waits_since = now;
  }
}

bool Residency::granted(uint32_t tenant) const {
  const auto found = tenants_.find(tenant);
  if (found == tenants_.end()) return true;
  const Tenant& t = found->second;
  if (t.state != State::kComingIn) return t.state == State::kIn && !t.lacks();
  return std::ranges::all_of(t.uses, [](const auto& each) {
    return each.second.taken + each.second.asked <= each.second.room;
  });
}

bool Residency::idle(const Tenant& t, Nanoseconds now) const {
  return !t.lacks() && now - t.active_at >= settings_.idle;
}

// 0: it is not idle; the higher, the longer it has been. Who of a class goes is the same to them.
int Residency::idle_class(const Tenant& t, Nanoseconds now) const {
  if (!idle(t, now)) return 0;
  const auto times = static_cast<uint64_t>((now - t.active_at) / std::max(settings_.idle, kLeast));
  return 1 + static_cast<int>(std::bit_width(times | 1) - 1) / kClassBits;
}

// `ever`: not now, but when its time is over.
bool Residency::may_go(const Tenant& t, const Tenant& other, Nanoseconds now, bool ever) const {
  if (&t == &other || t.claim.away) return false;
  if (ever) return t.claim.priority <= other.claim.priority || now - t.active_at > kRests;
  if (t.moves() || now < t.not_before) return false;
  if (idle(t, now)) return true;
  return t.claim.priority <= other.claim.priority && (t.lacks() || now >= t.stays_until);
}

ByGpu<uint64_t> Residency::shortage(const Tenant& t, bool soon, bool all) const {
  ByGpu<uint64_t> lacks;
  for (const auto& [gpu, use] : t.uses) {
    if (!bounded(gpu)) continue;
    uint64_t taken = wanted(t, gpu) + at(t.claim.fixed, gpu);
    if (t.is_out()) taken += at(t.besides, gpu);
    for (const auto& [id, other] : tenants_) {
      if (&other == &t) continue;
      const uint64_t goes = soon && other.state == State::kGoingOut ? at(other.going, gpu) : 0;
      taken += less(held(other, gpu), less(goes, at(other.out, gpu)));
    }
    const uint64_t there = less(gpus_.at(gpu), all ? 0 : at(margins_, gpu));
    if (taken > there) lacks[gpu] = taken - there;
  }
  return lacks;
}

// It could never have what is promised, were the margin left free.
bool Residency::needs_all(uint32_t id, Nanoseconds now) const {
  const ByGpu<uint64_t> lacks = shortage(tenants_.at(id), true, false);
  return !lacks.empty() && victims(id, lacks, now, true).empty();
}

std::map<uint32_t, ByGpu<uint64_t>> Residency::victims(uint32_t id, const ByGpu<uint64_t>& lacks,
                                                       Nanoseconds now, bool ever) const {
  const Tenant& wanting = tenants_.at(id);
  std::vector<std::pair<uint32_t, const Tenant*>> able;
  for (const auto& [each, t] : tenants_)
    if (may_go(t, wanting, now, ever)) able.emplace_back(each, &t);
  // The idle ones, the longest first, and of those that are so about as long who has host memory
  // for what is to move; then lower priority, who waits himself, who pauses, and the longest idle.
  const auto order = [&](const auto& each) {
    const Tenant& t = *each.second;
    const int idle = idle_class(t, now);
    uint64_t moves = 0;
    for (const auto& [gpu, missing] : lacks) moves += std::min(movable(t, gpu, ever), missing);
    const bool pauses = now - t.active_at >= kPauses;
    return std::tuple(-idle, idle ? 0 : t.claim.priority, !t.lacks(), !pauses,
                      pauses && t.kept < moves, t.active_at, each.first);
  };
  std::ranges::sort(able, {}, order);
  std::map<uint32_t, ByGpu<uint64_t>> chosen;
  for (auto [gpu, missing] : lacks) {
    for (const auto& [each, t] : able) {
      const uint64_t given = std::min(movable(*t, gpu, ever), missing);
      if (given == 0) continue;
      chosen[each][gpu] = at(t->out, gpu) + given;
      missing -= given;
    }
    if (missing > 0) return {};
  }
  return chosen;
}

bool Residency::finds_room(uint32_t id, Nanoseconds now) const {
  const ByGpu<uint64_t> lacks = shortage(tenants_.at(id), true, false);
  return lacks.empty() || !victims(id, lacks, now, false).empty();
}

// Of those that lack memory: higher priority first, then who has come in and needs a little more
// in his stay, then who has waited longest. Were it by waiting alone, all that one has would go out
// and come in again for each little that he takes, as a program does at its beginning.
std::vector<uint32_t> Residency::in_order(Nanoseconds now) const {
  std::vector<std::tuple<uint32_t, bool, Nanoseconds, uint32_t>> order;
  for (const auto& [id, t] : tenants_)
    if (t.lacks())
      order.emplace_back(~t.claim.priority, !(t.stays(now) && finds_room(id, now)), t.waits_since,
                         id);
  std::ranges::sort(order);
  std::vector<uint32_t> ids;
  for (const auto& each : order) ids.push_back(std::get<3>(each));
  return ids;
}

void Residency::grant(Tenant& t) {
  for (auto& [gpu, use] : t.uses) use.room = std::max(use.room, use.taken + use.asked);
  t.waits_since = 0;
  t.figures.why.clear();
}

// By its share among those that work or wait beside it, so that shares are kept over many stays.
void Residency::stay(uint32_t id, Nanoseconds now) {
  Tenant& t = tenants_.at(id);
  if (t.moving_for == 0) return;
  uint32_t least = t.claim.percent;
  for (const auto& [each, other] : tenants_)
    if (!other.claim.away && !idle(other, now) &&
        std::ranges::any_of(other.uses,
                            [&](const auto& use) { return t.uses.contains(use.first); }))
      least = std::min(least, other.claim.percent);
  const Nanoseconds took = now - std::exchange(t.moving_for, 0);
  const Nanoseconds stays = settings_.stay * took * t.claim.percent / std::max(least, 1u);
  // What is moved for it in its stay makes that longer, as far as a stay may last.
  if (!t.stays(now)) t.stay_began = t.stays_until = now;
  t.stays_until = std::min(t.stays_until + stays, t.stay_began + settings_.longest_stay);
}

void Residency::serve(uint32_t id, ByGpu<bool>* closed, std::vector<Move>* moves, Nanoseconds now) {
  Tenant& t = tenants_.at(id);
  const auto close = [&] {
    for (const auto& [gpu, use] : t.uses) (*closed)[gpu] = true;
  };
  if (now < t.not_before && t.is_out()) {
    if (t.retries) close();
    return;  // it says why
  }
  t.figures.why = now < refused_until_ ? refusal_ : kLater;
  // While nobody moves for it, it only waits: that does not make its stay longer.
  if (std::ranges::any_of(t.uses, [&](const auto& use) { return closed->contains(use.first); })) {
    t.moving_for = 0;
    return;
  }
  const bool all = needs_all(id, now);
  if (shortage(t, false, all).empty()) {
    if (t.moving_for == 0) t.moving_for = now;
    if (t.is_out()) {
      moves->push_back({id, false, {}});
      t.state = State::kComingIn;
      t.figures.why = kMade;
      for (auto& [gpu, use] : t.uses) use.room = std::max(use.room, use.taken + use.asked);
      return;
    }
    grant(t);
    return stay(id, now);
  }
  const ByGpu<uint64_t> lacks = shortage(t, true, all);
  if (!lacks.empty()) {
    const auto going = victims(id, lacks, now, false);
    if (going.empty()) {
      t.moving_for = 0;
      if (!victims(id, lacks, now, true).empty())
        close();
      else if (now >= t.besides_until && !t.besides.empty())
        t.besides.clear();  // what it found missing may be there by now
      else
        t.figures.why = kNever;  // nobody has to wait for it
      return;
    }
    for (const auto& [each, bytes] : going) {
      Tenant& victim = tenants_.at(each);
      victim.state = State::kGoingOut;
      victim.going = bytes;
      moves->push_back({each, true, bytes});
    }
  }
  if (t.moving_for == 0) t.moving_for = now;
  t.figures.why = kMade;
  close();
}

std::vector<Move> Residency::step(Nanoseconds now) {
  std::vector<Move> moves;
  ByGpu<bool> closed;
  for (const uint32_t id : in_order(now))
    if (tenants_.at(id).lacks()) serve(id, &closed, &moves, now);  // it may have been a victim
  next_look_ = kForever;
  for (const auto& [id, t] : tenants_) {
    if (!bounded_.empty()) next_look_ = std::min(next_look_, now + settings_.look_idle);
    if (t.lacks()) next_look_ = std::min(next_look_, now + settings_.look);
  }
  return moves;
}

MemoryFigures Residency::figures(uint32_t tenant, Nanoseconds now) const {
  const auto found = tenants_.find(tenant);
  if (found == tenants_.end()) return {};
  Tenant t = found->second;
  count(t, now);
  for (const auto& [gpu, use] : t.uses) {
    t.figures.out += at(t.out, gpu);
    t.figures.resident += less(use.taken, at(t.out, gpu));
  }
  return t.figures;
}

}  // namespace sluice::arbiter
