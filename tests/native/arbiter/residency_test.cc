// SPDX-License-Identifier: Apache-2.0
// Whose memory is on a GPU that is promised more than once, on a simulated node. All figures are of
// simulated time: the same in every run, on every machine.
#include "arbiter/residency.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/native/arbiter/memory_node.h"

namespace sluice::test {
namespace {

Nanoseconds part(std::vector<Nanoseconds> of, double p) {
  std::ranges::sort(of);
  return of.at(static_cast<size_t>(p * static_cast<double>(of.size() - 1)));
}

TEST(Residency, WhatFitsIsNeverAskedForNorMoved) {
  MemoryNode node(100 * kGib);
  for (int i = 0; i < 4; ++i) node.sessions.at(node.add_full(25)).busy = true;
  EXPECT_FALSE(node.policy.bounded(0));
  node.run(10 * kSec);
  EXPECT_EQ(node.moves, 0);
  for (const auto& [id, s] : node.sessions) EXPECT_EQ(s.waited, 0) << id;
}

TEST(Residency, WhatIsPromisedTwiceAndFitsAllTheSameIsNotMoved) {
  MemoryNode node(100 * kGib);
  for (int i = 0; i < 4; ++i) {
    MemorySession& s = node.sessions.at(node.add(50));
    s.busy = true;
    s.asked = 20 * kGib;
  }
  EXPECT_TRUE(node.policy.bounded(0));
  node.run(10 * kSec);
  EXPECT_EQ(node.moves, 0);
  EXPECT_EQ(node.resident(), 80 * kGib);
}

TEST(Residency, TwoThatDoNotFitTakeTurnsAndMoveATenthOfTheTimeAtMost) {
  MemoryNode node(140 * kGib);
  const uint32_t a = node.add_full(90), b = node.add_full(90);
  node.sessions.at(a).busy = node.sessions.at(b).busy = true;
  node.run(20 * kSec);
  MemorySession &one = node.sessions.at(a), &two = node.sessions.at(b);
  one.worked = two.worked = 0;
  node.run(200 * kSec);
  const double both = static_cast<double>(one.worked + two.worked) / (200.0 * kSec);
  EXPECT_GT(both, 0.88) << "moving takes the rest";
  EXPECT_NEAR(static_cast<double>(one.worked) / static_cast<double>(one.worked + two.worked), 0.5,
              0.06);
  EXPECT_GT(one.moved_in, 3) << "in turns";
  EXPECT_GT(two.moved_in, 3);
}

TEST(Residency, OnlyTheDifferenceIsMoved) {
  MemoryNode node(140 * kGib);
  const uint32_t a = node.add_full(90), b = node.add_full(90);
  node.sessions.at(a).busy = true;
  node.run(kSec);
  node.sessions.at(a).busy = false;
  node.sessions.at(b).busy = true;
  node.run(30 * kSec);
  EXPECT_EQ(node.sessions.at(a).out, 40 * kGib);
  EXPECT_EQ(node.resident(), 140 * kGib);
}

TEST(Residency, SharesAreKeptOverManyStays) {
  MemoryNode node(100 * kGib);
  const uint32_t a = node.add_full(80, 0, 60), b = node.add_full(80, 0, 20);
  node.sessions.at(a).busy = node.sessions.at(b).busy = true;
  node.run(400 * kSec);
  const double ratio = static_cast<double>(node.sessions.at(a).worked) /
                       static_cast<double>(node.sessions.at(b).worked);
  EXPECT_NEAR(ratio, 3.0, 0.45);
}

TEST(Residency, WhoIsIdleGoesFirstTheLongestIdleBeforeTheOthers) {
  MemoryNode node(100 * kGib);
  const uint32_t a = node.add_full(40), b = node.add_full(40), c = node.add_full(40);
  node.sessions.at(a).busy = node.sessions.at(b).busy = true;
  node.run(kSec);
  node.sessions.at(b).busy = false;  // the first that is idle
  node.run(5 * kSec);
  node.sessions.at(a).busy = false;
  node.run(20 * kSec);
  node.sessions.at(c).busy = true;
  node.run(2 * kSec);
  EXPECT_GT(node.sessions.at(b).out, 0u);
  EXPECT_EQ(node.sessions.at(a).out, 0u);
  EXPECT_TRUE(node.sessions.at(c).has_memory());
}

TEST(Residency, HigherPriorityDoesNotMoveForLowerUnlessItIsIdle) {
  MemoryNode node(100 * kGib);
  const uint32_t high = node.add_full(80, 5), low = node.add_full(80, 1);
  node.sessions.at(high).busy = true;
  node.run(kSec);
  node.sessions.at(low).busy = true;
  node.run(300 * kSec);
  EXPECT_EQ(node.sessions.at(high).moved_out, 0);
  EXPECT_EQ(node.sessions.at(low).worked, 0);
  EXPECT_NE(node.policy.figures(low, node.now).why.find("higher priority"), std::string::npos);
  node.sessions.at(high).busy = false;
  node.run(20 * kSec);
  EXPECT_GT(node.sessions.at(low).worked, 0) << "it has been idle for long enough";
  node.sessions.at(high).busy = true;
  node.run(20 * kSec);
  EXPECT_TRUE(node.sessions.at(high).has_memory()) << "and comes back";
}

TEST(Residency, WhoDoesNotStopIsLeftAloneAndAnotherGoes) {
  MemoryNode node(100 * kGib);
  const uint32_t a = node.add_full(50), b = node.add_full(50), c = node.add_full(50);
  node.sessions.at(a).busy = node.sessions.at(b).busy = true;
  node.run(kSec);
  node.sessions.at(a).stubborn = true;
  node.sessions.at(c).busy = true;
  node.run(10 * kSec);
  EXPECT_GT(node.sessions.at(c).worked, 0);
  EXPECT_EQ(node.sessions.at(a).out, 0u);
  EXPECT_GT(node.sessions.at(b).moved_out, 0);
}

TEST(Residency, WhatStaysIsCountedAndWhoCannotComeInIsToldWhy) {
  MemoryNode node(100 * kGib);
  const uint32_t a = node.add_full(60), b = node.add_full(60);
  node.sessions.at(a).staying = 60 * kGib;
  node.sessions.at(a).busy = true;
  node.run(kSec);
  node.sessions.at(a).busy = false;
  node.sessions.at(b).busy = true;
  node.run(60 * kSec);
  EXPECT_EQ(node.sessions.at(b).worked, 0);
  EXPECT_EQ(node.moves, 0);
  EXPECT_NE(node.policy.figures(b, node.now).why, "");
  node.remove(a);
  node.run(kSec);
  EXPECT_GT(node.sessions.at(b).worked, 0);
}

TEST(Residency, WhoWaitsForMemoryHimselfKeepsNobodyOut) {
  MemoryNode node(100 * kGib);
  const uint32_t a = node.add(80), b = node.add(80);
  for (const uint32_t id : {a, b}) {
    node.sessions.at(id).busy = true;
    node.sessions.at(id).asked = 50 * kGib;
  }
  node.run(kSec);
  for (const uint32_t id : {a, b}) node.sessions.at(id).asked = 30 * kGib;  // both want more
  node.run(60 * kSec);
  EXPECT_EQ(node.sessions.at(a).taken, 80 * kGib);
  EXPECT_EQ(node.sessions.at(b).taken, 80 * kGib);
}

// As a program takes memory in its first steps, each little by itself, beside one that works.
TEST(Residency, WhoTakesALittleMoreInHisStayKeepsHisPlace) {
  MemoryNode node(140 * kGib);
  const uint32_t a = node.add(96), b = node.add(96);
  for (const uint32_t id : {a, b}) {
    node.sessions.at(id).busy = true;
    node.sessions.at(id).asked = 88 * kGib;
  }
  node.run(30 * kSec);
  const int before = node.moves;
  for (int i = 0; i < 8; ++i)
    for (const uint32_t id : {a, b}) {
      MemorySession& s = node.sessions.at(id);
      const Nanoseconds worked = s.worked;
      while (s.worked < worked + 100 * kMs) node.run(kMs);
      s.asked = kGib;
      while (s.asked && node.now < 3000 * kSec) node.run(kMs);
      ASSERT_EQ(s.asked, 0u);
    }
  EXPECT_LE(node.moves - before, 4 * 16) << "an exchange for each, and one that makes room";
  for (const uint32_t id : {a, b}) EXPECT_EQ(node.sessions.at(id).taken, 96 * kGib);
}

// Both take without end, as one does who frees and takes in each step.
TEST(Residency, WhoTakesAgainAndAgainHasOneStayAndNoMore) {
  MemoryNode node(100 * kGib);
  const uint32_t a = node.add_full(80), b = node.add_full(80);
  node.sessions.at(a).busy = node.sessions.at(b).busy = true;
  node.run(20 * kSec);
  for (const uint32_t id : {a, b}) node.sessions.at(id).worked = 0;
  for (int i = 0; i < 3000; ++i) {
    node.run(100 * kMs);
    for (const uint32_t id : {a, b}) {
      MemorySession& s = node.sessions.at(id);
      if (!s.has_memory() || s.asked) continue;
      s.taken -= 2 * kGib;
      s.asked = 2 * kGib;
    }
  }
  for (const uint32_t id : {a, b}) {
    const double part = static_cast<double>(node.sessions.at(id).worked) / (300.0 * kSec);
    EXPECT_GT(part, 0.25) << id;
  }
}

TEST(Residency, SomeIsLeftFreeOnlyWhereMoreIsPromisedAndSomebodyCanGoForIt) {
  MemoryNode node(100 * kGib);
  node.policy.set_gpu(0, 100 * kGib, 2 * kGib);
  const uint32_t a = node.add_full(60), b = node.add_full(40);
  node.sessions.at(a).busy = node.sessions.at(b).busy = true;
  node.run(10 * kSec);
  EXPECT_FALSE(node.policy.bounded(0)) << "all that is promised fits";
  EXPECT_EQ(node.moves, 0);
  node.sessions.at(node.add_full(20)).busy = true;
  node.run(60 * kSec);
  EXPECT_GT(node.moves, 0);
  EXPECT_LE(node.resident(), 98 * kGib);
  node.remove(a);
  node.remove(b);
  const uint32_t whole = node.add_full(100);
  node.sessions.at(whole).busy = true;
  node.run(60 * kSec);
  EXPECT_GT(node.sessions.at(whole).worked, 0) << "it was promised all of it";
}

TEST(Residency, WhoFindsLessRoomThanIsCountedHasMoreMade) {
  MemoryNode node(140 * kGib);
  const uint32_t a = node.add_full(90), b = node.add_full(90);
  node.sessions.at(a).busy = true;
  node.run(kSec);
  node.uncounted = 3 * kGib;  // contexts took it
  node.sessions.at(b).busy = true;
  node.run(200 * kSec);
  EXPECT_GT(node.no_room, 0);
  EXPECT_LE(node.no_room, 8) << "it is known from then on";
  for (const uint32_t id : {a, b}) {
    EXPECT_GT(node.sessions.at(id).moved_in, 3) << id;
    EXPECT_GT(node.sessions.at(id).worked, 60 * kSec) << id;
  }
}

TEST(Residency, WhoFindsNoRoomAndHasNobodyToMakeSomeTriesAgain) {
  MemoryNode node(100 * kGib);
  const uint32_t a = node.add_full(80), b = node.add_full(80);
  node.sessions.at(a).busy = true;
  node.run(kSec);
  node.sessions.at(a).busy = false;
  node.sessions.at(b).busy = true;
  node.run(30 * kSec);
  ASSERT_GT(node.sessions.at(b).worked, 0);
  node.remove(b);
  node.uncounted = 60 * kGib;
  node.sessions.at(a).busy = true;
  node.run(30 * kSec);
  EXPECT_FALSE(node.sessions.at(a).has_memory());
  EXPECT_GT(node.no_room, 4);
  EXPECT_LE(node.no_room, 40);
  node.uncounted = 0;  // whoever had it has ended
  node.run(6 * kSec);
  EXPECT_TRUE(node.sessions.at(a).has_memory());
}

// It may have others go out further, as it could by asking for memory; they come back.
TEST(Residency, WhoSaysThatAllIsMissingKeepsNobodyOut) {
  MemoryNode node(100 * kGib);
  const uint32_t a = node.add_full(80), liar = node.add_full(80);
  node.sessions.at(a).busy = node.sessions.at(liar).busy = true;
  node.run(20 * kSec);
  node.sessions.at(liar).lies = true;
  MemorySession& honest = node.sessions.at(a);
  node.run(20 * kSec);
  honest.worked = 0;
  node.run(200 * kSec);
  EXPECT_GT(static_cast<double>(honest.worked) / (200.0 * kSec), 0.3);
  EXPECT_EQ(node.sessions.at(liar).room, node.sessions.at(liar).taken);
}

TEST(Residency, OneThatIsSuspendedWantsNothing) {
  MemoryNode node(100 * kGib);
  const uint32_t a = node.add_full(80), b = node.add_full(80);
  node.sessions.at(a).busy = true;
  node.run(kSec);
  node.claim(a, true);
  MemorySession& s = node.sessions.at(a);
  s.stands = true;
  s.out = s.taken;
  node.policy.moved(a, {{0, s.out}}, "", {}, node.now);
  node.sessions.at(b).busy = true;
  node.run(10 * kSec);
  EXPECT_GT(node.sessions.at(b).worked, 0);
  EXPECT_EQ(node.moves, 0);
  node.claim(a, false);  // it is resumed: it comes in when it is its turn
  node.run(60 * kSec);
  EXPECT_GT(s.moved_in, 0);
}

// `gib` each, at work for 5 % of the time.
void add_notebooks(MemoryNode& node, uint64_t gib, Nanoseconds pause) {
  for (int i = 0; i < 24; ++i) {
    MemorySession& s = node.sessions.at(node.add_full(gib, 0, 4));
    s.work = 200 * kMs;
    s.pause = pause;
    s.wakes = node.now + i * 100 * kMs;
  }
}

std::vector<Nanoseconds> answers_of(const MemoryNode& node) {
  std::vector<Nanoseconds> all;
  for (const auto& [id, s] : node.sessions) {
    EXPECT_GT(s.answers.size(), 20u) << id;
    all.insert(all.end(), s.answers.begin(), s.answers.end());
  }
  return all;
}

// 192 GiB in all.
TEST(Residency, ManyThatAreMostlyIdleHaveTheirMemorySoon) {
  MemoryNode node(140 * kGib);
  add_notebooks(node, 8, 4 * kSec);
  node.run(300 * kSec);
  const std::vector<Nanoseconds> all = answers_of(node);
  EXPECT_LT(part(all, 0.5), 700 * kMs) << "with 0.2 s of work";
  EXPECT_LT(part(all, 0.99), 2200 * kMs);
}

// Host memory for some 14 of 24, of whom 7 or 8 are out.
TEST(Residency, WhoHasHostMemoryGoesBeforeWhoIsIdleAsLong) {
  const auto answers = [](bool tells) {
    MemoryNode node(120 * kGib);
    node.policy.set_idle(kSec);
    node.host = 100 * kGib;
    node.tells = tells;
    node.made_takes = 80 * kMs;
    node.move_takes = 30 * kMs;
    add_notebooks(node, 7, 3800 * kMs);
    node.run(300 * kSec);
    return answers_of(node);
  };
  const Nanoseconds with = part(answers(true), 0.99), without = part(answers(false), 0.99);
  EXPECT_LT(with, 1500 * kMs) << "with 0.2 s of work";
  EXPECT_LT(with, without / 2);
}

TEST(Residency, WhoHasBeenIdleForMuchLongerGoesFirstWhateverOthersHave) {
  MemoryNode node(100 * kGib);
  node.policy.set_idle(kSec);
  const uint32_t old = node.add_full(40), kept = node.add_full(40), next = node.add_full(40);
  node.sessions.at(old).busy = node.sessions.at(kept).busy = true;
  node.run(kSec);
  node.sessions.at(old).busy = false;
  node.run(20 * kSec);
  node.sessions.at(kept).busy = false;
  node.policy.keeps(kept, 40 * kGib);
  node.run(2 * kSec);
  node.sessions.at(next).busy = true;
  node.run(5 * kSec);
  EXPECT_GT(node.sessions.at(old).moved_out, 0);
  EXPECT_EQ(node.sessions.at(kept).moved_out, 0);
}

// Random sizes, priorities, habits, comings and goings: the node checks at each step that no more
// is on the GPU than it has; and in the end all that can be had is had.
class RandomSessions : public testing::TestWithParam<unsigned> {};

TEST_P(RandomSessions, NeverExceedTheGpuAndNobodyIsForgotten) {
  std::mt19937 random(GetParam());
  const auto any = [&](uint64_t from, uint64_t to) {
    return std::uniform_int_distribution<uint64_t>(from, to)(random);
  };
  MemoryNode node(64 * kGib);
  std::vector<uint32_t> there;
  for (int round = 0; round < 60; ++round) {
    if (there.size() < 8 && any(0, 2)) {
      const uint32_t id =
          node.add(any(4, 60), static_cast<uint32_t>(any(0, 2)), static_cast<uint32_t>(any(5, 50)));
      MemorySession& s = node.sessions.at(id);
      s.asked = any(1, s.promised / kGib) * kGib;
      s.busy = any(0, 1);
      s.stubborn = any(0, 9) == 0;
      s.work = any(10, 400) * kMs;
      s.pause = any(100, 20'000) * kMs;
      there.push_back(id);
    } else if (!there.empty() && any(0, 3) == 0) {
      const size_t which = any(0, there.size() - 1);
      node.remove(there[which]);
      there.erase(there.begin() + static_cast<std::ptrdiff_t>(which));
    } else if (!there.empty()) {
      MemorySession& s = node.sessions.at(there[any(0, there.size() - 1)]);
      if (s.has_memory() && any(0, 1)) {
        const uint64_t less = any(0, s.taken / kGib) * kGib;
        s.taken -= less;  // freed
      } else if (s.asked == 0 && s.taken < s.promised) {
        s.asked = any(1, (s.promised - s.taken) / kGib + 1) * kGib;
        s.asked = std::min(s.asked, s.promised - s.taken);
      }
    }
    node.run(static_cast<Nanoseconds>(any(1, 3000)) * kMs);
  }
  // All alike from now on: each has to have its memory again and again.
  for (auto& [id, s] : node.sessions) {
    s.stubborn = false;
    s.busy = true;
    s.priority = 0;
    node.claim(id, false);
    s.worked = 0;
  }
  node.run(600 * kSec);
  for (const auto& [id, s] : node.sessions) EXPECT_GT(s.worked, 0) << id;
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomSessions, testing::Range(1u, 17u));

}  // namespace
}  // namespace sluice::test
