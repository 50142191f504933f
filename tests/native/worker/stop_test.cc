// SPDX-License-Identifier: Apache-2.0
// Executor::stop(): commands are kept back where none is half done, over every channel, and go on
// as if nothing had been.
#include "tests/native/worker/executor_rig.h"

namespace sluice::test {
namespace {

using namespace std::chrono_literals;
using channel::now_ns;

constexpr uint64_t kLong = 20'000'000'000, kShort = 50'000'000;

class Stopping : public ::testing::TestWithParam<Kind> {
 protected:
  Rig& make() {
    Rig& rig = keep<Rig>(GetParam());
    if (GetParam() == Kind::kIvshmem || GetParam() == Kind::kRelayedGuest) rig.ring_for_guest();
    return rig;
  }
};

TEST_P(Stopping, NothingBeginsUntilItGoesOnAndNothingIsLost) {
  Rig& rig = make();
  ASSERT_TRUE(rig.executor->start());
  constexpr unsigned kEach = 2000;
  std::atomic<bool> over{false};
  std::thread client([&] {
    for (unsigned i = 0; i < kEach; ++i) {
      rig.post_fill(i);
      if (i % 100 == 0) std::this_thread::sleep_for(1ms);
    }
    EXPECT_TRUE(rig.wait_idle(0));
    over = true;
  });
  unsigned stops = 0;
  while (!over) {
    if (!rig.executor->stop(now_ns() + kLong)) break;
    const size_t before = rig.driver.fill_count();
    std::this_thread::sleep_for(2ms);
    EXPECT_EQ(rig.driver.fill_count(), before);
    rig.executor->go_on();
    ++stops;
    std::this_thread::sleep_for(1ms);
  }
  client.join();
  EXPECT_GT(stops, 0u);
  const std::vector<unsigned> fills = rig.driver.fills();
  ASSERT_EQ(fills.size(), kEach);
  for (unsigned i = 0; i < kEach; ++i) ASSERT_EQ(fills[i], i);
}

TEST_P(Stopping, ACommandThatDoesNotEndIsWaitedForNoLonger) {
  Rig& rig = make();
  Signal &entered = keep<Signal>(), &release = keep<Signal>();
  rig.driver.on_synchronize = [&] {
    entered.give();
    release.wait();
    return CUDA_SUCCESS;
  };
  ASSERT_TRUE(rig.executor->start());
  const wire::DeviceIdle idle{0, 0};
  rig.send(wire::kDeviceIdle, 0, 1, &idle, sizeof idle);
  ASSERT_TRUE(entered.wait());
  EXPECT_FALSE(rig.executor->stop(now_ns() + kShort));
  rig.post_fill(7);
  if (GetParam() == Kind::kShm || GetParam() == Kind::kIvshmem) {
    uint32_t status = 1;  // the others go on meanwhile
    EXPECT_TRUE(rig.exchange(wire::kPing, 1, 1, &status));
  }
  release.give();
  client::Reply reply;
  EXPECT_TRUE(rig.channel->wait(0, 1, &reply));
  EXPECT_TRUE(rig.driver.wait_fills(1));
  EXPECT_TRUE(rig.executor->stop(now_ns() + kLong));
  rig.executor->go_on();
}

INSTANTIATE_TEST_SUITE_P(Channels, Stopping,
                         ::testing::Values(Kind::kShm, Kind::kIvshmem, Kind::kTcp, Kind::kRelayed,
                                           Kind::kRelayedGuest));

}  // namespace
}  // namespace sluice::test
