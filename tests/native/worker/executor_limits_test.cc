// SPDX-License-Identifier: Apache-2.0
// What a client can make an executor hold and wait for has bounds: lanes, threads, what lies in its
// connection, answers that nobody reads.
#include "tests/native/channel/no_threads.h"
#include "tests/native/worker/executor_rig.h"

namespace sluice::test {
namespace {

using namespace std::chrono_literals;

class Limits : public ::testing::TestWithParam<Kind> {
 protected:
  Rig& make() {
    Rig& rig = keep<Rig>(GetParam());
    if (GetParam() == Kind::kIvshmem || GetParam() == Kind::kRelayedGuest) rig.ring_for_guest();
    return rig;
  }
};

// Each lane that there is waits for one answer; what asks for more means harm.
TEST_P(Limits, LanesAreThoseThatThereAreAndHaveOneCommandEach) {
  for (const bool beyond : {true, false}) {
    Rig& rig = make();
    Signal &entered = keep<Signal>(), &never = keep<Signal>();
    rig.driver.on_synchronize = [&] {
      entered.give();
      never.wait(60s);
      return CUDA_SUCCESS;
    };
    ASSERT_TRUE(rig.executor->start());
    const auto lanes = static_cast<uint16_t>(rig.channel->lane_count());
    const wire::DeviceIdle idle{0, 0};
    if (!beyond) {
      rig.send(wire::kDeviceIdle, 0, 1, &idle, sizeof idle);
      ASSERT_TRUE(entered.wait());
    }
    rig.send(wire::kPing, beyond ? lanes : 0, 2, nullptr, 0);
    ASSERT_TRUE(rig.ended.wait());
    const std::string reason = beyond ? "names the lane " + std::to_string(lanes)
                                      : "the lane 0 waits for another answer already";
    EXPECT_NE(rig.reason.find(reason), std::string::npos) << rig.reason;
    never.give();
  }
}

// At its limit of threads: commands wait for one another, and nothing ends.
TEST_P(Limits, WithoutAnotherThreadCommandsWaitForOneAnother) {
  Rig& rig = make();
  Signal &entered = keep<Signal>(), &release = keep<Signal>();
  rig.driver.on_synchronize = [&] {
    entered.give();
    release.wait();
    return CUDA_SUCCESS;
  };
  ASSERT_TRUE(rig.executor->start());
  uint32_t status = 1;
  ASSERT_TRUE(rig.exchange(wire::kPing, 2, 1, &status));
  const NoThreads none;
  const wire::DeviceIdle idle{0, 0};
  rig.send(wire::kDeviceIdle, 0, 1, &idle, sizeof idle);
  ASSERT_TRUE(entered.wait());
  rig.post_fill(1);
  rig.send(wire::kPing, 1, 1, nullptr, 0);
  release.give();
  client::Reply reply;
  EXPECT_TRUE(rig.channel->wait(0, 1, &reply));
  EXPECT_EQ(reply.status, 0u);
  EXPECT_TRUE(rig.channel->wait(1, 1, &reply));
  EXPECT_EQ(rig.driver.fill_count(), 1u);
}

TEST_P(Limits, WithoutAnyThreadASessionDoesNotStart) {
  Rig& rig = make();
  const NoThreads none;
  EXPECT_FALSE(rig.executor->start());
}

INSTANTIATE_TEST_SUITE_P(Channels, Limits,
                         ::testing::Values(Kind::kShm, Kind::kIvshmem, Kind::kTcp, Kind::kRelayed,
                                           Kind::kRelayedGuest),
                         kind_name);

// A program at its limit of threads has a connection without the client's own ones.
TEST(ClientWithoutThreads, SendsAndIsAnswered) {
  Rig* rig;
  {
    const NoThreads none;
    rig = &keep<Rig>(Kind::kTcp);
  }
  ASSERT_TRUE(rig->executor->start());
  rig->post_fill(1);
  ASSERT_TRUE(rig->driver.wait_fills(1)) << "sent though nobody waits for it";
  uint32_t status = 1;
  EXPECT_TRUE(rig->exchange(wire::kPing, 0, 1, &status));
}

// Whoever takes commands waits for the GPU: what comes meanwhile is taken out of the connection, so
// that its end is seen, and runs in its order afterwards.
TEST(StandingLeader, WhatWasReadAheadRunsInItsOrder) {
  Rig& rig = keep<Rig>(Kind::kTcp);
  Signal &entered = keep<Signal>(), &release = keep<Signal>();
  rig.driver.stream_status = CUDA_ERROR_NOT_READY;
  rig.driver.on_fill = [&](unsigned value) {
    if (value != 0) return;
    entered.give();
    release.wait();
  };
  ASSERT_TRUE(rig.executor->start());
  uint32_t status = 1;
  ASSERT_TRUE(rig.exchange(wire::kPing, 0, 1, &status));
  constexpr unsigned kFills = 50'000;  // several times what the socket holds
  Signal& sent = keep<Signal>();
  std::thread sender([&] {
    for (unsigned i = 0; i < kFills; ++i) rig.post_fill(i);
    sent.give();
  });
  ASSERT_TRUE(entered.wait());
  EXPECT_TRUE(sent.wait()) << "nobody takes it out of the connection";
  EXPECT_EQ(rig.driver.fill_count(), 0u);
  release.give();
  sender.join();
  ASSERT_TRUE(rig.driver.wait_fills(kFills)) << rig.driver.fill_count();
  unsigned next = 0;
  for (unsigned value : rig.driver.fills()) ASSERT_EQ(value, next++);
  rig.driver.stream_status = CUDA_SUCCESS;
}

// A client that sends and never reads fills the socket; the server's word still ends the session.
TEST(DeafClient, CanBeEnded) {
  Rig& rig = keep<Rig>(Kind::kTcp);
  ASSERT_TRUE(rig.executor->start());
  std::thread([&rig] {
    wire::FrameHeader h{sizeof h, wire::kPing, 0, 1, 1};
    while (::send(rig.client_socket, &h, sizeof h, MSG_NOSIGNAL) > 0)
      h.lane = static_cast<uint16_t>((h.lane + 1) % wire::kStreamLanes);
  }).detach();
  uint64_t before = ~uint64_t{0};
  for (int same = 0; same < 5;) {  // until the worker stands still
    std::this_thread::sleep_for(50ms);
    const uint64_t now = rig.session->figures.commands.load();
    same = now == before ? same + 1 : 0;
    before = now;
  }
  std::thread([&rig] {
    rig.executor->end({wire::EndCause::kOperator, "the server ended it"},
                      CUDA_ERROR_SYSTEM_NOT_READY);
  }).detach();
  EXPECT_TRUE(rig.ended.wait()) << "the end waits for the client";
}

}  // namespace
}  // namespace sluice::test
