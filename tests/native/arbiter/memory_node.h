// SPDX-License-Identifier: Apache-2.0
// A node whose GPU is promised more than once, of simulated time: sessions that take memory and
// work on it, host memory, and moves that take as long as their bytes, between them and the policy.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

#include "arbiter/residency.h"

namespace sluice::test {

using arbiter::ByGpu;
using arbiter::MemoryClaim;
using arbiter::MemoryUse;
using arbiter::Move;
using arbiter::Nanoseconds;

constexpr uint64_t kGib = 1ull << 30;
constexpr Nanoseconds kMs = 1'000'000, kSec = 1'000'000'000;

struct MemorySession {
  uint64_t promised = 0;
  uint64_t taken = 0, asked = 0, room = 0, out = 0, staying = 0;
  uint64_t kept = 0;  // host memory that it has beside what is out
  Nanoseconds kept_since = 0;
  uint32_t priority = 0, percent = 100;
  // Works for ever, or at times: so long, with pauses of this mean.
  bool busy = false;
  Nanoseconds work = 0, pause = 0;
  Nanoseconds wakes = 0, until = 0;  // of one that works at times
  Nanoseconds asked_at = 0;          // since when it has work and waits
  bool stands = false;               // it is being moved, or is out
  bool stubborn = false;             // it does not come to a stop
  bool lies = false;                 // it never comes in, as all that there is were missing
  Nanoseconds worked = 0, waited = 0;
  std::vector<Nanoseconds> answers;  // from work to its end
  int moved_out = 0, moved_in = 0;
  bool has_work(Nanoseconds now) const { return busy || (work && now >= wakes); }
  bool has_memory() const { return !stands && taken + asked <= room; }
};

class MemoryNode {
 public:
  explicit MemoryNode(uint64_t bytes, const arbiter::ResidencySettings& settings = {})
      : policy(settings), bytes_(bytes) {
    policy.set_gpu(0, bytes);
  }

  uint32_t add(uint64_t gib, uint32_t priority = 0, uint32_t percent = 100) {
    const uint32_t id = next_++;
    MemorySession& s = sessions[id];
    s.promised = gib * kGib;
    s.priority = priority;
    s.percent = percent;
    claim(id, false);
    return id;
  }
  uint32_t add_full(uint64_t gib, uint32_t priority = 0, uint32_t percent = 100) {
    const uint32_t id = add(gib, priority, percent);
    sessions[id].asked = gib * kGib;
    return id;
  }
  void claim(uint32_t id, bool away) {
    const MemorySession& s = sessions.at(id);
    policy.claim(id, MemoryClaim{s.priority, s.percent, away, {{0, s.promised}}, {}}, now);
  }
  void remove(uint32_t id) {
    policy.remove(id);
    sessions.erase(id);
    std::erase_if(moves_, [&](const auto& each) { return each.move.tenant == id; });
  }

  void run(Nanoseconds time) {
    for (const Nanoseconds end = now + time; now < end; now += kStep) step();
  }

  void step() {
    finish_moves();
    for (auto& [id, s] : sessions)
      if (!policy.bounded(0)) s.room = s.taken + s.asked;
    for (auto& [id, s] : sessions) advance(s);
    for (auto& [id, s] : sessions) {
      const bool waits = s.has_work(now) && !s.has_memory();
      const uint64_t asks = s.has_work(now) ? s.asked : 0;
      s.room = std::min(s.room, s.taken + asks);
      policy.see(id, ByGpu<MemoryUse>{{0, {s.taken, asks, s.staying, s.room}}}, waits && s.stands,
                 s.has_work(now) && s.has_memory(), now);
    }
    for (const Move& move : policy.step(now)) begin(move);
    for (auto& [id, s] : sessions)
      if (policy.granted(id)) s.room = std::max(s.room, s.taken + (s.has_work(now) ? s.asked : 0));
    check();
  }

  uint64_t resident() const {
    uint64_t sum = 0;
    for (const auto& [id, s] : sessions) sum += s.taken - s.out;
    return sum;
  }

  arbiter::Residency policy;
  std::map<uint32_t, MemorySession> sessions;
  Nanoseconds now = kSec;
  Nanoseconds gib_takes = 20 * kMs;  // to move
  Nanoseconds made_takes = 0;        // a GiB of host memory that is made for who moves, besides
  Nanoseconds move_takes = 0;        // in any case
  // For what is out and what sessions keep when they are in again: who has kept it the longest
  // gives it up where more is needed. The policy hears of it where `tells`.
  uint64_t host = 0;
  bool tells = true;
  uint64_t uncounted = 0;  // that is taken on the GPU, and nobody has booked
  int moves = 0, no_room = 0;

 private:
  static constexpr Nanoseconds kStep = kMs;
  struct UnderWay {
    Move move;
    Nanoseconds ends;
    uint64_t bytes;  // out in all, then
    bool failed = false;
    uint64_t missing = 0;  // with that
    uint64_t came = 0;     // in
  };

  void advance(MemorySession& s) {
    if (!s.has_work(now)) return;
    if (!s.has_memory()) {
      s.waited += kStep;
      return;
    }
    s.taken += std::exchange(s.asked, 0);
    s.worked += kStep;
    if (s.busy) return;
    if (s.until == 0) s.until = now + s.work;
    if (now < s.until) return;
    s.answers.push_back(now - s.wakes);
    s.until = 0;
    s.wakes = now + static_cast<Nanoseconds>(std::exponential_distribution<>(
                        1.0 / static_cast<double>(s.pause))(random_));
  }

  void begin(const Move& move) {
    MemorySession& s = sessions.at(move.tenant);
    if (move.out && s.stubborn) return moves_.push_back({move, now + kMs, s.out, true});
    if (!move.out && s.lies) return moves_.push_back({move, now + 20 * kMs, s.out, true, ~0ull});
    const uint64_t needs = resident() + uncounted + s.out;
    if (!move.out && needs > bytes_)
      return moves_.push_back({move, now + 20 * kMs, s.out, true, needs - bytes_});
    s.stands = true;
    const uint64_t most = s.taken - s.staying;
    const uint64_t out = move.out ? std::min(std::max(move.bytes.at(0), s.out), most) : 0;
    const uint64_t moved = move.out ? out - s.out : s.out;
    const uint64_t made = move.out ? moved - std::min(moved, s.kept) : 0;
    const double takes = gib_of(moved) * static_cast<double>(gib_takes) +
                         gib_of(made) * static_cast<double>(made_takes);
    moves_.push_back({move, now + move_takes + static_cast<Nanoseconds>(takes), out});
    moves_.back().came = move.out ? 0 : moved;
    if (move.out) keep(s, move.tenant, s.kept - std::min(moved, s.kept));
    on_their_way_ += move.out ? moved : 0;
    if (!move.out) s.out = 0;  // its place is taken from the beginning
    make_host_room(move.tenant);
  }

  static double gib_of(uint64_t bytes) {
    return static_cast<double>(bytes) / static_cast<double>(kGib);
  }

  void keep(MemorySession& s, uint32_t id, uint64_t bytes) {
    s.kept = bytes;
    s.kept_since = now;
    if (tells) policy.keeps(id, bytes);
  }

  // Of all but the one that moves.
  void make_host_room(uint32_t moving) {
    for (;;) {
      uint64_t used = on_their_way_;
      MemorySession* oldest = nullptr;
      uint32_t which = 0;
      for (auto& [id, s] : sessions) {
        used += s.out + s.kept;
        if (id == moving || s.kept == 0 || (oldest && oldest->kept_since <= s.kept_since)) continue;
        oldest = &s;
        which = id;
      }
      if (used <= host || !oldest) return;
      keep(*oldest, which, oldest->kept - std::min(oldest->kept, used - host));
    }
  }

  void finish_moves() {
    for (size_t i = 0; i < moves_.size();) {
      if (now < moves_[i].ends) {
        ++i;
        continue;
      }
      const UnderWay done = moves_[i];
      moves_.erase(moves_.begin() + static_cast<std::ptrdiff_t>(i));
      MemorySession& s = sessions.at(done.move.tenant);
      if (done.failed) {
        no_room += done.missing > 0;
        policy.moved(done.move.tenant, {{0, s.out}},
                     done.missing ? "there is less room than is counted" : "it does not stop",
                     {{0, done.missing}}, now);
        continue;
      }
      if (done.move.out) on_their_way_ -= done.bytes - s.out;
      s.out = done.bytes;
      s.stands = done.move.out;
      if (!done.move.out && host) keep(s, done.move.tenant, s.kept + done.came);
      make_host_room(done.move.tenant);
      ++(done.move.out ? s.moved_out : s.moved_in);
      ++moves;
      policy.moved(done.move.tenant, {{0, s.out}}, "", {}, now);
    }
  }

  // Never more on the GPU than it has.
  void check() {
    uint64_t sum = 0;
    for (const auto& [id, s] : sessions) sum += s.out ? s.taken - s.out : std::max(s.taken, s.room);
    if (!policy.bounded(0)) return;
    EXPECT_LE(sum, bytes_) << "at " << now / kMs << " ms";
  }

  const uint64_t bytes_;
  uint64_t on_their_way_ = 0;  // out
  uint32_t next_ = 1;
  std::mt19937 random_{11};
  std::vector<UnderWay> moves_;
};

}  // namespace sluice::test
