// SPDX-License-Identifier: Apache-2.0
// Memory on the pages of workers: who may take how much, who is told to go, and who comes in. The
// workers here are the words that they write.
#include <gtest/gtest.h>

#include <map>

#include "tests/native/arbiter/pages.h"

namespace sluice::arbiter {
namespace {

constexpr uint64_t kMib = 1ull << 20;

class MemoryPages : public testing::Test {
 protected:
  MemoryPages() {
    std::string error;
    EXPECT_TRUE(arbiter.set_memory("GPU-a", 100 * kMib, 0, &error)) << error;
    arbiter.set_idle(1'000 * kMs);
  }
  TurnPage& join(const std::string& name, uint64_t mib, uint64_t out_mib = 0, bool away = false) {
    std::string error;
    auto& page = pages[name];
    TurnPage* const fresh = page ? nullptr : (page = std::make_unique<TurnPage>()).get();
    page->memory.spoken = 1;
    TenantRequest request{name, {"GPU-a"}, 50, false};
    request.away = away;
    request.memory = {{"GPU-a", mib * kMib, 0, out_mib * kMib}};
    EXPECT_TRUE(arbiter.join(name, request, fresh ? fresh : page.get(), now, &error)) << error;
    return *page;
  }
  void look() { arbiter.look(now += kMs); }
  void ask(TurnPage& page, uint64_t mib) {
    page.memory.asked = mib * kMib;
    ++page.memory.waits;
    ++page.memory.calls;
    ++page.memory.begun;
  }
  static bool may(const TurnPage& page) {
    return !(page.memory.bounded & 1) ||
           page.memory.taken[0] + page.memory.asked <= page.memory.room[0];
  }
  static void take(TurnPage& page) {
    page.memory.taken[0] += page.memory.asked.exchange(0);
    --page.memory.waits;
    ++page.memory.done;
  }
  void take_all(TurnPage& page, uint64_t mib) {
    ask(page, mib);
    look();
    ASSERT_TRUE(may(page));
    take(page);
    look();
  }
  void work(TurnPage& page) {
    ++page.memory.begun;
    ++page.memory.done;
  }
  std::vector<MemoryOrder> orders() { return arbiter.take_memory_orders(); }

  Arbiter arbiter;
  std::map<std::string, std::unique_ptr<TurnPage>> pages;
  Nanoseconds now = 1'000 * kMs;
};

TEST_F(MemoryPages, WhereAllFitsNobodyIsAsked) {
  TurnPage &a = join("a", 50), &b = join("b", 50);
  ask(a, 50);
  EXPECT_TRUE(may(a)) << "before anybody has looked";
  look();
  EXPECT_EQ(a.memory.bounded, 0u);
  EXPECT_EQ(b.memory.bounded, 0u);
}

TEST_F(MemoryPages, RoomIsGivenAsFarAsThereIsAnyAndThenSomebodyIsToGo) {
  TurnPage &a = join("a", 80), &b = join("b", 80);
  look();
  EXPECT_EQ(a.memory.bounded, 1u);
  take_all(a, 80);
  ask(b, 60);
  look();
  EXPECT_FALSE(may(b)) << "20 are free";
  for (int i = 0; i < 30; ++i) {
    now += 100 * kMs;
    look();
  }
  const auto told = orders();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].tenant, "a");
  EXPECT_TRUE(told[0].out);
  EXPECT_EQ(told[0].bytes.at("GPU-a"), 40 * kMib) << "the difference";
  EXPECT_FALSE(may(b)) << "not before it is done";
  arbiter.memory_moved("a", {{"GPU-a", 40 * kMib}}, "", {}, now);
  look();
  EXPECT_TRUE(may(b));
  take(b);
  EXPECT_EQ(a.memory.room[0], 80 * kMib) << "of what it has, out or in, nothing is taken from it";
  ++a.memory.waits;
  ++a.memory.calls;
  ++a.memory.begun;
  for (int i = 0; i < 60 && orders().empty(); ++i) {
    now += 100 * kMs;
    look();
  }
  arbiter.memory_moved("b", {{"GPU-a", 40 * kMib}}, "", {}, now);
  look();
  const auto back = orders();
  ASSERT_EQ(back.size(), 1u);
  EXPECT_EQ(back[0].tenant, "a");
  EXPECT_FALSE(back[0].out);
}

TEST_F(MemoryPages, WhatAWorkerWritesAsItsRoomCountsForNothing) {
  TurnPage &a = join("a", 80), &b = join("b", 80);
  look();
  take_all(a, 20);
  a.memory.room[0] = ~0ull;  // one that was taken over
  ask(b, 80);
  look();
  EXPECT_TRUE(may(b)) << "a has 20 of 100";
  EXPECT_EQ(a.memory.room[0], 20 * kMib);
}

TEST_F(MemoryPages, WhatIsFreedIsOthers) {
  TurnPage &a = join("a", 80), &b = join("b", 80);
  look();
  take_all(a, 80);
  EXPECT_EQ(a.memory.room[0], 80 * kMib);
  a.memory.taken[0] -= 50 * kMib;
  ask(b, 60);
  look();
  EXPECT_TRUE(may(b));
  EXPECT_EQ(a.memory.room[0], 30 * kMib);
  EXPECT_TRUE(orders().empty());
}

TEST_F(MemoryPages, OneThatBeginsBetweenHasWhatItAskedForWhileThereWasNoBound) {
  TurnPage& a = join("a", 100);
  look();
  ask(a, 90);
  EXPECT_TRUE(may(a)) << "it goes on without a word";
  TurnPage& b = join("b", 50);  // from here on there is a bound
  look();
  EXPECT_EQ(a.memory.room[0], 90 * kMib);
  ask(b, 50);
  look();
  EXPECT_FALSE(may(b));
}

TEST_F(MemoryPages, AnArbiterThatIsStartedAnewLearnsWhereEverybodyIs) {
  TurnPage &a = join("a", 80), &b = join("b", 80);
  look();
  take_all(a, 80);
  Arbiter fresh;
  std::string error;
  ASSERT_TRUE(fresh.set_memory("GPU-a", 100 * kMib, 0, &error));
  for (const auto& [name, out] : std::map<std::string, uint64_t>{{"a", 60}, {"b", 0}}) {
    TenantRequest request{name, {"GPU-a"}, 50, false};
    request.memory = {{"GPU-a", 80 * kMib, 0, out * kMib}};
    ASSERT_TRUE(fresh.join(name, request, pages[name].get(), now, &error)) << error;
  }
  ask(b, 80);
  fresh.look(now += kMs);
  EXPECT_TRUE(may(b)) << "60 of a's are out";
  EXPECT_EQ(fresh.memory_figures(now).at("a").out, 60 * kMib);
  EXPECT_EQ(a.memory.room[0], 80 * kMib);
}

TEST_F(MemoryPages, OneThatIsSuspendedIsOutAndWantsNothing) {
  TurnPage &a = join("a", 80), &b = join("b", 80);
  look();
  take_all(a, 80);
  join("a", 80, 80, true);
  ++a.memory.waits;  // its program calls
  ++a.memory.calls;
  ask(b, 80);
  look();
  EXPECT_TRUE(may(b));
  take(b);
  for (int i = 0; i < 100; ++i) {
    now += 100 * kMs;
    look();
  }
  EXPECT_TRUE(orders().empty());
}

TEST_F(MemoryPages, AWorkerOfAnEarlierReleaseIsCountedWhole) {
  TurnPage &a = join("a", 80), &b = join("b", 80);
  a.memory.spoken = 0;
  look();
  ask(b, 40);
  for (int i = 0; i < 50; ++i) {
    now += 100 * kMs;
    look();
  }
  EXPECT_FALSE(may(b));
  EXPECT_TRUE(orders().empty()) << "nothing of a moves";
  EXPECT_FALSE(arbiter.memory_figures(now).at("b").why.empty());
}

TEST_F(MemoryPages, WhoEndsLeavesItsRoomAndWhoWasBoundNoLongerIs) {
  TurnPage &a = join("a", 80), &b = join("b", 80);
  look();
  take_all(a, 80);
  ask(b, 80);
  look();
  EXPECT_FALSE(may(b));
  const uint32_t changes = b.memory.changes;
  arbiter.leave("a", now);
  pages.erase("a");
  look();
  EXPECT_TRUE(may(b));
  EXPECT_NE(b.memory.changes, changes) << "it is woken";
}

}  // namespace
}  // namespace sluice::arbiter
