// SPDX-License-Identifier: Apache-2.0
// The executor behind its real channels, with the client's end in the same process and a driver
// that only writes down: one order for what nobody waits for, lanes that pass one another, and an
// end with a reason for every channel that breaks.
#include "tests/native/worker/executor_rig.h"

namespace sluice::test {
namespace {

using namespace std::chrono_literals;

class Execution : public ::testing::TestWithParam<Kind> {
 protected:
  Rig& make() {
    Rig& rig = keep<Rig>(GetParam());
    if (GetParam() == Kind::kIvshmem || GetParam() == Kind::kRelayedGuest) rig.ring_for_guest();
    return rig;
  }
};

TEST_P(Execution, EveryProducersCommandsRunOnceAndInItsOrder) {
  Rig& rig = make();
  ASSERT_TRUE(rig.executor->start());
  constexpr unsigned kProducers = 4, kEach = 20'000;
  std::vector<std::thread> threads;
  for (unsigned p = 0; p < kProducers; ++p) {
    threads.emplace_back([&, p] {
      for (unsigned i = 0; i < kEach; ++i) {
        rig.post_fill(p << 24 | i);
        // Pauses of many lengths, so that the leader is met spinning, falling asleep and sleeping.
        if (i % 500 == 0) std::this_thread::sleep_for(std::chrono::microseconds(i % 7 * 30));
      }
    });
  }
  for (auto& t : threads) t.join();
  ASSERT_TRUE(rig.driver.wait_fills(size_t{kProducers} * kEach)) << rig.driver.fill_count();
  unsigned next[kProducers] = {};
  for (unsigned value : rig.driver.fills()) ASSERT_EQ(value & 0xffffff, next[value >> 24]++);
}

TEST_P(Execution, WhatWasPostedBeforeACallHasRunWhenItAnswers) {
  Rig& rig = make();
  ASSERT_TRUE(rig.executor->start());
  for (unsigned i = 1; i <= 2000; ++i) {
    rig.post_fill(i);
    uint32_t status = 1;
    const uint64_t nothing = 0;
    // Alternately short calls, which the leader answers itself, and those that it parks for.
    ASSERT_TRUE(i % 2 ? rig.exchange(wire::kPing, 3, i, &status, &nothing, sizeof nothing)
                      : rig.wait_idle(3, i));
    ASSERT_EQ(rig.driver.fill_count(), i);
  }
}

TEST_P(Execution, AWaitingCallStopsNobodyElse) {
  Rig& rig = make();
  Signal &entered = keep<Signal>(), &release = keep<Signal>();
  rig.driver.on_synchronize = [&] {
    entered.give();
    release.wait();
    return CUDA_SUCCESS;
  };
  ASSERT_TRUE(rig.executor->start());
  std::atomic<bool> answered{false};
  std::thread waiter([&] {
    EXPECT_TRUE(rig.wait_idle(0));
    answered = true;
  });
  ASSERT_TRUE(entered.wait());
  for (unsigned i = 1; i <= 100; ++i) {
    rig.post_fill(i);
    uint32_t status = 1;
    ASSERT_TRUE(rig.exchange(wire::kPing, 1, i, &status));
    EXPECT_EQ(status, 0u);
  }
  EXPECT_EQ(rig.driver.fill_count(), 100u);
  EXPECT_FALSE(answered);
  release.give();
  waiter.join();
}

// As ncclCommInitRank: each returns only when all have come. Sixty are about what a slot has lanes
// for.
TEST_P(Execution, CallsThatNeedOneAnotherAllReturn) {
  Rig& rig = make();
  constexpr int kCalls = 60;
  struct Meeting {
    std::mutex mutex;
    std::condition_variable all_here;
    int here = 0;
  };
  Meeting& meeting = keep<Meeting>();
  rig.driver.on_synchronize = [&] {
    std::unique_lock lock(meeting.mutex);
    ++meeting.here;
    meeting.all_here.notify_all();
    return meeting.all_here.wait_for(lock, 20s, [&] { return meeting.here == kCalls; })
               ? CUDA_SUCCESS
               : CUDA_ERROR_TIMEOUT;
  };
  ASSERT_TRUE(rig.executor->start());
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  for (uint16_t i = 0; i < kCalls; ++i) threads.emplace_back([&, i] { good += rig.wait_idle(i); });
  for (auto& t : threads) t.join();
  EXPECT_EQ(good, kCalls);
}

TEST_P(Execution, ManyThreadsCallAndPostForAWhile) {
  Rig& rig = make();
  auto& turn = keep<std::atomic<uint32_t>>(0u);
  rig.driver.on_synchronize = [&] {
    if (turn.fetch_add(1) % 8 == 0) std::this_thread::sleep_for(300us);
    return CUDA_SUCCESS;
  };
  ASSERT_TRUE(rig.executor->start());
  std::vector<std::thread> threads;
  std::atomic<unsigned> failures{0};
  for (uint16_t t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      for (uint32_t i = 1; i <= 1500; ++i) {
        rig.post_fill(i);
        if (i % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(i % 100));
        if (!rig.wait_idle(t, i)) ++failures;
      }
    });
  }
  for (auto& t : threads) t.join();
  EXPECT_EQ(failures, 0u);
  EXPECT_EQ(rig.driver.fill_count(), 6u * 1500);
}

TEST_P(Execution, AnErrorNobodyWaitsForPoisonsTheSession) {
  Rig& rig = make();
  ASSERT_TRUE(rig.executor->start());
  rig.driver.fill_status = CUDA_ERROR_INVALID_VALUE;
  rig.post_fill(1);
  ASSERT_TRUE(rig.driver.wait_fills(1));
  uint32_t status = 1;
  ASSERT_TRUE(rig.exchange(wire::kPing, 0, 1, &status));  // a network tells in its replies
  EXPECT_EQ(rig.channel->sticky_error(), static_cast<uint32_t>(CUDA_ERROR_INVALID_VALUE));
}

TEST_P(Execution, TheWatchdogTellsOfAContextThatDied) {
  Rig& rig = make();
  ASSERT_TRUE(rig.executor->start());
  rig.driver.stream_status = CUDA_ERROR_ILLEGAL_ADDRESS;
  rig.post_fill(1);
  for (int i = 1; i < 2000 && rig.channel->sticky_error() == 0; ++i) {
    std::this_thread::sleep_for(5ms);
    uint32_t status = 1;
    ASSERT_TRUE(rig.exchange(wire::kPing, 0, static_cast<uint32_t>(i), &status));
  }
  EXPECT_EQ(rig.channel->sticky_error(), static_cast<uint32_t>(CUDA_ERROR_ILLEGAL_ADDRESS));
}

TEST_P(Execution, BadCommandsEndTheSessionWithAReason) {
  struct Case {
    const char* name;
    uint16_t function, lane;
    const char* reason;
    wire::EndCause cause = wire::EndCause::kClientRefused;
  };
  for (const Case& c :
       {Case{"unknown control function", 63, wire::kNoLane, "the command 63"},
        Case{"function beyond the table", 40000, 0, "the command 40000"},
        Case{"an answer from the client", wire::kReply, wire::kNoLane, "the command 0"},
        Case{"waits for what has no answer", wire::kFillDevice, 0, "the command 16"},
        Case{"does not wait for an answer", wire::kPing, wire::kNoLane, "the command 4"},
        Case{"cut short", wire::kFillDevice, wire::kNoLane, "FillDevice is cut short"},
        Case{"closes", wire::kClose, wire::kNoLane, "closed its session",
             wire::EndCause::kClientEnded}}) {
    Rig& rig = make();
    ASSERT_TRUE(rig.executor->start());
    rig.send(c.function, c.lane, 1, nullptr, 0);
    ASSERT_TRUE(rig.ended.wait()) << c.name;
    EXPECT_NE(rig.reason.find(c.reason), std::string::npos) << c.name << ": " << rig.reason;
    EXPECT_EQ(rig.cause, c.cause) << c.name;
    client::Reply reply;
    EXPECT_FALSE(rig.channel->wait(5, 1, &reply)) << c.name << ": later calls come back";
  }
}

TEST_P(Execution, AWaitingCallComesBackWhenTheSessionEnds) {
  Rig& rig = make();
  Signal &entered = keep<Signal>(), &never = keep<Signal>();
  rig.driver.on_synchronize = [&] {
    entered.give();
    never.wait(60s);
    return CUDA_SUCCESS;
  };
  ASSERT_TRUE(rig.executor->start());
  std::atomic<int> result{-1};
  std::thread waiter([&] { result = rig.wait_idle(0); });
  ASSERT_TRUE(entered.wait());
  rig.executor->end({wire::EndCause::kOperator, "the server ended it"},
                    CUDA_ERROR_SYSTEM_NOT_READY);
  waiter.join();
  EXPECT_EQ(result, 0);
  EXPECT_EQ(rig.reason, "the server ended it");
  EXPECT_EQ(rig.cause, wire::EndCause::kOperator);
  EXPECT_EQ(rig.channel->sticky_error(), static_cast<uint32_t>(CUDA_ERROR_SYSTEM_NOT_READY));
  never.give();
}

TEST_P(Execution, TheClientsGoodByeEndsTheSession) {
  Rig& rig = make();
  ASSERT_TRUE(rig.executor->start());
  rig.post_fill(1);
  rig.channel->close();
  ASSERT_TRUE(rig.ended.wait());
  EXPECT_EQ(rig.driver.fill_count(), 1u) << "what came before runs";
}

INSTANTIATE_TEST_SUITE_P(Channels, Execution,
                         ::testing::Values(Kind::kShm, Kind::kIvshmem, Kind::kTcp, Kind::kRelayed,
                                           Kind::kRelayedGuest),
                         kind_name);

// The client was held up between a frame and its announcement: somebody had seen the frame and gone
// to sleep again before the announcement came. It must not cost the next frame its own.
TEST(Executor, ALateAnnouncementDoesNotSilenceTheNextFrame) {
  auto& rig = keep<Rig>(Kind::kShm);
  ASSERT_TRUE(rig.executor->start());
  const auto map = rig.mapped.alias();
  auto& h = map.header();
  const auto asleep = [&] {
    // Once is enough: whoever looks again for a moment says so, and sleeps again.
    const auto deadline = std::chrono::steady_clock::now() + 10s;
    while (std::chrono::steady_clock::now() < deadline) {
      if (h.sleeping.load() != 0) return true;
      std::this_thread::sleep_for(1ms);
    }
    return false;
  };
  for (uint32_t i = 1; i <= 20; ++i) {
    ASSERT_TRUE(rig.wait_idle(0, i));
    ASSERT_TRUE(asleep()) << "round " << i;
    h.sleeping.store(0);
    h.wake.fetch_add(1);
    channel::futex_wake(h.wake);
    ASSERT_TRUE(asleep()) << "nobody would be told of the next frame, round " << i;
  }
}

TEST(BrokenRing, EndsTheSessionWithAReason) {
  for (uint64_t tail : {uint64_t{8}, uint64_t{1} << 40, ~uint64_t{0}}) {
    Rig& rig = keep<Rig>(Kind::kShm);
    ASSERT_TRUE(rig.executor->start());
    const channel::MappedSlot map = rig.mapped.alias();
    auto& h = map.header();
    h.tail = tail;
    h.sleeping = 0;
    h.wake.fetch_add(1);
    channel::futex_wake(h.wake);
    ASSERT_TRUE(rig.ended.wait()) << tail;
    EXPECT_EQ(rig.reason, "the client's channel holds no valid frame");
    EXPECT_NE(rig.channel->sticky_error(), 0u);
    EXPECT_FALSE(rig.channel->alive());
  }
}

TEST(BrokenStream, EndsTheSessionWithAReason) {
  struct Case {
    uint32_t size;
    const char* reason;
    uint16_t function = wire::kPing;
  };
  for (const Case& c :
       {Case{0, "no valid frame"}, Case{8, "no valid frame"}, Case{20, "no valid frame"},
        Case{wire::kMaxFrameBytes + 8, "no valid frame"}, Case{~0u, "no valid frame"},
        Case{64, "connection to the client was lost"},
        Case{wire::kMaxLargeFrameBytes, "no valid frame"},
        Case{wire::kMaxLargeFrameBytes + 8, "no valid frame", wire::kCopyToDevice},
        Case{~0u - 7, "no valid frame", wire::kCopyToDevice}}) {
    Rig& rig = keep<Rig>(Kind::kTcp);
    ASSERT_TRUE(rig.executor->start());
    const wire::FrameHeader h{c.size, c.function, 0, 1, 1};
    ASSERT_EQ(::send(rig.client_socket, &h, sizeof h, 0), static_cast<ssize_t>(sizeof h));
    ASSERT_EQ(shutdown(rig.client_socket, SHUT_WR), 0);
    ASSERT_TRUE(rig.ended.wait()) << c.size;
    EXPECT_NE(rig.reason.find(c.reason), std::string::npos) << rig.reason;
  }
}

}  // namespace
}  // namespace sluice::test
