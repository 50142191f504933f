// SPDX-License-Identifier: Apache-2.0
// Shares, credit, debt, caps and gangs on a simulated node. All figures are of simulated time: the
// same in every run, on every machine.
#include "arbiter/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/native/arbiter/node.h"

namespace sluice::test {
namespace {

using arbiter::Decision;
using arbiter::Schedule;
using arbiter::Tenancy;

Program busy(uint32_t percent, Nanoseconds kernel = 100 * kMicrosecond, uint64_t gpus = 1) {
  Program p;
  p.tenancy = {gpus, percent, false};
  p.kernel = kernel;
  return p;
}

Program asking(uint32_t percent, Nanoseconds work, Nanoseconds pause) {
  Program p = busy(percent);
  p.work = work;
  p.pause = pause;
  p.random_pauses = true;
  return p;
}

Nanoseconds worst(std::vector<Nanoseconds> of, double part) {
  std::ranges::sort(of);
  return of.at(static_cast<size_t>(part * static_cast<double>(of.size() - 1)));
}

struct Shares {
  std::vector<uint32_t> percent;
  Nanoseconds kernel;
};

class ShareOf : public testing::TestWithParam<Shares> {};

TEST_P(ShareOf, IsKeptAndNothingIsLost) {
  Node node;
  std::vector<uint32_t> tenants;
  for (const uint32_t percent : GetParam().percent)
    tenants.push_back(node.add(busy(percent, GetParam().kernel)));
  node.run(10 * kSecond);
  for (size_t i = 0; i < tenants.size(); ++i)
    EXPECT_NEAR(node.part(tenants[i]), GetParam().percent[i], 0.3) << i;
  EXPECT_GT(node.busy(), 99.9);
  EXPECT_EQ(node.most_at_once, 1u);
}

INSTANTIATE_TEST_SUITE_P(
    OneGpu, ShareOf,
    testing::Values(Shares{{10, 90}, 5 * kMicrosecond}, Shares{{10, 90}, kMillisecond},
                    Shares{{10, 90}, 5 * kMillisecond}, Shares{{25, 75}, 100 * kMicrosecond},
                    Shares{{50, 50}, 5 * kMillisecond}, Shares{{50, 50}, 5 * kMicrosecond},
                    Shares{{10, 20, 30, 40}, 100 * kMicrosecond},
                    Shares{{10, 20, 30, 40}, 5 * kMillisecond}));

TEST(Schedule, OnePercentIsOne) {
  for (const Nanoseconds kernel : {100 * kMicrosecond, kMillisecond, 5 * kMillisecond}) {
    Node node;
    const uint32_t small = node.add(busy(1, kernel));
    node.add(busy(99, kernel));
    node.run(60 * kSecond);
    EXPECT_GT(node.part(small), 0.9) << kernel;
    EXPECT_LT(node.part(small), 1.1) << kernel;
  }
}

TEST(Schedule, KernelsOfUnlikeLengthsCostTheirTime) {
  Node node;
  const uint32_t a = node.add(busy(50, 20 * kMicrosecond)),
                 b = node.add(busy(50, 40 * kMillisecond));
  node.run(20 * kSecond);
  EXPECT_NEAR(node.part(a), 50, 0.5);
  EXPECT_NEAR(node.part(b), 50, 0.5);
}

TEST(Schedule, WhatOneDoesNotUseTheOthersGetByTheirShares) {
  Node node;
  const uint32_t a = node.add(busy(20)), b = node.add(busy(40));
  Program late = busy(40);
  late.first = 10 * kSecond;
  const uint32_t c = node.add(late);
  node.run(10 * kSecond);
  EXPECT_NEAR(node.part(a), 100 / 3.0, 0.5);
  EXPECT_NEAR(node.part(b), 200 / 3.0, 0.5);
  node.mark();
  node.run(20 * kSecond);
  EXPECT_NEAR(node.part(a), 20, 0.5);
  EXPECT_NEAR(node.part(c), 40, 0.5);
}

TEST(Schedule, WhoIsAloneIsNeverDisturbed) {
  Schedule s({});
  ASSERT_TRUE(s.add(1, {1, 30, false}, 0));
  ASSERT_TRUE(s.add(2, {2, 30, false}, 0));  // on another GPU
  s.wants(1, 5);
  s.wants(2, 5);
  const Decision d = s.step(5);
  ASSERT_EQ(d.begin.size(), 2u);
  for (const auto& turn : d.begin) EXPECT_EQ(turn.until, kForever);
  EXPECT_EQ(d.look_again, kForever);
  EXPECT_TRUE(s.step(3600 * kSecond).call_back.empty());
}

TEST(Schedule, ATurnWithoutEndGetsOneWhenItIsWanted) {
  Schedule s({});
  s.add(1, {1, 50, false}, 0);
  s.add(2, {1, 50, false}, 0);
  s.wants(1, 0);
  ASSERT_EQ(s.step(0).begin.at(0).until, kForever);
  s.wants(2, 10 * kMillisecond);
  const Decision d = s.step(10 * kMillisecond);
  ASSERT_EQ(d.limit.size(), 1u);
  EXPECT_EQ(d.limit[0].tenant, 1u);
  EXPECT_EQ(d.limit[0].until, d.look_again);
  EXPECT_EQ(s.step(d.look_again).call_back, std::vector<uint32_t>{1});
}

TEST(Schedule, CappedIsNeverMoreThanItsShareEvenAlone) {
  Node node;
  Program p = busy(25);
  p.tenancy.capped = true;
  const uint32_t a = node.add(p);
  node.run(10 * kSecond);
  EXPECT_NEAR(node.part(a), 25, 0.3);
  Node crowded;
  const uint32_t b = crowded.add(p), c = crowded.add(busy(75));
  crowded.run(10 * kSecond);
  EXPECT_NEAR(crowded.part(b), 25, 0.5);
  EXPECT_NEAR(crowded.part(c), 75, 0.5);
}

TEST(Schedule, WhoAsksNowAndThenIsAnsweredAtOnce) {
  Node node;
  const uint32_t asks = node.add(asking(30, 2 * kMillisecond, 50 * kMillisecond));
  const uint32_t trains = node.add(busy(70, kMillisecond));
  node.run(60 * kSecond);
  ASSERT_GT(node.answers(asks).size(), 1000u);
  // Its own work, a least turn and a kernel of the other's.
  EXPECT_LE(worst(node.answers(asks), 0.99), 2 * kMillisecond + 3 * kMillisecond);
  EXPECT_GT(node.part(trains), 94);
}

TEST(Schedule, WakingOftenIsNoWayToMore) {
  for (const Nanoseconds pause : {50 * kMicrosecond, 2 * kMillisecond, 10 * kMillisecond}) {
    Node node;
    const uint32_t wakes = node.add(asking(30, 20 * kMillisecond, pause));
    node.add(busy(70));
    node.run(20 * kSecond);
    EXPECT_LT(node.part(wakes), 30.5) << pause;
  }
}

TEST(Schedule, WhoRanAloneOwesNothingForIt) {
  Node node;
  const uint32_t a = node.add(busy(50));
  Program late = busy(50);
  late.first = 30 * kSecond;
  const uint32_t b = node.add(late);
  node.run(30 * kSecond);
  node.mark();
  node.run(31 * kSecond);
  EXPECT_NEAR(node.part(a), 50, 3);
  EXPECT_NEAR(node.part(b), 50, 3);
}

TEST(Schedule, AKernelWithoutEndKeepsNobodyOut) {
  arbiter::ScheduleSettings settings;
  Schedule s(settings);
  s.add(1, {1, 50, false}, 0);
  s.add(2, {1, 50, false}, 0);
  s.wants(1, 0);
  s.step(0);
  s.wants(2, 0);
  Nanoseconds now = s.step(0).look_again;
  EXPECT_EQ(s.figures(1, now).overdue, 0);
  EXPECT_EQ(s.step(now).call_back.size(), 1u);  // and 1 goes on
  EXPECT_EQ(s.figures(1, now + kSecond).overdue, kSecond);
  EXPECT_EQ(s.figures(2, now + kSecond).overdue, 0);
  const Decision d = s.step(now += settings.grace);
  ASSERT_EQ(d.begin.size(), 1u);
  EXPECT_EQ(d.begin[0].tenant, 2u);
  EXPECT_LE(now, 100 * kMillisecond);
  EXPECT_EQ(d.begin[0].until, kForever);  // nobody waits: 1 has not asked again
  EXPECT_EQ(s.figures(1, now).overdue, settings.grace);
  s.gives_back(1, false, now);
  EXPECT_EQ(s.figures(1, now).overdue, 0);
}

TEST(Schedule, WhatATurnTookTooLongIsMissingLaterAndBounded) {
  Node node;
  Program p = busy(50);
  p.long_one[100] = 300 * kMillisecond;
  const uint32_t a = node.add(p), b = node.add(busy(50));
  node.run(5 * kSecond);
  EXPECT_NEAR(node.part(a), 50, 3);
  EXPECT_NEAR(node.part(b), 50, 3);
  // An hour is paid for with a second's credit, not with an hour.
  Schedule s({});
  s.add(1, {1, 50, false}, 0);
  s.add(2, {1, 50, false}, 0);
  s.wants(1, 0);
  s.step(0);
  s.wants(2, 0);
  s.step(3600 * kSecond);
  s.step(3600 * kSecond + kSecond);
  s.gives_back(1, true, 3601 * kSecond);
  Nanoseconds now = 3601 * kSecond, began = kForever;
  for (int i = 0; i < 1000 && began == kForever; ++i) {
    const Decision d = s.step(now);
    for (const uint32_t id : d.call_back) s.gives_back(id, true, now);
    for (const auto& turn : d.begin)
      if (turn.tenant == 1) began = now;
    now = std::max(now + kMillisecond, std::min(d.look_again, now + 50 * kMillisecond));
  }
  EXPECT_LE(began - 3601 * kSecond, kSecond);
}

TEST(Schedule, AGangHasAllItsGpusOrNone) {
  Node node;
  const uint32_t small = node.add(busy(30, kMillisecond, 0b11)),
                 large = node.add(busy(70, kMillisecond, 0b11));
  node.run(10 * kSecond);
  EXPECT_NEAR(node.part(small), 30, 0.5);
  EXPECT_NEAR(node.part(large), 70, 0.5);
  EXPECT_EQ(node.most_at_once, 1u);
}

TEST(Schedule, AGangAmongSinglesGetsItsShare) {
  Node node;
  const uint32_t gang = node.add(busy(50, kMillisecond, 0b11)),
                 left = node.add(busy(50, kMillisecond, 0b01)),
                 right = node.add(busy(50, 3 * kMillisecond, 0b10));
  node.run(20 * kSecond);
  EXPECT_NEAR(node.part(gang), 50, 2);
  EXPECT_NEAR(node.part(left), 50, 2);
  EXPECT_NEAR(node.part(right), 50, 2);
  EXPECT_EQ(node.most_at_once, 1u);
}

TEST(Schedule, SixtyFourShareOneGpu) {
  Node node;
  std::vector<uint32_t> all;
  for (int i = 0; i < 64; ++i) all.push_back(node.add(busy(1)));
  node.run(5 * kSecond);
  for (const uint32_t each : all) EXPECT_NEAR(node.part(each), 100 / 64.0, 0.1);
}

TEST(Schedule, WhoIsGoneIsForgottenAtOnce) {
  Node node;
  const uint32_t a = node.add(busy(50)), b = node.add(busy(50));
  node.run(kSecond + 3 * kMillisecond);
  const bool first = node.schedule.holds(a);
  node.remove(first ? a : b);
  const uint32_t left = first ? b : a;
  node.mark();
  node.run(2 * kSecond);
  EXPECT_GT(node.part(left), 99);
}

TEST(Schedule, AnotherShareHoldsFromThenOn) {
  Node node;
  const uint32_t a = node.add(busy(50)), b = node.add(busy(50));
  node.run(kSecond);
  ASSERT_TRUE(node.schedule.change(a, 10, false, node.now));
  ASSERT_TRUE(node.schedule.change(b, 90, false, node.now));
  node.mark();
  node.run(11 * kSecond);
  EXPECT_NEAR(node.part(a), 10, 0.5);
  EXPECT_NEAR(node.part(b), 90, 0.5);
}

TEST(Schedule, FiguresAreOfTimeHeldAndWaited) {
  Node node;
  const uint32_t a = node.add(busy(25)), b = node.add(busy(75));
  node.run(10 * kSecond);
  const auto fa = node.schedule.figures(a, node.now), fb = node.schedule.figures(b, node.now);
  EXPECT_NEAR(static_cast<double>(fa.held) / 1e9, 2.5, 0.05);
  EXPECT_EQ(fa.held + fa.waited, 10 * kSecond);
  EXPECT_EQ(fb.held + fb.waited, 10 * kSecond);
  EXPECT_NEAR(static_cast<double>(fa.turns), 200, 4);  // one in each period
}

TEST(Schedule, WhatMakesNoSenseIsRefused) {
  Schedule s({});
  EXPECT_FALSE(s.add(1, {0, 50, false}, 0));
  EXPECT_FALSE(s.add(1, {1, 0, false}, 0));
  EXPECT_FALSE(s.add(1, {1, 101, false}, 0));
  EXPECT_TRUE(s.add(1, {1, 50, false}, 0));
  EXPECT_FALSE(s.add(1, {1, 50, false}, 0));
  EXPECT_FALSE(s.change(2, 50, false, 0));
  EXPECT_FALSE(s.change(1, 0, false, 0));
  // Said by somebody who lies or comes late: nothing.
  s.wants(7, 0);
  s.gives_back(7, true, 0);
  s.gives_back(1, false, 0);
  s.remove(7, 0);
  EXPECT_TRUE(s.step(0).begin.empty());
  s.wants(1, 10);
  s.wants(1, 5);  // a clock that went back
  EXPECT_EQ(s.step(3).begin.size(), 1u);
}

}  // namespace
}  // namespace sluice::test
