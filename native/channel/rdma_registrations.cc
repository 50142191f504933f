// SPDX-License-Identifier: Apache-2.0
#include "channel/rdma_registrations.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "channel/rdma_verbs.h"

namespace sluice::channel {

RdmaRegistrations::RdmaRegistrations(const Verbs& verbs, ibv_pd* domain, Use use)
    : verbs_(verbs), domain_(domain), use_(std::move(use)), owner_(getpid()) {
  all_.reserve(kMost);
  OwnMemory::join(this);
}

void RdmaRegistrations::end() { OwnMemory::leave(this); }

RdmaRegistrations::~RdmaRegistrations() {
  end();
  for (Registered& r : all_)
    if (r.region) drop(r);
}

size_t RdmaRegistrations::count() const {
  std::lock_guard lock(mutex_);
  return static_cast<size_t>(
      std::count_if(all_.begin(), all_.end(), [](const Registered& r) { return r.region; }));
}

bool RdmaRegistrations::find(const void* at, size_t bytes, For what, Source* source) {
  const auto address = reinterpret_cast<uint64_t>(at);
  bool good = false;
  // The range stays until it is registered, so that nothing is that was freed meanwhile.
  OwnMemory::with(at, bytes, [&](const OwnMemory::Range& range) {
    std::lock_guard lock(mutex_);
    const uint64_t begin = range.begin + (address - range.begin) / kPiece * kPiece;
    Registered* const r = registered(
        address, begin, std::min<uint64_t>(kPiece, range.begin + range.bytes - begin), what);
    if (!r) return;
    r->used_at = ++uses_;
    if (what == For::kSending) r->needed_until = ~uint64_t{0};  // until used()
    const uint64_t there = r->begin + r->bytes - address;
    *source = {static_cast<size_t>(std::min<uint64_t>(bytes, there)),
               what == For::kSending ? r->region->lkey : r->region->rkey,
               static_cast<size_t>(r - all_.data())};
    good = true;
  });
  return good;
}

void RdmaRegistrations::used(const Source& source, uint64_t number) {
  std::lock_guard lock(mutex_);
  if (source.place < all_.size()) all_[source.place].needed_until = number;
}

// mutex_ held.
RdmaRegistrations::Registered* RdmaRegistrations::registered(uint64_t at, uint64_t begin,
                                                             uint64_t bytes, For what) {
  for (Registered& r : all_)
    if (r.region && r.what == what && at >= r.begin && at - r.begin < r.bytes) return &r;
  if (refused_) return nullptr;
  Registered* const place = free_place();
  if (!place) return nullptr;
  // What is sent is only read, and registered for writing on this side all the same: pages that are
  // registered for reading alone may be shared ones, which a later write of the program's replaces.
  const int access = IBV_ACCESS_LOCAL_WRITE | (what == For::kPlacing ? IBV_ACCESS_REMOTE_WRITE : 0);
  ibv_mr* const region = (verbs_.ibv_reg_mr)(domain_, reinterpret_cast<void*>(begin),
                                             static_cast<size_t>(bytes), access);
  if (!region) {
    refused_ = true;
    return nullptr;
  }
  *place = {begin, bytes, what, region, 0, 0};
  return place;
}

// mutex_ held. That of the one used longest ago, if there is none else. nullptr: all are in use.
RdmaRegistrations::Registered* RdmaRegistrations::free_place() {
  for (Registered& r : all_)
    if (!r.region) return &r;
  if (all_.size() < kMost) return &all_.emplace_back();
  Registered* oldest = nullptr;
  for (Registered& r : all_)
    if ((!oldest || r.used_at < oldest->used_at) && !is_needed(r)) oldest = &r;
  if (oldest) drop(*oldest);
  return oldest;
}

bool RdmaRegistrations::is_needed(const Registered& r) const {
  return r.what == For::kSending ? !use_.passed(r.needed_until, false) : use_.expects();
}

void RdmaRegistrations::drop(Registered& r) {
  verbs_.ibv_dereg_mr(r.region);
  r = {};
}

void RdmaRegistrations::let_go(const OwnMemory::Range& range) {
  if (getpid() != owner_) return;
  std::lock_guard lock(mutex_);
  for (Registered& r : all_) {
    if (!r.region || r.begin < range.begin || r.begin - range.begin >= range.bytes) continue;
    use_.passed(r.needed_until, true);
    drop(r);
  }
  refused_ = false;  // there is room for others
}

}  // namespace sluice::channel
