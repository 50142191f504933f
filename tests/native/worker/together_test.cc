// SPDX-License-Identifier: Apache-2.0
// While tenants run at once: gates hold nobody up, workers say how they get on, and the GPU is left
// soon when turns begin again.
#include <gtest/gtest.h>

#include <thread>

#include "tests/native/worker/turns_rig.h"

namespace sluice::worker {
namespace {

using namespace turns;

constexpr int64_t kHour = 3'600'000'000'000;

TEST(TogetherGate, HoldsNobodyUp) {
  auto& r = *new Rig(kTogether);
  for (int i = 0; i < 100; ++i) r.launch(stream(1));
  EXPECT_EQ(r.gpu.issued(stream(1)), 100u);
  EXPECT_EQ(r.page->wants, 0u);
  EXPECT_FALSE(r.rang());
}

TEST(TogetherGate, SaysHowItGetsOn) {
  auto& r = *new Rig(kTogether);
  r.gpu.instant = true;
  for (int i = 0; i < 30; ++i) r.launch(stream(1));
  EXPECT_TRUE(soon([&] { return r.page->launches == 30; }));
  r.gpu.instant = false;
  r.launch(stream(1));
  const uint64_t busy = r.page->busy;
  EXPECT_TRUE(soon([&] { return r.page->busy > busy; })) << "what is under way counts";
}

TEST(TogetherGate, SaysBeforeATurnIsGivenBackWhatItHadDone) {
  auto& r = *new Rig(kUntilWanted);
  r.gpu.instant = true;
  for (int i = 0; i < 100; ++i) r.launch(stream(1));
  r.say(now());
  ASSERT_TRUE(soon([&] { return r.returned(); }));
  EXPECT_EQ(r.page->launches, 100u);
  EXPECT_GT(r.page->watched, 0u);
  EXPECT_LE(r.page->dry, r.page->watched);
}

TEST(TogetherGate, ATurnThatIsGivenBackUnusedRanDry) {
  auto& r = *new Rig(kUntilWanted);
  r.gpu.instant = true;
  r.gpu.kernel_ms = 0.001f;
  r.launch(stream(1));
  r.say(now() + kHour);
  ASSERT_TRUE(soon([&] { return r.returned(); }));
  EXPECT_GT(r.page->dry, r.page->watched / 2);
}

// A GPU that has come to a mark's end waits for as long as the call that follows takes to launch.
TEST(TogetherGate, WhatALibraryThinksAboutWhileTheGpuIsIdleRanDry) {
  auto& r = *new Rig(kUntilWanted);
  r.gpu.instant = true;
  r.gpu.gap_ms = 0.005f;
  for (int i = 0; i < 500; ++i) r.launch(stream(1), 7, 60us);
  r.say(now());
  ASSERT_TRUE(soon([&] { return r.returned(); }));
  EXPECT_GT(r.page->dry, r.page->watched / 2);
}

// Where the GPU had work it does not matter how long the next call took.
TEST(TogetherGate, WhatALibraryThinksAboutWhileTheGpuWorksDidNot) {
  auto& r = *new Rig(kUntilWanted);
  r.gpu.instant = true;
  for (int i = 0; i < 500; ++i) r.launch(stream(1), 7, 60us);
  r.say(now());
  ASSERT_TRUE(soon([&] { return r.returned(); }));
  EXPECT_EQ(r.page->dry, 0u);
}

// What is under way then is known to be done within about the grace.
TEST(TogetherGate, KeepsAsMuchUnderWayAsIsSoonDone) {
  auto& r = *new Rig(kTogether);
  r.gpu.kernel_ms = 5;
  r.gpu.instant = true;
  for (int i = 0; i < 1000; ++i) r.launch(stream(1));  // it learns how long they take
  r.gpu.instant = false;
  std::thread program([&] {
    for (int i = 0; i < 100; ++i) r.launch(stream(1));
  });
  a_while();
  const uint64_t ahead = r.gpu.issued(stream(1)) - 1000;
  EXPECT_GE(ahead, 2u);
  EXPECT_LE(ahead, 10u);
  r.gpu.instant = true;
  program.join();
}

TEST(TogetherGate, GivesBackWhenTurnsBeginAgain) {
  auto& r = *new Rig(kTogether);
  r.launch(stream(1));
  r.launch(stream(2));
  r.say(now());
  a_while();
  EXPECT_FALSE(r.returned());
  r.gpu.finish(stream(1));
  r.gpu.finish(stream(2));
  EXPECT_TRUE(soon([&] { return r.returned(); }));
  std::thread program([&] { r.launch(stream(1)); });
  EXPECT_TRUE(soon([&] { return r.page->wants == 1; }));
  a_while();
  EXPECT_EQ(r.gpu.issued(stream(1)), 1u);
  r.give(kTogether);
  program.join();
}

TEST(TogetherGate, WithoutAnArbiterItGoesOnAndObeysTheNext) {
  auto& r = *new Rig(kTogether);
  r.page->beat = now() - 10'000'000'000;
  r.launch(stream(1));
  a_while();
  r.beat();
  r.say(kNoTurn);
  ASSERT_TRUE(soon([&] { return !r.keeper->free(); }));
  std::thread program([&] { r.launch(stream(1)); });
  ASSERT_TRUE(soon([&] { return r.page->wants == 1; }));
  EXPECT_EQ(r.gpu.issued(stream(1)), 1u);
  r.give(kUntilWanted);
  program.join();
}

}  // namespace
}  // namespace sluice::worker
