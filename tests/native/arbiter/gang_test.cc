// SPDX-License-Identifier: Apache-2.0
// The end of a turn of several ranks: who lags behind a collective goes on to it and no further.
#include <gtest/gtest.h>

#include <random>

#include "tests/native/arbiter/pages.h"

namespace sluice::arbiter {
namespace {

constexpr uint64_t kAll = 0x1234, kPair = 0x5678;  // communicators

void issue(Worker& w, size_t place, uint64_t communicator, uint64_t count) {
  w.page->places = static_cast<uint32_t>(std::max<size_t>(w.page->places, place + 1));
  w.page->issued[place].count = count;
  w.page->issued[place].communicator = communicator;
}

// How many more it may issue at the end of its turn.
int64_t may(const Worker& w, size_t place = 0) {
  if (w.page->cut_turn != w.page->turn || !w.has_turn()) return 0;
  constexpr uint64_t kCount = (1ull << kCutBits) - 1;
  const Issued& one = w.page->issued[place];
  if (!is_behind(w.page->cut[place], one.communicator, one.count)) return 0;
  return static_cast<int64_t>((w.page->cut[place] & kCount) - one.count);
}

// A job of two ranks on two GPUs, in the last moment of its turn, and a neighbour of both.
struct Gang : Node {
  Worker &a, &b, &other;

  explicit Gang(uint32_t percent = 50)
      : Node({"GPU-a", "GPU-b"}),
        a(add("a", "job", {"GPU-a"}, percent)),
        b(add("b", "job", {"GPU-b"}, percent)),
        other(add("other", "other", 100 - percent)) {
    a.want();
    b.want();
    step();
    EXPECT_TRUE(a.has_turn() && b.has_turn());
    other.want();
    step();
    while (now < a.until() - kMs / 10) step(), now += kMs / 10;
  }
  void wait(Nanoseconds time = kMs / 5) { run(time); }
};

TEST(Gang, WhoLagsGoesOnToWhatOthersHaveIssued) {
  Gang node;
  issue(node.a, 0, kAll, 7);
  issue(node.b, 0, kAll, 5);
  node.wait();
  EXPECT_EQ(may(node.a), 0);
  EXPECT_EQ(may(node.b), 2);
  EXPECT_FALSE(node.other.has_turn());
  issue(node.b, 0, kAll, 6);
  node.wait();
  EXPECT_EQ(may(node.b), 1);
  issue(node.b, 0, kAll, 7);
  node.wait();
  EXPECT_EQ(may(node.b), 0);
  node.a.give_back(true);
  node.b.give_back(true);
  node.step();
  EXPECT_TRUE(node.other.has_turn());
}

TEST(Gang, WhoHasGivenBackAndLagsIsOpenedAgain) {
  Gang node;
  issue(node.a, 0, kAll, 6);
  issue(node.b, 0, kAll, 5);
  const uint32_t turn = node.b.page->turn;
  node.b.give_back(false);  // it has nothing to issue yet
  node.wait();
  EXPECT_FALSE(node.b.has_turn());
  node.b.want();
  node.wait();
  EXPECT_NE(node.b.page->turn, turn);
  EXPECT_EQ(may(node.b), 1);
  EXPECT_LE(node.b.until(), node.now) << "for what others wait for, and for nothing else";
}

// Where a and b go on to one communicator's cut they come to another's.
TEST(Gang, WhatLeadsThereMovesTheCut) {
  Gang node;
  issue(node.a, 0, kAll, 6);
  issue(node.a, 1, kPair, 1);
  issue(node.b, 0, kAll, 5);
  issue(node.b, 3, kPair, 1);
  node.wait();
  issue(node.b, 3, kPair, 3);
  node.wait();
  EXPECT_EQ(may(node.b, 0), 1);
  EXPECT_EQ(may(node.a, 1), 2);
}

TEST(Gang, WhoHasDrainedWaitsForNobody) {
  Gang node;
  issue(node.a, 0, kAll, 7);
  issue(node.b, 0, kAll, 5);
  node.wait();
  EXPECT_EQ(may(node.b), 2);
  node.a.give_back(true);
  node.step();
  EXPECT_EQ(may(node.b), 0) << "a's collectives are done without it";
  node.b.give_back(true);
  node.step();
  EXPECT_TRUE(node.other.has_turn());
}

TEST(Gang, ASessionOfSeveralRanksMayLagBehindItself) {
  Node node({"GPU-a", "GPU-b"});
  Worker &a = node.add("a", "job", 50), &other = node.add("other", "other", 50);
  a.want();
  other.want();
  issue(a, 0, kAll, 4);
  issue(a, 1, kAll, 3);
  while (!a.has_turn()) node.run(kMs);
  while (node.now <= a.until()) node.run(kMs / 10);
  node.run(kMs / 5);
  EXPECT_EQ(may(a, 0), 0);
  EXPECT_EQ(may(a, 1), 1);
}

TEST(Gang, OthersCommunicatorsSayNothing) {
  Gang node;
  issue(node.other, 0, kAll, 100);
  issue(node.a, 0, kAll, 5);
  issue(node.b, 0, kAll, 5);
  node.wait();
  EXPECT_EQ(may(node.a), 0);
  EXPECT_EQ(may(node.b), 0);
}

// A worker that was taken over says that it has issued anything: its own job's time, for a while.
TEST(Gang, HelpEndsWithTheGraceAndIsTheTenantsShareThen) {
  Gang node(25);
  issue(node.a, 0, kAll, 1ull << 40);
  issue(node.b, 0, kAll, 5);
  node.wait(15 * kMs);
  EXPECT_GT(may(node.b), 1000);
  EXPECT_FALSE(node.other.has_turn());
  node.wait(10 * kMs);
  EXPECT_TRUE(node.other.has_turn()) << "a has not drained, and its neighbour goes on";
  int open = 0, all = 0;
  for (; all < 1000; ++all) {
    node.wait(kMs / 10);
    open += may(node.b) > 0;
    if (node.b.has_turn() && may(node.b) == 0) node.b.give_back(true);
  }
  EXPECT_NEAR(open / 1000.0, 0.25, 0.05);
}

TEST(Gang, LittleTurnsOfOthersAreItsShareAfterTheGrace) {
  Gang node(25);
  node.b.give_back(true);  // a waits for something that is no collective
  int open = 0;
  node.wait(25 * kMs);
  for (int i = 0; i < 1000; ++i) {
    node.wait(kMs / 10);
    open += node.b.has_turn();
    if (node.b.has_turn() && node.now >= node.b.until()) node.b.give_back(true);
  }
  EXPECT_NEAR(open / 1000.0, 0.25, 0.08);
}

// By other means than collectives.
TEST(Gang, OneThatWasHelpedMayWaitForTheNext) {
  Gang node;
  node.wait();
  node.b.give_back(true);
  node.wait(8 * kMs);
  EXPECT_TRUE(node.b.has_turn());
  node.a.give_back(true);
  node.wait(10 * kMs);
  EXPECT_TRUE(node.b.has_turn()) << "it waits for what a has not launched";
  EXPECT_TRUE(node.a.has_turn());
}

TEST(Gang, OneThatIsStoppedKeepsNeighboursNoLonger) {
  Gang node;
  node.b.stopped = true;
  issue(node.a, 0, kAll, 6);
  issue(node.b, 0, kAll, 5);
  node.wait(100 * kMs);
  EXPECT_TRUE(node.other.has_turn());
  EXPECT_TRUE(node.a.has_turn()) << "it spins for b";
  node.b.give_back(true);  // as it is lost, it is not b's
  node.b.stopped = false;
  node.wait(5 * kMs);
  EXPECT_EQ(may(node.b), 1) << "it is there again, and goes on to where a waits";
  issue(node.b, 0, kAll, 6);
  node.b.give_back(true);
  node.a.give_back(true);
  std::map<std::string, Nanoseconds> had;
  node.work(2'000 * kMs, &had);
  EXPECT_GT(had["a"], 500 * kMs);
  EXPECT_EQ(had["a"], had["b"]);
}

// A job that is to stand still, with its GPUs to itself: nobody else is there.
struct Held : Node {
  Worker &a, &b;
  Held()
      : Node({"GPU-a", "GPU-b"}),
        a(add("a", "job", {"GPU-a"}, 50)),
        b(add("b", "job", {"GPU-b"}, 50)) {
    a.want();
    b.want();
    step();
    EXPECT_EQ(a.until(), kAlone);
  }
  std::vector<std::string> still() { return arbiter->take_still(); }
};

TEST(Gang, OneThatIsHeldComesToItsCutAndNoFurther) {
  Held node;
  issue(node.a, 0, kAll, 7);
  issue(node.b, 0, kAll, 5);
  node.arbiter->hold("job", 1'000 * kMs, node.now);
  node.run(20 * kMs);
  EXPECT_LE(node.a.until(), node.now) << "its turn without an end is over";
  EXPECT_EQ(may(node.a), 0);
  EXPECT_EQ(may(node.b), 2);
  EXPECT_TRUE(node.still().empty()) << "a's collectives wait for b";
  issue(node.b, 0, kAll, 7);
  node.b.give_back(false);
  node.run(kMs);
  EXPECT_TRUE(node.still().empty()) << "a has not drained";
  node.a.give_back(false);
  node.run(kMs);
  EXPECT_EQ(node.still(), std::vector<std::string>{"job"});
  node.run(100 * kMs);
  EXPECT_TRUE(node.still().empty()) << "it is told once";
  node.a.want();
  node.b.want();
  node.run(10 * kMs);
  EXPECT_FALSE(node.a.has_turn() || node.b.has_turn()) << "both want to go on, and are held";
  EXPECT_LT(node.now - node.a.page->beat, kBeatNs + kMs) << "or they would go on without turns";
  node.arbiter->go_on("job");
  node.run(kMs);
  EXPECT_EQ(node.a.until(), kAlone);
  EXPECT_EQ(node.b.until(), kAlone);
}

TEST(Gang, OneThatIsHeldLeavesItsGpusToOthersAndHasItsShareLater) {
  Gang node;
  node.arbiter->hold("job", 10'000 * kMs, node.now);
  std::map<std::string, Nanoseconds> had;
  node.work(500 * kMs, &had);
  EXPECT_EQ(node.arbiter->take_still(), std::vector<std::string>{"job"});
  EXPECT_GT(had["other"], 450 * kMs);
  node.arbiter->go_on("job");
  had.clear();
  node.work(2'000 * kMs, &had);
  EXPECT_GT(had["a"], 600 * kMs);
  EXPECT_GT(had["other"], 600 * kMs);
}

// Its server may have ended meanwhile.
TEST(Gang, OneThatIsHeldGoesOnByItselfWhenThatIsOver) {
  Held node;
  node.arbiter->hold("job", 50 * kMs, node.now);
  std::map<std::string, Nanoseconds> had;
  node.work(40 * kMs, &had);
  EXPECT_EQ(node.still().size(), 1u);
  EXPECT_FALSE(node.a.has_turn());
  node.run(20 * kMs);
  EXPECT_EQ(node.a.until(), kAlone);
}

TEST(Gang, WhatIsNotThereIsStillAndNothingOfItIsHeld) {
  Held node;
  node.arbiter->hold("another", 1'000 * kMs, node.now);
  EXPECT_EQ(node.still(), std::vector<std::string>{"another"});
  node.arbiter->go_on("another");
  node.run(10 * kMs);
  EXPECT_EQ(node.a.until(), kAlone);
}

// Held again and again in the middle of anything, with workers that write what they like: nobody
// is held for longer than was said, and the neighbour has its turns.
TEST(Gang, HoldsEndWhateverWorkersWrite) {
  Node node({"GPU-a", "GPU-b"});
  std::vector<Worker*> job;
  for (const char* name : {"a", "b"}) job.push_back(&node.add(name, "job", 50));
  node.add("other", "other", 50).want();
  std::mt19937 random(5);
  std::map<std::string, Nanoseconds> had;
  for (int i = 0; i < 10'000; ++i) {
    Worker& w = *job[random() % job.size()];
    w.page->places = random();
    w.page->issued[random() % 4].communicator = random() % 3;
    w.page->issued[random() % 4].count = random();
    w.page->wants = random() % 3;
    if (random() % 20 == 0) w.page->returned = static_cast<uint32_t>(random());
    if (random() % 50 == 0) node.arbiter->hold("job", random() % 20 * kMs, node.now);
    if (random() % 70 == 0) node.arbiter->go_on("job");
    node.work(kMs / 10, &had);
  }
  EXPECT_GT(static_cast<double>(had["other"]) / 1'000 / kMs, 0.4);
  for (Worker* w : job) {
    w->page->places = 0;
    w->page->returned = w->page->turn - 1;
    w->want();
  }
  had.clear();
  node.work(1'000 * kMs, &had);
  EXPECT_GT(had["a"], 100 * kMs) << "and goes on";
}

// Words that make no sense are words: the arbiter goes on, and the neighbour has its share.
TEST(Gang, WhatStandsOnPagesMayBeAnything) {
  Node node({"GPU-a", "GPU-b"});
  std::vector<Worker*> job;
  for (const char* name : {"a", "b", "c"}) job.push_back(&node.add(name, "job", 50));
  node.add("other", "other", 50).want();
  std::mt19937 random(11);
  std::map<std::string, Nanoseconds> had;
  for (int i = 0; i < 30'000; ++i) {
    Worker& w = *job[random() % job.size()];
    w.page->places = random() % 3 ? random() % 4 : random();
    Issued& one = w.page->issued[random() % (random() % 4 ? 4 : kPlaces)];
    one.communicator = random() % 3;
    one.count = random() % 4 ? random() % 5 : random() * 0x100000001ull;
    w.page->wants = random() % 3;
    if (random() % 50 == 0) w.give_back(random() % 2 != 0);
    node.work(kMs / 10, &had);
  }
  EXPECT_GT(static_cast<double>(had["other"]) / 3'000 / kMs, 0.4);
}

}  // namespace
}  // namespace sluice::arbiter
