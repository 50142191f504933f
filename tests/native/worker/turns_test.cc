// SPDX-License-Identifier: Apache-2.0
// The gate in turns: the test is the arbiter, and a GPU that does what it is told to.
#include <gtest/gtest.h>

#include <thread>

#include "tests/native/worker/turns_rig.h"

namespace sluice::worker {
namespace {

using namespace turns;

TEST(Turns, ALaunchWaitsForItsTurnAndAsksForIt) {
  auto& r = *new Rig;
  std::thread program([&] { r.launch(stream(1)); });
  ASSERT_TRUE(soon([&] { return r.page->wants == 1; }));
  EXPECT_TRUE(soon([&] { return r.rang(); }));
  a_while();
  EXPECT_EQ(r.gpu.issued(stream(1)), 0u);
  r.give(kUntilWanted);
  program.join();
  EXPECT_EQ(r.gpu.issued(stream(1)), 1u);
}

TEST(Turns, WhoIsAloneIsNeverHeldUp) {
  auto& r = *new Rig(kAlone);
  for (int i = 0; i < 500; ++i) r.launch(stream(1));
  EXPECT_EQ(r.gpu.issued(stream(1)), 500u);
  EXPECT_EQ(r.page->wants, 0u);
  EXPECT_FALSE(r.rang());
}

TEST(Turns, LittleIsUnderWayBesideOthers) {
  auto& r = *new Rig(kUntilWanted);
  r.gpu.instant = true;
  for (int i = 0; i < 100; ++i) r.launch(stream(1));  // it learns that they take 100 us
  r.gpu.instant = false;
  std::thread program([&] {
    for (int i = 0; i < 100; ++i) r.launch(stream(1));
  });
  a_while();
  const uint64_t ahead = r.gpu.issued(stream(1)) - 100;
  EXPECT_GE(ahead, 3u);
  EXPECT_LE(ahead, 13u) << "about a millisecond";
  r.gpu.instant = true;
  program.join();
}

TEST(Turns, ATurnIsGivenBackWhenItsWorkIsDone) {
  auto& r = *new Rig(kUntilWanted);
  r.launch(stream(1));
  r.launch(stream(2));
  r.say(now());  // it is over
  a_while();
  EXPECT_FALSE(r.returned());
  r.gpu.finish(stream(1));
  a_while();
  EXPECT_FALSE(r.returned()) << "the other stream works";
  r.gpu.finish(stream(2));
  EXPECT_TRUE(soon([&] { return r.returned(); }));
  EXPECT_EQ(r.page->wants, 0u);
  EXPECT_TRUE(soon([&] { return r.rang(); }));
}

TEST(Turns, WorkOfBeforeTheGpuWasDividedCounts) {
  auto& r = *new Rig(kAlone);
  for (uintptr_t i = 0; i < 5; ++i) r.launch(stream(i));
  for (uintptr_t i = 0; i < 5; ++i) {
    if (i == 0) r.say(now() + 1);
    a_while();
    EXPECT_FALSE(r.returned()) << "stream " << i << " works";
    r.gpu.finish(stream(i));
  }
  EXPECT_TRUE(soon([&] { return r.returned(); }));
}

TEST(Turns, WhoHasNothingToDoGivesBackBeforeTheEnd) {
  auto& r = *new Rig(kUntilWanted);
  r.launch(stream(1));
  r.gpu.finish(stream(1));
  a_while();
  EXPECT_FALSE(r.returned()) << "nobody wants it";
  r.say(now() + 3'600'000'000'000);
  EXPECT_TRUE(soon([&] { return r.returned(); }));
}

TEST(Turns, WhoHasMoreSaysSo) {
  auto& r = *new Rig(kUntilWanted);
  r.gpu.instant = true;
  std::atomic<bool> stop{false};
  std::thread program([&] {
    while (!stop) r.launch(stream(1));
  });
  ASSERT_TRUE(soon([&] { return r.gpu.issued(stream(1)) > 100; }));
  r.say(now() + 5'000'000);
  ASSERT_TRUE(soon([&] { return r.returned(); }));
  EXPECT_TRUE(soon([&] { return r.page->wants == 1; }));
  const uint64_t had = r.gpu.issued(stream(1));
  a_while();
  EXPECT_EQ(r.gpu.issued(stream(1)), had);
  r.give(kUntilWanted);
  EXPECT_TRUE(soon([&] { return r.gpu.issued(stream(1)) > had; }));
  stop = true;
  program.join();
}

// What runs may wait for what waits at the gate, on another stream.
TEST(Turns, WhatDoesNotEndLetsOtherStreamsPass) {
  auto& r = *new Rig(kUntilWanted);
  r.launch(stream(1));
  r.say(now());
  std::thread program([&] { r.launch(stream(2)); });
  EXPECT_TRUE(soon([&] { return r.gpu.issued(stream(2)) == 1; }));
  program.join();
  a_while();
  EXPECT_FALSE(r.returned());
  r.gpu.finish(stream(1));
  r.gpu.finish(stream(2));
  EXPECT_TRUE(soon([&] { return r.returned(); }));
}

TEST(Turns, AGroupOfCallsIsOne) {
  auto& r = *new Rig(kUntilWanted);
  r.gpu.instant = true;
  auto first = r.gate->pass(stream(1), {1});
  r.say(now());  // between the two
  auto second = r.gate->pass(stream(2), {2});
  a_while();
  EXPECT_FALSE(r.returned()) << "neither is issued";
  first.issued();
  second.issued();
  EXPECT_TRUE(soon([&] { return r.returned(); }));
}

constexpr uint64_t kAll = 0x1234;  // a communicator, on which five collectives were issued

// The arbiter has seen peers at so many.
void draw_cut(Rig& r, uint64_t upto) {
  r.page->issued[0].count = std::max<uint64_t>(r.page->issued[0].count, 5);
  r.page->issued[0].communicator = kAll;
  r.page->places = 1;
  r.page->cut[0] = arbiter::cut_word(kAll, upto);
  r.page->cut_turn = r.page->turn.load();
}

TEST(Turns, WhoLagsBehindPeersGoesOnToTheCutAndNoFurther) {
  auto& r = *new Rig(kUntilWanted);
  r.launch(stream(1));
  r.say(now());
  std::thread program([&] {
    for (int i = 0; i < 10; ++i) {
      r.launch(stream(1));
      auto passage = r.gate->pass(stream(1), {8, 1, true});
      ++r.page->issued[0].count;
      r.keeper->counted();
      r.gpu.launch(stream(1));
      passage.issued();
    }
  });
  a_while();
  EXPECT_EQ(r.gpu.issued(stream(1)), 1u);
  while (r.rang()) {
  }
  draw_cut(r, 7);
  r.say(r.page->until);
  EXPECT_TRUE(soon([&] { return r.page->issued[0].count == 7; }));
  a_while();
  EXPECT_EQ(r.page->issued[0].count, 7u);
  EXPECT_EQ(r.gpu.issued(stream(1)), 5u) << "two collectives, and what comes before each";
  EXPECT_FALSE(r.returned());
  EXPECT_TRUE(r.rang()) << "others may lag behind it now";
  r.gpu.instant = true;
  EXPECT_TRUE(soon([&] { return r.returned(); }));
  r.give(kUntilWanted);
  program.join();
  EXPECT_EQ(r.page->issued[0].count, 15u);
}

TEST(Turns, WhoLagsKeepsItsTurnUntilItsProgramComes) {
  auto& r = *new Rig(kUntilWanted);
  r.gpu.instant = true;
  r.launch(stream(1));
  draw_cut(r, 6);
  r.say(now());
  a_while();
  EXPECT_FALSE(r.returned());
  r.page->cut_turn = 0;  // its peers wait no longer
  EXPECT_TRUE(soon([&] { return r.returned(); }));
}

TEST(Turns, ACutWithoutAnArbiterIsNone) {
  auto& r = *new Rig(kUntilWanted);
  r.gpu.instant = true;
  r.launch(stream(1));
  draw_cut(r, 6);
  r.say(now());
  a_while();
  r.page->beat = now() - 10'000'000'000;
  EXPECT_TRUE(soon([&] { return r.returned(); }));
}

TEST(Turns, ACollectiveIsDoneWhenItIsDone) {
  auto& r = *new Rig(kUntilWanted, 3'600'000'000'000);
  r.gpu.instant = true;
  for (int i = 0; i < 4; ++i) r.gate->pass(stream(1), {7, 1, true}).issued();
  ASSERT_TRUE(r.gate->drained());
  r.gpu.instant = false;
  auto passage = r.gate->pass(stream(1), {7, 1, true});
  r.gpu.launch(stream(1));
  passage.issued();
  int64_t left;
  EXPECT_FALSE(r.gate->almost_drained(3'600'000'000'000, &left)) << "its peers may be late";
  r.gpu.finish(stream(1));
  EXPECT_TRUE(r.gate->almost_drained(0, &left));
}

// So that the next one's work follows without a gap.
TEST(Turns, WhatIsKnownToEndSoonKeepsNobody) {
  auto& r = *new Rig(kUntilWanted, 3'600'000'000'000);
  r.gpu.kernel_ms = 600'000;
  int64_t left;
  r.launch(stream(1));
  EXPECT_FALSE(r.gate->almost_drained(3'600'000'000'000, &left)) << "nothing is known of it";
  r.gpu.instant = true;
  r.launch(stream(1));
  ASSERT_TRUE(r.gate->drained()) << "it has learned that ten minutes are enough";
  r.gpu.instant = false;
  r.launch(stream(1));
  EXPECT_FALSE(r.gate->almost_drained(1'000'000'000, &left));
  EXPECT_TRUE(r.gate->almost_drained(3'600'000'000'000, &left));
  EXPECT_GT(left, 300'000'000'000);
  r.say(now());
  EXPECT_TRUE(soon([&] { return r.returned(); }));
  r.gpu.finish(stream(1));
  a_while();
  EXPECT_EQ(r.page->overran, 0u);
}

TEST(Turns, WhatTookLongerThanExpectedIsSaid) {
  auto& r = *new Rig(kUntilWanted, 3'600'000'000'000);
  r.gpu.kernel_ms = 2'000;
  r.gpu.instant = true;
  r.launch(stream(1));
  ASSERT_TRUE(r.gate->drained());
  r.gpu.instant = false;
  r.launch(stream(1));
  r.say(now());
  ASSERT_TRUE(soon([&] { return r.returned(); }));
  std::this_thread::sleep_for(2'050ms);
  EXPECT_EQ(r.page->overran, 0u);
  r.gpu.finish(stream(1));
  EXPECT_TRUE(soon([&] { return r.page->overran > 0; }));
}

TEST(Turns, WhatWasNotIssuedKeepsNothing) {
  auto& r = *new Rig(kUntilWanted);
  r.gpu.instant = true;
  { const auto failed = r.gate->pass(stream(1), {1}); }
  r.say(now());
  EXPECT_TRUE(soon([&] { return r.returned(); }));
}

TEST(Turns, AHeldSessionGivesItsTurnBack) {
  auto& r = *new Rig(kUntilWanted);
  r.gpu.instant = true;
  r.gate->hold();
  std::thread program([&] { r.launch(stream(1)); });
  r.say(now() + 3'600'000'000'000);
  EXPECT_TRUE(soon([&] { return r.returned(); }));
  EXPECT_EQ(r.page->wants, 0u) << "it waits for something else";
  r.gate->release();
  ASSERT_TRUE(soon([&] { return r.page->wants == 1; }));
  r.give(kUntilWanted);
  program.join();
}

// As an executor's thread, within a command.
TEST(Turns, WhoWaitsForATurnIsKeptBackAndWantsNoneWhileItsSessionStandsStill) {
  auto& r = *new Rig;
  std::thread program([&] {
    Cut::begun();
    r.launch(stream(1));
    Cut::done();
  });
  ASSERT_TRUE(soon([&] { return r.page->wants == 1 && r.cut.kept_back() == 1; }));
  r.cut.close();
  ASSERT_TRUE(soon([&] { return r.cut.kept_back() == 1; }));
  r.give(now() + 3'600'000'000'000);  // others want one, too
  EXPECT_TRUE(soon([&] { return r.returned(); })) << "it has no use for it";
  EXPECT_EQ(r.page->wants, 0u);
  EXPECT_EQ(r.gpu.issued(stream(1)), 0u);
  EXPECT_EQ(r.cut.kept_back(), 1u);
  EXPECT_EQ(r.page->memory.waits, 1u) << "but for its memory, should that be out";
  EXPECT_GE(r.page->memory.calls, 1u);
  r.cut.open();
  ASSERT_TRUE(soon([&] { return r.page->wants == 1; }));
  EXPECT_EQ(r.page->memory.waits, 0u);
  r.give(kUntilWanted);
  program.join();
  EXPECT_EQ(r.gpu.issued(stream(1)), 1u);
  EXPECT_EQ(r.cut.kept_back(), 0u);
}

// Whatever a turn's beginning and a stop's meet: what is counted as kept back launches nothing.
TEST(Turns, WhatIsKeptBackLaunchesNothing) {
  auto& r = *new Rig;
  r.gpu.instant = true;
  constexpr uint64_t kLaunches = 300;
  std::thread program([&] {
    for (uint64_t i = 0; i < kLaunches; ++i) {
      Cut::begun();
      r.launch(stream(1));
      Cut::done();
    }
  });
  std::atomic<bool> over{false};
  std::thread arbiter([&] {
    while (!over) {
      r.give(now() + 300'000);
      std::this_thread::sleep_for(700us);
    }
  });
  while (r.gpu.issued(stream(1)) < kLaunches) {
    r.cut.close();
    for (int i = 0; i < 1'000 && r.cut.kept_back() == 0; ++i) std::this_thread::yield();
    if (r.cut.kept_back() == 1) {
      const uint64_t before = r.gpu.issued(stream(1));
      std::this_thread::sleep_for(1ms);
      EXPECT_EQ(r.gpu.issued(stream(1)), before);
    }
    r.cut.open();
    std::this_thread::sleep_for(200us);
  }
  program.join();
  over = true;
  arbiter.join();
}

// A group of calls to NCCL is one: its later calls wait for nothing.
TEST(Turns, WhoHasBegunAGroupOfCallsEndsItWhateverStandsStill) {
  auto& r = *new Rig(kUntilWanted);
  std::thread program([&] {
    auto first = r.gate->pass(stream(1), {7});
    r.cut.close();
    r.say(now());
    auto second = r.gate->pass(stream(1), {7});
    r.gpu.launch(stream(1));
    first.issued();
    second.issued();
  });
  program.join();
  EXPECT_EQ(r.gpu.issued(stream(1)), 1u);
}

TEST(Turns, WhoEndsWaitsForNothing) {
  auto& r = *new Rig(kUntilWanted);
  r.launch(stream(1));
  r.keeper->leave();
  EXPECT_TRUE(r.returned()) << "whatever it left";
  EXPECT_TRUE(r.rang());
  std::thread([&] { r.launch(stream(1)); }).detach();
  a_while();
  EXPECT_EQ(r.page->wants, 0u);
  EXPECT_EQ(r.gpu.issued(stream(1)), 1u);
}

TEST(Turns, WithoutAnArbiterItGoesOn) {
  auto& r = *new Rig;
  r.page->beat = now() - 10'000'000'000;
  r.launch(stream(1));
  EXPECT_EQ(r.gpu.issued(stream(1)), 1u);
  // Another one begins, and is obeyed.
  r.beat();
  r.say(kNoTurn);
  ASSERT_TRUE(soon([&] { return !r.keeper->free(); }));
  std::thread program([&] { r.launch(stream(1)); });
  ASSERT_TRUE(soon([&] { return r.page->wants == 1; }));
  a_while();
  EXPECT_EQ(r.gpu.issued(stream(1)), 1u);
  r.give(kUntilWanted);
  program.join();
}

TEST(Turns, AStreamThatEndsOrCapturesIsNotAskedAgain) {
  auto& r = *new Rig(kUntilWanted);
  r.launch(stream(1));
  r.gate->leave(stream(1));
  r.gpu.finish(stream(1));
  r.say(now());
  EXPECT_TRUE(soon([&] { return r.returned(); }));
}

TEST(Turns, WhatIsNoPageIsRefused) {
  std::string error;
  const int small = memfd_create("turns", MFD_CLOEXEC);
  EXPECT_EQ(TurnKeeper::open(small, -1, &error), nullptr);
  ASSERT_EQ(ftruncate(small, arbiter::kTurnPageBytes), 0);
  EXPECT_EQ(TurnKeeper::open(small, -1, &error), nullptr) << "it lacks the mark of one";
  close(small);
}

}  // namespace
}  // namespace sluice::worker
