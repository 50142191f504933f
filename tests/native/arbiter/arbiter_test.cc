// SPDX-License-Identifier: Apache-2.0
// The arbiter between workers' pages and the policy: workers here are the words that they write.
#include <gtest/gtest.h>

#include <memory>
#include <random>

#include "tests/native/arbiter/pages.h"

namespace sluice::arbiter {
namespace {

TEST(Arbiter, WhoIsAloneIsToldSo) {
  Node node;
  const Worker& a = node.add("a", "A", 25);
  node.step();
  EXPECT_EQ(a.until(), kAlone);
  EXPECT_EQ(node.arbiter->look(node.now), kForever) << "there is nothing to look after";
}

TEST(Arbiter, WhoHasANeighbourKeepsLittleUnderWay) {
  Node node;
  const Worker& a = node.add("a", "A", 50);
  node.step();
  node.add("b", "B", 50);
  node.step();
  EXPECT_EQ(a.until(), kUntilWanted);
}

TEST(Arbiter, ATurnPassesFromOneToTheOther) {
  Node node;
  Worker &a = node.add("a", "A", 50), &b = node.add("b", "B", 50);
  a.want();
  node.step();
  EXPECT_TRUE(a.has_turn());
  EXPECT_FALSE(b.has_turn());
  b.want();
  node.step();
  EXPECT_LT(a.until(), kUntilWanted) << "its turn has an end now";
  EXPECT_FALSE(b.has_turn()) << "a has not given back";
  node.run(100 * kMs - kMs);
  a.give_back(true);
  node.step();
  EXPECT_TRUE(b.has_turn());
  EXPECT_FALSE(a.has_turn());
}

TEST(Arbiter, SharesAreKept) {
  Node node;
  for (const auto& [name, percent] :
       std::map<std::string, uint32_t>{{"a", 10}, {"b", 30}, {"c", 60}})
    node.add(name, name, percent).want();
  std::map<std::string, Nanoseconds> had;
  node.work(10'000 * kMs, &had);
  EXPECT_NEAR(static_cast<double>(had["a"]) / 10'000 / kMs, 0.10, 0.01);
  EXPECT_NEAR(static_cast<double>(had["b"]) / 10'000 / kMs, 0.30, 0.01);
  EXPECT_NEAR(static_cast<double>(had["c"]) / 10'000 / kMs, 0.60, 0.01);
}

TEST(Arbiter, WhatRanAfterATurnIsPaidFor) {
  Node node;
  Worker &a = node.add("a", "A", 50), &b = node.add("b", "B", 50);
  a.want();
  b.want();
  std::map<std::string, Nanoseconds> had;
  for (uint32_t turns = 0; node.now < 11'000 * kMs;) {
    node.work(kMs / 10, &had);
    if (b.page->returned == turns) continue;
    turns = b.page->returned;
    b.page->overran += static_cast<uint64_t>(5 * kMs);
    had["b"] += 5 * kMs;
  }
  EXPECT_NEAR(static_cast<double>(had["b"]) / static_cast<double>(had["a"]), 1, 0.02);
  b.page->overran = 0;  // it counts on from anywhere
  node.step();
  had.clear();
  node.work(10'000 * kMs, &had);
  EXPECT_GT(had["b"], 4'000 * kMs) << "a second at most is believed at a time";
}

TEST(Arbiter, ACapHoldsAlone) {
  Node node;
  node.add("a", "A", 25, true).want();
  std::map<std::string, Nanoseconds> had;
  node.work(10'000 * kMs, &had);
  EXPECT_NEAR(static_cast<double>(had["a"]) / 10'000 / kMs, 0.25, 0.01);
}

TEST(Arbiter, OtherSharesFromNowOn) {
  Node node;
  node.add("a", "A", 50).want();
  node.add("b", "B", 50).want();
  std::map<std::string, Nanoseconds> had;
  node.work(1'000 * kMs, &had);
  EXPECT_TRUE(node.arbiter->share("A", 20, false, node.now));
  EXPECT_TRUE(node.arbiter->share("B", 80, false, node.now));
  EXPECT_FALSE(node.arbiter->share("nobody", 80, false, node.now));
  had.clear();
  node.work(10'000 * kMs, &had);
  EXPECT_NEAR(static_cast<double>(had["a"]) / 10'000 / kMs, 0.20, 0.01);
}

TEST(Arbiter, TheNextBeginsWhenTheHolderDies) {
  Node node;
  node.add("a", "A", 50).want();
  Worker& b = node.add("b", "B", 50);
  node.step();
  b.want();
  node.step();
  EXPECT_FALSE(b.has_turn());
  node.arbiter->leave("a", node.now);
  node.step();
  EXPECT_TRUE(b.has_turn());
  EXPECT_EQ(b.until(), kAlone);
}

TEST(Arbiter, WhoIsLeftAloneInItsTurnGoesOn) {
  Node node;
  Worker &a = node.add("a", "A", 50), &b = node.add("b", "B", 50);
  a.want();
  node.step();
  b.want();
  node.step();
  EXPECT_LT(a.until(), kUntilWanted);
  node.arbiter->leave("b", node.now);
  node.step();
  EXPECT_EQ(a.until(), kAlone) << "nobody waits for the end of its turn";
  EXPECT_TRUE(a.has_turn());
}

TEST(Arbiter, WhoIsLeftAloneAfterItsTurnGoesOn) {
  Node node;
  Worker &a = node.add("a", "A", 50), &b = node.add("b", "B", 50);
  a.want();
  node.step();
  b.want();
  node.step();
  while (node.now <= a.until()) node.run(kMs / 10);
  node.run(kMs);
  node.arbiter->leave("b", node.now);  // while a drains
  a.give_back(true);
  node.step();
  EXPECT_TRUE(a.has_turn());
  EXPECT_EQ(a.until(), kAlone);
}

TEST(Arbiter, AHolderThatHangsKeepsNobodyForLong) {
  Node node;
  Worker &a = node.add("a", "A", 50), &b = node.add("b", "B", 50);
  a.want();
  node.step();
  b.want();
  node.run(100 * kMs);  // a's turn, and the grace
  EXPECT_TRUE(a.has_turn()) << "it has given nothing back";
  EXPECT_TRUE(b.has_turn()) << "and the other runs beside it";
}

TEST(Arbiter, OneThatIsStoppedLosesItsTurnAndGetsNone) {
  Node node;
  Worker &a = node.add("a", "A", 50), &b = node.add("b", "B", 50);
  a.stopped = true;
  a.want();
  b.want();
  std::map<std::string, Nanoseconds> had;
  node.work(1'000 * kMs, &had);
  EXPECT_GT(had["b"], 950 * kMs);
  a.stopped = false;
  had.clear();
  node.work(1'000 * kMs, &had);
  EXPECT_NEAR(static_cast<double>(had["a"]) / kMs, 500, 50) << "it goes on when it is there again";
}

TEST(Arbiter, AJobIsOneTenant) {
  Node node;
  Worker &a1 = node.add("a1", "A", 50), &a2 = node.add("a2", "A", 50);
  Worker& b = node.add("b", "B", 50);
  a1.want();
  a2.want();
  node.step();
  EXPECT_TRUE(a1.has_turn());
  EXPECT_TRUE(a2.has_turn());
  b.want();
  node.step();
  while (node.now < a1.until()) node.run(kMs / 10);
  a1.give_back(true);
  node.step();
  EXPECT_FALSE(b.has_turn()) << "the other of the job works";
  a2.give_back(false);
  node.step();
  EXPECT_TRUE(b.has_turn());
  EXPECT_FALSE(a1.has_turn());
}

TEST(Arbiter, OfAJobOneThatWakesJoinsTheTurn) {
  Node node;
  Worker &a1 = node.add("a1", "A", 50), &a2 = node.add("a2", "A", 50);
  node.add("b", "B", 50);
  a1.want();
  node.step();
  EXPECT_FALSE(a2.has_turn());
  a2.want();
  node.step();
  EXPECT_TRUE(a2.has_turn());
}

// Ranks of a job on several GPUs: one spins for what the other has not launched.
TEST(Arbiter, LaggardsOfAJobGoOnUntilAllHaveDrained) {
  Node node({"GPU-a", "GPU-b"});
  Worker &a1 = node.add("a1", "A", 50), &a2 = node.add("a2", "A", 50);
  Worker& b = node.add("b", "B", 50);
  a1.want();
  a2.want();
  node.step();
  b.want();
  while (node.now < a1.until()) node.run(kMs / 10);
  const uint32_t turn = a2.page->turn;
  a2.give_back(true);  // a1 does not
  node.run(8 * kMs);
  EXPECT_TRUE(a2.has_turn());
  EXPECT_NE(a2.page->turn, turn);
}

TEST(Arbiter, AnotherArbiterGoesOnWithThePages) {
  Node node;
  Worker &a = node.add("a", "A", 50), &b = node.add("b", "B", 50);
  a.want();
  b.want();
  std::map<std::string, Nanoseconds> had;
  node.work(333 * kMs, &had);
  node.arbiter = std::make_unique<Arbiter>();
  std::string error;
  ASSERT_TRUE(node.arbiter->join("a", {"A", {"GPU-a"}, 20}, a.page.get(), node.now, &error));
  ASSERT_TRUE(node.arbiter->join("b", {"B", {"GPU-a"}, 80}, b.page.get(), node.now, &error));
  had.clear();
  node.work(10'000 * kMs, &had);
  EXPECT_NEAR(static_cast<double>(had["a"]) / 10'000 / kMs, 0.20, 0.01);
}

// A worker that was taken over writes whatever it likes: who shares the GPU with it has its share.
TEST(Arbiter, AWorkerThatWritesAnythingHarmsItself) {
  Node node;
  Worker& a = node.add("a", "A", 50);
  node.add("b", "B", 50).want();
  a.stopped = true;  // it notices what it likes
  std::mt19937 random(5);
  std::map<std::string, Nanoseconds> had;
  for (int i = 0; i < 100'000; ++i) {
    auto* words = reinterpret_cast<uint32_t*>(a.page.get());
    switch (random() % 4) {
      case 0:
        words[random() % (sizeof(TurnPage) / 4)] = random() % 2 ? random() : 0;
        break;
      case 1:
        a.page->seen = a.page->turn.load() + random() % 3 - 1;
        break;
      case 2:
        a.page->returned = a.page->turn.load() + random() % 3 - 1;
        break;
      default:
        a.page->wants = random() % 3;
    }
    node.work(kMs / 10, &had);
  }
  EXPECT_GT(static_cast<double>(had["b"]) / 10'000 / kMs, 0.45);
}

TEST(Arbiter, WhatMakesNoSenseIsRefused) {
  Arbiter arbiter;
  TurnPage page;
  std::string error;
  EXPECT_FALSE(arbiter.join("a", {"A", {}, 50}, &page, 1, &error));
  EXPECT_NE(error.find("gpus"), std::string::npos);
  EXPECT_FALSE(arbiter.join("a", {"A", {"GPU-a"}, 0}, &page, 1, &error));
  EXPECT_NE(error.find("percent"), std::string::npos);
  ASSERT_TRUE(arbiter.join("a", {"A", {"GPU-a"}, 50}, &page, 1, &error));
  EXPECT_FALSE(arbiter.join("a", {"B", {"GPU-a"}, 50}, &page, 1, &error)) << "another's session";
  std::vector<std::string> many;
  for (int i = 0; i < 65; ++i) many.push_back("GPU-" + std::to_string(i));
  EXPECT_FALSE(arbiter.join("c", {"C", many, 50}, &page, 1, &error));
}

}  // namespace
}  // namespace sluice::arbiter
