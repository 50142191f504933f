// SPDX-License-Identifier: Apache-2.0
#include "worker/merge/recogniser.h"

#include <algorithm>

namespace sluice::worker::merge {

namespace {
// One of so many commands ends a piece, whatever came before the two ahead of it.
constexpr uint64_t kEndsOneIn = 24;
}  // namespace

Recogniser::Recogniser() : tables_(std::make_unique<Tables>()) {}

uint64_t Recogniser::expected(uint64_t key) const {
  const uint64_t begins = mix(before_, key);
  const Follower& f = tables_->followers[begins % kFollowers];
  return f.begins == begins ? f.name : 0;
}

uint32_t Recogniser::times(uint64_t name) const {
  for (const Entry& e : tables_->seen[name % kSets])
    if (e.name == name) return e.times;
  return 0;
}

std::optional<PieceSeen> Recogniser::push(uint64_t key, bool prepares) {
  if (length_ == 0) {
    begins_ = mix(before_, key);
    chain_ = 0;
    last_ = last_but_one_ = 0;
  }
  chain_ = mix(chain_ + 1, key);
  const uint64_t three = mix(mix(last_but_one_, last_), key);
  last_but_one_ = last_;
  last_ = key;
  ++length_;
  const uint32_t most = since_boundary_ == 0 ? kFirst : since_boundary_ == 1 ? kSecond : kLongest;
  if (prepares && length_ < kLongestOfAll) return {};
  if (length_ < most && (length_ < kShortest || (three >> 32) % kEndsOneIn != 0)) return {};
  return end();
}

std::optional<PieceSeen> Recogniser::boundary() {
  std::optional<PieceSeen> ended;
  if (length_ >= kShortest) ended = end();
  length_ = 0;
  since_boundary_ = 0;
  before_ = 0;
  return ended;
}

PieceSeen Recogniser::end() {
  const uint64_t name = chain_ ? chain_ : 1;
  ++pieces_;
  Entry& e = place_of(name);
  const bool came_before = e.name == name;
  if (!came_before) e = {name, 0, 0};
  e.times = std::min(e.times + 1, 1u << 30);
  e.used = pieces_;
  tables_->followers[begins_ % kFollowers] = {begins_, name};
  const PieceSeen seen{name, length_, e.times};
  before_ = name;
  length_ = 0;
  ++since_boundary_;
  judge(came_before);
  return seen;
}

// Its own, or that of whoever came once only, or else longest ago.
Recogniser::Entry& Recogniser::place_of(uint64_t name) {
  auto& set = tables_->seen[name % kSets];
  Entry* worst = &set[0];
  for (Entry& e : set) {
    if (e.name == name) return e;
    const auto rank = [](const Entry& x) { return std::pair(x.times > 1, x.used); };
    if (rank(e) < rank(*worst)) worst = &e;
  }
  return *worst;
}

void Recogniser::judge(bool came_before) {
  if (came_before) {
    news_ = 0;
    patience_ = kPatience;
    sleep_ = kFirstSleep;
    return;
  }
  if (++news_ < patience_) return;
  news_ = 0;
  patience_ = std::max(patience_ / 2, kLeastPatience);
  asleep_ = sleep_;
  sleep_ = std::min(sleep_ * 2, kLongestSleep);
  boundary();
}

}  // namespace sluice::worker::merge
