// SPDX-License-Identifier: Apache-2.0
// Commands that are held until their piece is whole, over every channel: in order, none lost and
// none twice, whatever stops, fails or ends meanwhile.
#include <random>

#include "tests/native/worker/executor_rig.h"

namespace sluice::test {
namespace {

using namespace std::chrono_literals;
using channel::now_ns;
using wire::LeftSingle;

constexpr uint64_t kForEver = 20'000'000'000;
constexpr unsigned kPeriod = 8;  // the commands of one piece behind a boundary

class Merging : public ::testing::TestWithParam<Kind> {
 protected:
  Rig& make() {
    Rig& rig = keep<Rig>(GetParam(), worker::Merging::kForce);
    if (GetParam() == Kind::kIvshmem || GetParam() == Kind::kRelayedGuest) rig.ring_for_guest();
    EXPECT_TRUE(rig.executor->start());
    return rig;
  }
  static void post_turn(Rig& rig, unsigned commands = kPeriod) {
    for (unsigned i = 0; i < commands; ++i) rig.post_fill(i);
  }
  static const worker::MergingFigures& figures(Rig& rig) { return rig.session->figures.merging; }
  // Until whole turns are launched as graphs.
  static unsigned repeat_until_merged(Rig& rig) {
    unsigned turns = 0;
    for (uint32_t sequence = 1; figures(rig).launches == 0 && turns < 1000; ++sequence, ++turns) {
      post_turn(rig);
      EXPECT_TRUE(rig.wait_idle(0, sequence));
    }
    EXPECT_GT(figures(rig).launches, 0u);
    return turns;
  }
  static uint64_t counted(Rig& rig) {
    uint64_t sum = figures(rig).replayed;
    for (const auto& left : figures(rig).left) sum += left;
    return sum;
  }
  static void expect_turns(const std::vector<unsigned>& fills) {
    for (size_t i = 0; i < fills.size(); ++i) ASSERT_EQ(fills[i], i % kPeriod) << "command " << i;
  }
};

TEST_P(Merging, RepeatsAreLaunchedAsGraphsInOrderWhileItIsStoppedAgainAndAgain) {
  Rig& rig = make();
  constexpr unsigned kTurns = 400;
  std::atomic<bool> over{false};
  std::thread client([&] {
    std::mt19937 random(1);
    for (unsigned turn = 0; turn < kTurns; ++turn) {
      for (unsigned i = 0; i < kPeriod; ++i) {
        rig.post_fill(i);
        if (random() % 40 == 0) std::this_thread::sleep_for(1ms);
      }
      EXPECT_TRUE(rig.wait_idle(0, turn + 1));
    }
    over = true;
  });
  while (!over) {
    if (!rig.executor->stop(now_ns() + kForEver)) break;
    const size_t before = rig.driver.fill_count();
    std::this_thread::sleep_for(1ms);
    EXPECT_EQ(rig.driver.fill_count(), before) << "what was held ran behind the stop";
    rig.executor->go_on();
    std::this_thread::sleep_for(2ms);
  }
  client.join();
  const auto fills = rig.driver.fills();
  EXPECT_EQ(fills.size(), kTurns * kPeriod);
  expect_turns(fills);
  EXPECT_GT(figures(rig).replayed, 0u);
  EXPECT_EQ(counted(rig), rig.session->figures.commands) << "each command is counted once";
}

TEST_P(Merging, WhatIsHeldRunsBeforeAStopEnds) {
  Rig& rig = make();
  const unsigned turns = repeat_until_merged(rig);
  post_turn(rig, 3);
  const uint64_t all = rig.session->figures.commands;
  // All three have come, or come while it stops, or stay in the channel behind that.
  ASSERT_TRUE(rig.executor->stop(now_ns() + kForEver));
  const size_t stopped = rig.driver.fill_count();
  EXPECT_GE(stopped, turns * kPeriod);
  std::this_thread::sleep_for(30ms);  // longer than anything is held
  EXPECT_EQ(rig.driver.fill_count(), stopped);
  rig.executor->go_on();
  EXPECT_TRUE(rig.driver.wait_fills(turns * kPeriod + 3));
  expect_turns(rig.driver.fills());
  EXPECT_GE(rig.session->figures.commands, all);
}

TEST_P(Merging, WhatIsHeldRunsWhenTheClientEnds) {
  Rig& rig = make();
  const unsigned turns = repeat_until_merged(rig);
  post_turn(rig, 3);
  rig.send(wire::kClose, wire::kNoLane, 0, nullptr, 0);
  ASSERT_TRUE(rig.ended.wait());
  EXPECT_EQ(rig.cause, wire::EndCause::kClientEnded);
  const auto fills = rig.driver.fills();
  EXPECT_EQ(fills.size(), turns * kPeriod + 3);
  expect_turns(fills);
}

TEST_P(Merging, AFaultIsTheLaunchsAndWhatIsHeldBehindItRuns) {
  Rig& rig = make();
  repeat_until_merged(rig);
  const uint64_t launches = figures(rig).launches;
  rig.driver.graph_status = CUDA_ERROR_ILLEGAL_ADDRESS;
  rig.driver.fill_status = CUDA_ERROR_ILLEGAL_ADDRESS;
  post_turn(rig);
  post_turn(rig, 3);
  const wire::DeviceIdle idle{0, 0};
  uint32_t status = 0;
  EXPECT_TRUE(rig.exchange(wire::kDeviceIdle, 1, 1, &status, &idle, sizeof idle));
  for (int i = 0; i < 2000 && rig.channel->sticky_error() == 0; ++i)
    std::this_thread::sleep_for(10ms);
  EXPECT_EQ(rig.channel->sticky_error(), static_cast<uint32_t>(CUDA_ERROR_ILLEGAL_ADDRESS));
  EXPECT_GE(figures(rig).launches, launches);
  EXPECT_EQ(counted(rig), rig.session->figures.commands);
}

// Nothing was launched, so the same commands run one by one, each with its own result.
TEST_P(Merging, AGraphThatIsNotTakenRunsAsItsCommands) {
  Rig& rig = make();
  unsigned turns = repeat_until_merged(rig);
  rig.driver.graph_status = CUDA_ERROR_NOT_SUPPORTED;
  for (uint32_t i = 0; i < 10; ++i, ++turns) {
    post_turn(rig);
    EXPECT_TRUE(rig.wait_idle(1, i + 1));
  }
  const auto fills = rig.driver.fills();
  EXPECT_EQ(fills.size(), turns * kPeriod);
  expect_turns(fills);
  EXPECT_GE(figures(rig).refused, 1u);
  EXPECT_LE(figures(rig).refused, 2u) << "each piece is tried once";
}

INSTANTIATE_TEST_SUITE_P(Channels, Merging,
                         ::testing::Values(Kind::kShm, Kind::kIvshmem, Kind::kTcp, Kind::kRelayed,
                                           Kind::kRelayedGuest),
                         kind_name);

}  // namespace
}  // namespace sluice::test
