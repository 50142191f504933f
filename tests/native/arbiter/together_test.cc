// SPDX-License-Identifier: Apache-2.0
// Who runs at once and who does not, on a simulated GPU: those that leave it idle in their turns,
// as long as each gets on as fast as in turns, and whatever any of them says.
#include "arbiter/together.h"

#include <gtest/gtest.h>

#include "tests/native/arbiter/pages.h"
#include "tests/native/arbiter/slicing_gpu.h"

namespace sluice::arbiter {
namespace {

constexpr Nanoseconds kSecond = 1'000 * kMs;
constexpr Launches kSmall{.gap_us = 10, .kernel_us = 1};
constexpr Launches kFull{.gap_us = 10, .kernel_us = 1000};

// So many of a kind, from 1 on.
SlicingGpu gpu_of(uint32_t count, const Launches& kind) {
  SlicingGpu gpu;
  for (uint32_t id = 1; id <= count; ++id) gpu.tenants[id] = kind;
  return gpu;
}

// What it does of what it would alone, in the time from now on.
double pace(SlicingGpu& gpu, uint32_t tenant, Nanoseconds time) {
  const double before = gpu.done[tenant];
  gpu.run(time);
  return (gpu.done[tenant] - before) * 1e6 / gpu.tenants.at(tenant).alone() /
         static_cast<double>(time);
}

TEST(Together, EightThatLeaveTheGpuIdleRunAtOnce) {
  SlicingGpu gpu = gpu_of(8, kSmall);
  EXPECT_LT(pace(gpu, 1, kSecond / 2), 0.13);
  gpu.run(kSecond);
  EXPECT_TRUE(gpu.together.is());
  EXPECT_GT(pace(gpu, 1, 600 * kSecond), 0.97) << "measuring anew included";
  EXPECT_GE(gpu.began, 9) << "and it is measured anew each minute";
}

TEST(Together, OneAloneHasNobodyToRunWith) {
  SlicingGpu gpu = gpu_of(1, kSmall);
  gpu.run(60 * kSecond);
  EXPECT_EQ(gpu.began, 0);
}

TEST(Together, WhoKeepsTheGpuBusyHasItInTurns) {
  for (const double kernel_us : {20.0, 100.0, 1000.0, 5000.0}) {
    SlicingGpu gpu = gpu_of(3, {.gap_us = 10, .kernel_us = kernel_us});
    gpu.run(60 * kSecond);
    EXPECT_EQ(gpu.began, 0) << kernel_us;
  }
}

TEST(Together, OneThatKeepsItBusyKeepsAllInTurns) {
  SlicingGpu gpu = gpu_of(7, kSmall);
  gpu.tenants[8] = kFull;
  gpu.run(60 * kSecond);
  EXPECT_EQ(gpu.began, 0);
}

TEST(Together, OneThatJoinsAndKeepsItBusyEndsIt) {
  SlicingGpu gpu = gpu_of(4, kSmall);
  gpu.run(3 * kSecond);
  ASSERT_TRUE(gpu.together.is());
  gpu.tenants[9] = kFull;
  gpu.step();
  EXPECT_FALSE(gpu.together.is()) << "at once";
  gpu.run(30 * kSecond);
  EXPECT_FALSE(gpu.together.is());
  gpu.tenants.erase(9);
  gpu.run(3 * kSecond);
  EXPECT_TRUE(gpu.together.is());
}

// One of them becomes a training: it takes an equal part of the GPU, which is more than its share.
TEST(Together, OneThatBeginsToFillTheGpuEndsItWhereOthersFallBehind) {
  SlicingGpu gpu;
  gpu.tenants[1] = {.gap_us = 10, .kernel_us = 7.5, .percent = 80};
  gpu.tenants[2] = {.gap_us = 10, .kernel_us = 1, .percent = 20};
  gpu.run(3 * kSecond);
  ASSERT_TRUE(gpu.together.is());
  gpu.tenants[2].kernel_us = 1000;
  gpu.tenants[2].launches = 100;  // and says that it gets on as before
  gpu.run(300 * kMs);
  EXPECT_FALSE(gpu.together.is());
  EXPECT_GT(pace(gpu, 1, 60 * kSecond), 0.8 * 0.94);
}

TEST(Together, WhoFallsBehindItsShareEndsIt) {
  SlicingGpu gpu = gpu_of(2, {.gap_us = 10, .kernel_us = 7, .percent = 10});
  gpu.tenants[1].percent = 90;  // in turns nine tenths of what it does alone
  gpu.run(60 * kSecond);
  EXPECT_GT(gpu.began, 0);
  EXPECT_LT(gpu.together_ns, kSecond);
  EXPECT_GT(pace(gpu, 1, 60 * kSecond), 0.9 * 0.94);
}

TEST(Together, WhatTheDriverLosesBySlicingIsDoneInTurns) {
  SlicingGpu gpu = gpu_of(4, {.gap_us = 10, .kernel_us = 5});
  gpu.switching = 0.6;
  gpu.run(2000 * kSecond);
  EXPECT_GT(gpu.began, 1);
  EXPECT_LE(gpu.began, 8) << "each time it is tried later";
  EXPECT_LT(gpu.together_ns, 2 * kSecond);
}

TEST(Together, EachTrialThatFailsIsFollowedByLongerTurns) {
  SlicingGpu gpu = gpu_of(4, {.gap_us = 10, .kernel_us = 5});
  gpu.switching = 0.6;
  std::vector<Nanoseconds> began;
  while (gpu.now < 3000 * kSecond) {
    const int before = gpu.began;
    gpu.step();
    if (gpu.began > before) began.push_back(gpu.now);
    gpu.now += 10 * kMs;
  }
  ASSERT_GE(began.size(), 7u);
  EXPECT_NEAR(static_cast<double>(began[0]) / kSecond, 1, 0.5);
  const std::vector<double> pauses{5, 25, 125, 600, 600};
  for (size_t i = 0; i < pauses.size(); ++i)
    EXPECT_NEAR(static_cast<double>(began[i + 1] - began[i]) / kSecond, pauses[i], 0.5);
}

TEST(Together, OtherTenantsAreAnotherMatter) {
  SlicingGpu gpu = gpu_of(4, {.gap_us = 10, .kernel_us = 5});
  gpu.switching = 0.6;
  gpu.run(100 * kSecond);
  EXPECT_FALSE(gpu.together.is());
  gpu.switching = 0.05;
  gpu.tenants.erase(1);
  gpu.tenants.erase(2);
  gpu.run(3 * kSecond);
  EXPECT_TRUE(gpu.together.is());
  EXPECT_GT(pace(gpu, 3, 10 * kSecond), 0.94);
}

// Sessions that come and go all the time are no way to trial after trial, whenever they do.
TEST(Together, WhoComesAndGoesCannotHaveItTriedMoreOften) {
  for (const Nanoseconds pause : {700 * kMs, 750 * kMs, 2'000 * kMs, 2'600 * kMs}) {
    SlicingGpu gpu = gpu_of(2, {.gap_us = 10, .kernel_us = 7, .percent = 10});
    gpu.tenants[1].percent = 90;
    while (gpu.now < 120 * kSecond) {
      gpu.tenants[3] = {.percent = 1, .active = 0};
      gpu.run(pause);
      gpu.tenants.erase(3);
      gpu.run(pause);
    }
    EXPECT_LE(gpu.began, 120 / 5 + 1) << pause;
    EXPECT_LT(gpu.together_ns, 120 * kSecond / 20) << pause;
  }
}

TEST(Together, NotWithAGangOrACap) {
  SlicingGpu gpu = gpu_of(4, kSmall);
  gpu.tenants[4].fit = false;
  gpu.run(30 * kSecond);
  EXPECT_EQ(gpu.began, 0);
  gpu.tenants[4].fit = true;
  gpu.run(3 * kSecond);
  EXPECT_TRUE(gpu.together.is());
  gpu.tenants[4].fit = false;
  gpu.step();
  EXPECT_FALSE(gpu.together.is());
}

TEST(Together, NotWhereItIsNotAllowed) {
  SlicingGpu gpu = gpu_of(4, kSmall);
  gpu.allowed = false;
  gpu.run(10 * kSecond);
  EXPECT_EQ(gpu.began, 0);
  gpu.allowed = true;
  gpu.run(kSecond);
  EXPECT_TRUE(gpu.together.is());
  gpu.allowed = false;
  gpu.step();
  EXPECT_FALSE(gpu.together.is());
}

TEST(Together, OneOfWhomNothingIsKnownEndsItWhenItWakes) {
  SlicingGpu gpu = gpu_of(4, kSmall);
  gpu.tenants[4].active = 0;
  gpu.run(3 * kSecond);
  EXPECT_TRUE(gpu.together.is());
  EXPECT_FALSE(gpu.together.has(4));
  gpu.tenants[4].active = 1;
  gpu.run(20 * kMs);
  EXPECT_FALSE(gpu.together.is());
  gpu.run(7 * kSecond);
  EXPECT_TRUE(gpu.together.has(4)) << "by then it is known";
}

TEST(Together, OthersThatRestAreNoReasonToEndIt) {
  SlicingGpu gpu = gpu_of(4, kSmall);
  gpu.run(3 * kSecond);
  ASSERT_TRUE(gpu.together.is());
  for (uint32_t id = 1; id <= 3; ++id) {
    gpu.tenants[id].active = 0;
    gpu.run(2 * kSecond);
    EXPECT_TRUE(gpu.together.is()) << id;
  }
  gpu.tenants[1].active = 0.05;  // asks now and then
  gpu.run(20 * kSecond);
  EXPECT_EQ(gpu.began, 1);
}

// One that says that it leaves the GPU idle and fills it has it tried; the others find out.
TEST(Together, WhoClaimsToBeSmallHasNoMoreForIt) {
  SlicingGpu gpu = gpu_of(3, {.gap_us = 10, .kernel_us = 7, .percent = 30});
  gpu.tenants[4] = kFull;
  gpu.tenants[4].dry = 1e9;
  EXPECT_NEAR(gpu.tenants[4].wants(), 1, 1e-9);
  gpu.run(kSecond / 2);
  for (const double busy : {0.0, 1.0, 100.0}) {
    gpu.tenants[4].busy = busy;
    const Nanoseconds before = gpu.together_ns;
    EXPECT_GT(pace(gpu, 1, 600 * kSecond), 0.3 * 0.94) << busy;
    EXPECT_LT(gpu.together_ns - before, 12 * kSecond) << busy;
  }
}

// Nor has one that tells of more launches than there are, or of fewer: it can have it end.
TEST(Together, WhoLiesAboutItsPaceEndsItAtMost) {
  for (const double launches : {0.0, 0.01, 1000.0}) {
    SlicingGpu gpu = gpu_of(4, kSmall);
    gpu.tenants[4].launches = launches;
    EXPECT_GT(pace(gpu, 1, 60 * kSecond), 0.23) << launches;
  }
  SlicingGpu gpu = gpu_of(4, kSmall);
  gpu.run(3 * kSecond);
  ASSERT_TRUE(gpu.together.is());
  gpu.tenants[4].launches = 0;
  gpu.run(kSecond);
  EXPECT_FALSE(gpu.together.is());
  EXPECT_GT(pace(gpu, 1, 60 * kSecond), 0.23);
}

}  // namespace
}  // namespace sluice::arbiter
