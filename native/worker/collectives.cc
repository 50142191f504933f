// SPDX-License-Identifier: Apache-2.0
#include "worker/collectives.h"

#include <algorithm>

#include "worker/turn_keeper.h"

namespace sluice::worker {

namespace {

constexpr size_t kMostInGraph = 4096;

// FNV-1a. Whoever could make two communicators have one name is of the job that it disturbs.
class Name {
 public:
  Name& operator<<(uint64_t value) {
    for (int i = 0; i < 64; i += 8) byte(static_cast<uint8_t>(value >> i));
    return *this;
  }
  Name& operator<<(std::span<const std::byte> bytes) {
    for (const std::byte b : bytes) byte(static_cast<uint8_t>(b));
    return *this;
  }
  // Never 0. The halves are mixed, as the page has the last bits of a name only.
  uint64_t get() const { return std::max<uint64_t>(hash_ ^ hash_ >> 32, 1); }

 private:
  void byte(uint8_t b) { hash_ = (hash_ ^ b) * 0x100000001b3; }
  uint64_t hash_ = 0xcbf29ce484222325;
};

enum Kind : uint64_t { kSplit = 1, kShrunk, kBetween };

uint64_t as_number(int value) { return static_cast<uint64_t>(static_cast<int64_t>(value)); }

}  // namespace

uint64_t Collectives::named(std::span<const std::byte> unique_ids) {
  return (Name{} << unique_ids).get();
}

uint64_t Collectives::split(uint64_t parent, int color) {
  std::lock_guard lock(mutex_);
  const auto found = communicators_.find(parent);
  if (found == communicators_.end()) return 0;
  Communicator& c = found->second;
  return (Name{} << c.name << kSplit << ++c.splits << as_number(color)).get();
}

uint64_t Collectives::shrunk(uint64_t parent, std::vector<int> excluded) {
  std::lock_guard lock(mutex_);
  const auto found = communicators_.find(parent);
  if (found == communicators_.end()) return 0;
  std::ranges::sort(excluded);
  Name without;
  for (const int rank : excluded) without << as_number(rank);
  const uint64_t times = ++found->second.shrunk[without.get()];
  return (Name{} << found->second.name << kShrunk << without.get() << times).get();
}

// Its place is there before its first collective: until then it has issued fewer than others.
void Collectives::made(uint64_t communicator, uint64_t name, int rank) {
  std::lock_guard lock(mutex_);
  if (!turns_ || name == 0 || communicators_.size() >= kMost) return;
  communicators_[communicator] = {name, rank, 0, {}};
  if (Count* count = find({communicator, name})) show({communicator, name}, *count);
}

void Collectives::ended(uint64_t communicator) {
  std::lock_guard lock(mutex_);
  if (communicators_.erase(communicator) == 0) return;
  const auto first = counts_.lower_bound({communicator, 0});
  auto last = first;
  for (; last != counts_.end() && last->first.communicator == communicator; ++last)
    hide(last->second);
  counts_.erase(first, last);
}

Collectives::One Collectives::collective(uint64_t communicator) {
  std::lock_guard lock(mutex_);
  const auto found = communicators_.find(communicator);
  return found == communicators_.end() ? One{} : One{communicator, found->second.name};
}

Collectives::One Collectives::between(uint64_t communicator, int peer, bool sends) {
  std::lock_guard lock(mutex_);
  const auto found = communicators_.find(communicator);
  if (found == communicators_.end() || found->second.rank < 0) return {};
  const auto& [name, rank, splits, shrunk] = found->second;
  const int from = sends ? rank : peer, to = sends ? peer : rank;
  return {communicator, (Name{} << name << kBetween << as_number(from) << as_number(to)).get()};
}

Collectives::One Collectives::sent(uint64_t communicator, int to) {
  return between(communicator, to, true);
}

Collectives::One Collectives::received(uint64_t communicator, int from) {
  return between(communicator, from, false);
}

Collectives::Count* Collectives::find(const One& one) {
  if (const auto found = counts_.find(one); found != counts_.end()) return &found->second;
  return counts_.size() < kMost ? &counts_[one] : nullptr;
}

void Collectives::hide(Count& count) {
  if (count.place == kNowhere) return;
  turns_->page()->issued[count.place].communicator.store(0, std::memory_order_release);
  places_.erase(count.place);
  count.place = kNowhere;
}

// In a place of its own, or that of the one that was counted longest ago.
void Collectives::show(const One& one, Count& count) {
  arbiter::TurnPage* page = turns_->page();
  if (places_.size() == arbiter::kPlaces) {
    const auto oldest = std::ranges::min_element(
        places_, {}, [&](const auto& each) { return counts_.at(each.second).used; });
    hide(counts_.at(oldest->second));
  }
  size_t place = 0;
  for (const auto& [taken, of] : places_)
    if (taken == place) ++place;
  count.place = place;
  places_[place] = one;
  arbiter::Issued& shown = page->issued[place];
  shown.count.store(count.issued, std::memory_order_relaxed);
  shown.communicator.store(one.name, std::memory_order_release);
  const auto used = static_cast<uint32_t>(places_.rbegin()->first + 1);
  if (page->places.load(std::memory_order_relaxed) < used)
    page->places.store(used, std::memory_order_release);
}

void Collectives::add_to(const One& one, uint64_t times, bool back) {
  Count* count = communicators_.contains(one.communicator) ? find(one) : nullptr;
  if (!count) return;
  count->issued += back ? -times : times;
  count->used = ++now_;
  if (count->place == kNowhere) show(one, *count);
  turns_->page()->issued[count->place].count.store(count->issued, std::memory_order_seq_cst);
}

void Collectives::issue(const One& one, uint64_t times) {
  if (!turns_ || one.communicator == 0) return;
  {
    std::lock_guard lock(mutex_);
    add_to(one, times, false);
  }
  turns_->counted();
}

void Collectives::issue(const Many& all) {
  if (!turns_ || all.empty()) return;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [one, times] : all) add_to(one, times, false);
  }
  turns_->counted();
}

void Collectives::take_back(const Many& all) {
  if (!turns_ || all.empty()) return;
  std::lock_guard lock(mutex_);
  for (const auto& [one, times] : all) add_to(one, times, true);
}

void Collectives::add(Many* to, const One& one, uint64_t times) {
  if (one.communicator == 0) return;
  const auto at = std::ranges::find(*to, one, &Many::value_type::first);
  if (at != to->end())
    at->second += times;
  else if (to->size() < kMostInGraph)
    to->emplace_back(one, times);
}

void Collectives::add(Many* to, const Many& all) {
  for (const auto& [one, times] : all) add(to, one, times);
}

}  // namespace sluice::worker
