// SPDX-License-Identifier: Apache-2.0
// Tenants that run at once and back in turns, as their pages say it: what begins it, what ends it,
// and what it costs in shares, waiting and debts (nothing).
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/native/arbiter/pages.h"

namespace sluice::arbiter {
namespace {

constexpr Nanoseconds kSecond = 1'000 * kMs;
constexpr Nanoseconds kStep = kMs / 10;

// Workers that always have work, which takes such a part of the GPU.
class Busy : public Node {
 public:
  using Node::Node;

  Worker& begin(const std::string& name, double part, uint32_t percent, bool capped = false) {
    parts[name] = part;
    Worker& w = add(name, name, percent, capped);
    w.want();
    return w;
  }
  void run(Nanoseconds time) {
    for (const Nanoseconds end = now + time; now < end; now += kStep) {
      step();
      for (auto& [name, part] : parts) work(workers.at(name), part, &done[name]);
    }
  }
  bool together() const {
    return std::ranges::any_of(workers,
                               [](const auto& w) { return w.second.until() == kTogether; });
  }
  std::map<std::string, double> parts, done;

 private:
  // The GPU is enough for all of them, so that each does at once what it does alone.
  void work(Worker& w, double part, double* done) {
    if (w.stopped || !w.has_turn()) return;
    *done += 10;
    w.page->launches += 10;
    w.page->busy += static_cast<uint64_t>(kStep);
    if (w.until() == kTogether) return;
    w.page->watched += static_cast<uint64_t>(kStep);
    w.page->dry += static_cast<uint64_t>((1 - part) * static_cast<double>(kStep));
    if (now >= w.until()) w.give_back(true);
  }
};

TEST(SideBySide, WhoLeavesTheGpuIdleRunsWithOthers) {
  Busy node;
  for (const char* name : {"a", "b", "c"}) node.begin(name, 0.1, 30);
  node.run(kSecond / 2);
  EXPECT_FALSE(node.together());
  node.run(kSecond);
  for (const auto& [name, w] : node.workers) EXPECT_EQ(w.until(), kTogether) << name;
  const auto before = node.arbiter->figures(node.now);
  node.done.clear();
  node.run(10 * kSecond);
  const auto after = node.arbiter->figures(node.now);
  for (const auto& [name, w] : node.workers) {
    EXPECT_TRUE(w.has_turn());
    EXPECT_NEAR(node.done[name], 1e6, 1e3) << "all that it can";
    EXPECT_EQ(after.at(name).waited, before.at(name).waited);
    EXPECT_EQ(after.at(name).turns, before.at(name).turns);
    EXPECT_EQ(after.at(name).overdue, 0);
    EXPECT_NEAR(static_cast<double>(after.at(name).held - before.at(name).held) / kSecond, 10, 0.1);
    EXPECT_NEAR(static_cast<double>(after.at(name).together) / kSecond, 10.9, 0.2);
  }
}

TEST(SideBySide, ThenTurnsGoOnByShares) {
  Busy node;
  node.begin("a", 0.1, 20);
  node.begin("b", 0.1, 80);
  node.run(10 * kSecond);
  ASSERT_TRUE(node.together());
  node.arbiter->allow_together(false);
  node.step();
  EXPECT_FALSE(node.together());
  node.run(10 * kMs);
  const bool a = node.workers["a"].has_turn(), b = node.workers["b"].has_turn();
  EXPECT_NE(a, b) << "one at a time";
  node.done.clear();
  node.run(2 * kSecond);
  EXPECT_NEAR(node.done["a"] / (node.done["a"] + node.done["b"]), 0.2, 0.01) << "nobody owes";
}

TEST(SideBySide, WhoFillsItEndsItWhenItJoins) {
  Busy node;
  Worker &a = node.begin("a", 0.1, 25), &b = node.begin("b", 0.1, 25);
  node.run(2 * kSecond);
  ASSERT_TRUE(node.together());
  const Worker& full = node.begin("full", 1, 50);
  node.step();
  EXPECT_LE(a.until(), node.now) << "it is over";
  EXPECT_LE(b.until(), node.now);
  EXPECT_FALSE(full.has_turn()) << "what is under way is to be done first";
  a.give_back(true);
  node.step();
  EXPECT_FALSE(full.has_turn());
  EXPECT_FALSE(a.has_turn());
  b.give_back(true);
  node.step();
  EXPECT_EQ(a.has_turn() + b.has_turn() + full.has_turn(), 1);
  node.done.clear();
  node.run(10 * kSecond);
  EXPECT_FALSE(node.together());
  EXPECT_NEAR(node.done["full"], 0.5e6, 0.01e6);
  node.arbiter->leave("full", node.now);
  node.parts.erase("full");
  node.workers.erase("full");
  node.run(2 * kSecond);
  EXPECT_TRUE(node.together());
}

TEST(SideBySide, OneThatDoesNotDrainKeepsNobodyForLong) {
  Busy node;
  const Worker &a = node.begin("a", 0.1, 50), &b = node.begin("b", 0.1, 50);
  node.run(2 * kSecond);
  ASSERT_TRUE(node.together());
  node.arbiter->allow_together(false);
  node.parts.erase("a");  // something of it does not end
  node.run(30 * kMs);
  EXPECT_TRUE(a.has_turn());
  EXPECT_TRUE(b.has_turn());
  EXPECT_GT(b.until(), node.now) << "a turn of its own, beside it";
  EXPECT_GT(node.arbiter->figures(node.now)["a"].overdue, 0);
}

TEST(SideBySide, OneWithACapOrSeveralGpusHasAllInTurns) {
  for (const bool capped : {true, false}) {
    Busy node({"GPU-a"});
    node.begin("a", 0.1, 30);
    node.begin("b", 0.1, 30);
    node.run(2 * kSecond);
    ASSERT_TRUE(node.together());
    if (capped)
      node.begin("c", 0.1, 30, true);
    else
      node.add("c", "c", {"GPU-a", "GPU-b"}, 30);
    node.run(10 * kSecond);
    EXPECT_FALSE(node.together());
  }
}

TEST(SideBySide, AShareThatChangesIsMeasuredAnew) {
  Busy node;
  node.begin("a", 0.1, 50);
  node.begin("b", 0.1, 50);
  node.run(2 * kSecond);
  ASSERT_TRUE(node.together());
  EXPECT_TRUE(node.arbiter->share("a", 20, false, node.now));
  node.step();
  EXPECT_FALSE(node.together());
  node.run(6 * kSecond);
  EXPECT_TRUE(node.together());
}

TEST(SideBySide, GpusAreApart) {
  Busy node;
  node.begin("a", 0.1, 50);
  node.begin("b", 0.1, 50);
  for (const char* name : {"c", "d"}) {
    node.parts[name] = 1;
    node.add(name, name, {"GPU-b"}, 50).want();
  }
  node.run(2 * kSecond);
  EXPECT_EQ(node.workers["a"].until(), kTogether);
  EXPECT_EQ(node.workers["b"].until(), kTogether);
  EXPECT_NE(node.workers["c"].until(), kTogether);
  EXPECT_NE(node.workers["d"].until(), kTogether);
}

TEST(SideBySide, WhoIsLeftAloneIsAlone) {
  Busy node;
  const Worker& a = node.begin("a", 0.1, 50);
  node.begin("b", 0.1, 50);
  node.run(2 * kSecond);
  ASSERT_TRUE(node.together());
  node.arbiter->leave("b", node.now);
  node.parts.erase("b");
  node.workers.erase("b");
  node.run(100 * kMs);
  EXPECT_EQ(a.until(), kAlone);
  EXPECT_TRUE(a.has_turn());
}

TEST(SideBySide, AStoppedWorkerIsNobodysMatter) {
  Busy node;
  Worker& a = node.begin("a", 0.1, 30);
  const Worker &b = node.begin("b", 0.1, 30), &c = node.begin("c", 0.1, 30);
  node.run(2 * kSecond);
  ASSERT_TRUE(node.together());
  a.stopped = true;
  node.run(10 * kSecond);
  EXPECT_EQ(b.until(), kTogether);
  EXPECT_EQ(c.until(), kTogether);
  a.stopped = false;
  node.run(kSecond);
  EXPECT_TRUE(a.has_turn());
}

TEST(SideBySide, AnotherArbiterBeginsWithTurns) {
  Busy node;
  node.begin("a", 0.1, 50);
  node.begin("b", 0.1, 50);
  node.run(2 * kSecond);
  ASSERT_TRUE(node.together());
  node.arbiter = std::make_unique<Arbiter>();
  std::string error;
  for (auto& [name, w] : node.workers)
    ASSERT_TRUE(node.arbiter->join(name, {name, {"GPU-a"}, 50}, w.page.get(), node.now, &error));
  node.step();
  EXPECT_FALSE(node.together());
  for (auto& [name, w] : node.workers) w.give_back(true);
  node.run(3 * kSecond);
  EXPECT_TRUE(node.together());
}

TEST(SideBySide, WorkersOfBeforeSayNothingAndHaveTurns) {
  Busy node;
  node.begin("a", 0.1, 30);
  node.begin("b", 0.1, 30);
  node.add("old", "old", 30).want();
  std::map<std::string, Nanoseconds> had;
  for (int i = 0; i < 50'000; ++i) {
    node.run(kStep);
    Worker& old = node.workers["old"];
    if (old.has_turn() && node.now >= old.until()) old.give_back(true);
    ASSERT_FALSE(node.together());
  }
}

// One that was taken over writes whatever it likes; the others get on by their shares at least.
TEST(SideBySide, AWorkerThatWritesAnythingHarmsItself) {
  Busy node;
  node.begin("a", 0.5, 40);
  node.begin("b", 0.5, 40);
  Worker& liar = node.add("liar", "liar", 20);
  std::mt19937 random(5);
  bool together = false;
  const auto some = [&]() -> uint64_t {
    return random() % 3 ? random() : random() * 0x100000001ull;
  };
  for (int i = 0; i < 100'000; ++i) {
    TurnPage& page = *liar.page;
    switch (random() % 8) {
      case 0:
        page.launches = some();
        break;
      case 1:
        page.busy += some();
        break;
      case 2:
        page.watched += some();
        break;
      case 3:
        page.dry = page.watched.load();
        break;
      case 4:
        page.returned = page.turn.load() + random() % 3 - 1;
        break;
      default:
        page.wants = random() % 3;
    }
    node.run(kStep);
    together |= node.together();
  }
  EXPECT_TRUE(together) << "it has it tried";
  EXPECT_GT(node.done["a"], 0.35e6);
  EXPECT_GT(node.done["b"], 0.35e6);
}

}  // namespace
}  // namespace sluice::arbiter
