// SPDX-License-Identifier: Apache-2.0
// Whoever holds a gate, releases it or asks what passed it waits for nobody who waits for the GPU;
// and what it says that the GPU was busy is what it was, once, and without the client's pauses.
#include "worker/gate.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>

#include "arbiter/turn_page.h"
#include "channel/futex.h"
#include "worker/turn_keeper.h"

namespace sluice::worker {
namespace {

using namespace std::chrono_literals;

std::atomic<bool> g_waits{false}, g_done{false};

TEST(Gate, AnswersWhileALaunchWaitsForTheGpu) {
  Driver d;
  static uintptr_t next = 0;
  d.cuEventCreate = [](CUevent* e, unsigned) {
    *e = reinterpret_cast<CUevent>(++next);
    return CUDA_SUCCESS;
  };
  d.cuEventRecord = [](CUevent, CUstream) { return CUDA_SUCCESS; };
  d.cuEventQuery = [](CUevent) { return g_done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY; };
  Gate::nap = [](uint64_t) {
    g_waits = true;
    std::this_thread::sleep_for(1ms);
  };
  d.cuEventElapsedTime_v2 = [](float* ms, CUevent, CUevent) {
    *ms = 1;
    return CUDA_SUCCESS;
  };
  Gate gate(d);
  std::thread leader([&] {
    while (!g_done) {
      gate.pass(nullptr, {}).issued();
    }
  });
  while (!g_waits) std::this_thread::sleep_for(1ms);
  std::atomic<bool> answered{false};
  std::thread control([&] {
    gate.hold();
    gate.release();
    gate.quiet();
    EXPECT_TRUE(gate.look());
    EXPECT_GE(gate.gpu_busy_ms(), 0);
    answered = true;
  });
  for (int i = 0; i < 5000 && !answered; ++i) std::this_thread::sleep_for(1ms);
  EXPECT_TRUE(answered) << "the control thread waits for a kernel";
  g_done = true;
  leader.join();
  control.join();
  Gate::nap = channel::sleep_ns;
}

// A GPU with a clock that the test moves, in milliseconds far beyond what a test takes: the gate's
// own clock adds nothing that would be seen.
class ClockedGpu {
 public:
  // `until`: what the page of its turns says, where it has one.
  explicit ClockedGpu(int64_t until = arbiter::kNoTurn) : turns(keeper(until)) {
    driver.cuCtxSetCurrent = [](CUcontext) { return CUDA_SUCCESS; };
    driver.cuEventCreate = [](CUevent* e, unsigned) {
      *e = reinterpret_cast<CUevent>(++gpu_->events_);
      return CUDA_SUCCESS;
    };
    driver.cuEventRecord = [](CUevent e, CUstream s) {
      ++gpu_->records;
      gpu_->at_[e] = std::max(gpu_->now, gpu_->free_at_[s]);
      return CUDA_SUCCESS;
    };
    driver.cuEventQuery = [](CUevent e) {
      gpu_->asked_ = e;
      return gpu_->at_.at(e) + gpu_->notice <= gpu_->now ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
    };
    Gate::nap = [](uint64_t) { gpu_->now = std::max(gpu_->now, gpu_->at_.at(gpu_->asked_)); };
    driver.cuEventElapsedTime_v2 = [](float* ms, CUevent begin, CUevent end) {
      *ms = static_cast<float>(gpu_->at_.at(end) - gpu_->at_.at(begin));
      return CUDA_SUCCESS;
    };
    gpu_ = this;
  }
  ~ClockedGpu() { Gate::nap = channel::sleep_ns; }
  void launch(uintptr_t stream, double ms) {
    const auto s = reinterpret_cast<CUstream>(stream);
    auto passage = gate.pass(s, {7});
    free_at_[s] = std::max(now, free_at_[s]) + ms;
    passage.issued();
  }
  // The client has nothing to say for so long, and its executor notices.
  void pause(double ms) {
    gate.quiet();
    now += ms;
    gate.look();
  }
  void expect_busy(double ms) { EXPECT_NEAR(gate.gpu_busy_ms(), ms, kClock) << "at " << now; }

  static constexpr double kClock = 60'000;  // a test takes less than a minute
  Driver driver;
  std::unique_ptr<TurnKeeper> turns;
  Gate gate{driver, nullptr, turns.get()};
  double now = 0, notice = 0;  // and how long it takes until an event is seen
  int records = 0;

 private:
  static std::unique_ptr<TurnKeeper> keeper(int64_t until) {
    if (until == arbiter::kNoTurn) return nullptr;
    const int fd = memfd_create("turns", MFD_CLOEXEC);
    EXPECT_EQ(ftruncate(fd, arbiter::kTurnPageBytes), 0);
    auto* page = static_cast<arbiter::TurnPage*>(
        mmap(nullptr, arbiter::kTurnPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    page->magic = wire::kTurnPageMagic;
    page->turn = 1;
    page->until = until;
    page->beat = static_cast<int64_t>(channel::now_ns()) + 3'600'000'000'000;
    std::string error;
    return TurnKeeper::open(fd, eventfd(0, EFD_NONBLOCK), &error);
  }
  static inline ClockedGpu* gpu_ = nullptr;
  uintptr_t events_ = 0;
  CUevent asked_ = nullptr;
  std::map<CUstream, double> free_at_;
  std::map<CUevent, double> at_;
};

// What tells the GPU to go on may lie behind the launch that waits for it: whoever reads has to
// come past, in a turn and out of one.
TEST(GateLetsPast, WhoeverWaitsForTheHost) {
  const int64_t hour = static_cast<int64_t>(channel::now_ns()) + 3'600'000'000'000;
  for (const int64_t until : {hour, arbiter::kNoTurn}) {
    ClockedGpu gpu(until);
    Gate::nap = channel::sleep_ns;               // the GPU's clock stands
    const int most = until == hour ? 70 : 1400;  // the lead, and a few more
    for (int i = 0; i < most; ++i) gpu.launch(1, 1e9);
    EXPECT_EQ(gpu.gate.launches(), static_cast<uint64_t>(most));
  }
}

constexpr double kLong = 1'000'000;

TEST(GateMeasures, OneKernel) {
  ClockedGpu gpu;
  gpu.launch(1, 3 * kLong);
  gpu.pause(10 * kLong);
  gpu.expect_busy(3 * kLong);
}

TEST(GateMeasures, NoPauses) {
  ClockedGpu gpu;
  for (int i = 1; i <= 10; ++i) {
    gpu.launch(1, 2 * kLong);
    gpu.pause(20 * kLong);
    gpu.expect_busy(i * 2 * kLong);
  }
}

TEST(GateMeasures, NoPausesInATurn) {
  ClockedGpu gpu(arbiter::kUntilWanted);
  for (int i = 1; i <= 10; ++i) {
    gpu.launch(1 + i % 3 / 2, 2 * kLong);  // one at a time: more waits for it
    gpu.pause(20 * kLong);
    gpu.expect_busy(i * 2 * kLong);
  }
}

TEST(GateMeasures, NoPausesOfWhoIsAlone) {
  ClockedGpu gpu(arbiter::kAlone);
  for (int i = 1; i <= 10; ++i) {
    gpu.launch(1, kLong);
    gpu.launch(2, 2 * kLong);
    gpu.pause(20 * kLong);
    gpu.expect_busy(i * 2 * kLong);
  }
}

TEST(GateMeasures, WhoNeverGoesQuietAndLaunchesNothing) {
  ClockedGpu gpu;
  gpu.launch(1, kLong);
  gpu.gate.look();
  gpu.now += 2 * kLong;
  for (int i = 0; i < 3; ++i) gpu.gate.look();  // it sends other commands
  gpu.now += 50 * kLong;
  gpu.launch(1, kLong);
  gpu.pause(5 * kLong);
  gpu.expect_busy(3 * kLong);
}

TEST(GateMeasures, WhatSeveralStreamsDoAtOnceOnce) {
  ClockedGpu gpu;
  for (int i = 0; i < 300; ++i) gpu.launch(1 + i % 3, kLong);
  gpu.pause(1000 * kLong);
  gpu.expect_busy(100 * kLong);
  gpu.launch(2, kLong);
  gpu.launch(1, kLong);
  gpu.pause(1000 * kLong);
  gpu.expect_busy(101 * kLong);
}

TEST(GateMeasures, EventsThatAreUsedAgainAreUsedOnce) {
  ClockedGpu gpu;
  for (int round = 1; round <= 40; ++round) {
    for (int i = 0; i < 150; ++i) gpu.launch(1 + (i / 7 + round) % 4, kLong / 100);
    if (round % 3 == 0) gpu.gate.leave(reinterpret_cast<CUstream>(1));
    if (round % 2 == 0) gpu.pause(100 * kLong);
  }
  gpu.pause(100 * kLong);
  // Four streams share 60 units of work: none is counted twice, and all of it lies in this.
  EXPECT_LE(gpu.gate.gpu_busy_ms(), 60 * kLong + ClockedGpu::kClock);
  EXPECT_GE(gpu.gate.gpu_busy_ms(), 15 * kLong - ClockedGpu::kClock);
}

TEST(GateMeasures, WithoutAnEventForEachLaunch) {
  ClockedGpu gpu;
  for (int i = 0; i < 10'000; ++i) gpu.launch(1, 0);
  EXPECT_LT(gpu.records, 10'000 / 64 + 2);
}

TEST(GateMeasures, NothingFalls) {
  ClockedGpu gpu;
  double last = 0;
  for (int i = 0; i < 50; ++i) {
    gpu.launch(1, 0.001);
    std::this_thread::sleep_for(1ms);
    const double busy = gpu.gate.gpu_busy_ms();
    EXPECT_GE(busy, last);
    last = busy;
    if (i % 7 == 0) gpu.pause(1);
  }
}

// How much of a turn the GPU had nothing to do: of launches that take so long, each so long after
// the end of the one before.
double dry_part(double kernel_ms, double gap_ms, int launches, double notice_ms = 0) {
  ClockedGpu gpu(arbiter::kUntilWanted);
  gpu.notice = notice_ms;
  for (int i = 0; i < launches; ++i) {
    gpu.launch(1, kernel_ms);
    gpu.now += kernel_ms + gap_ms;
  }
  gpu.pause(1);
  EXPECT_GT(gpu.gate.watched_ns(), 0u);
  EXPECT_EQ(gpu.gate.launches(), static_cast<uint64_t>(launches));
  return static_cast<double>(gpu.gate.dry_ns()) / static_cast<double>(gpu.gate.watched_ns());
}

TEST(GateWatches, WhoLaunchesLate) {
  EXPECT_NEAR(dry_part(0.010, 0.010, 5000), 0.5, 0.1);
  EXPECT_NEAR(dry_part(0.005, 0.020, 5000), 0.8, 0.1);
  EXPECT_NEAR(dry_part(0.1, 0.05, 1000), 1 / 3.0, 0.1);
}

// The next launch is there before it is seen that the GPU has done the one before.
TEST(GateWatches, WhoLaunchesLateAndDoesNotWait) {
  EXPECT_NEAR(dry_part(0.004, 0.006, 5000, 0.02), 0.5, 0.1);
  EXPECT_NEAR(dry_part(0.009, 0.001, 5000, 0.02), 0, 0.1);
  EXPECT_NEAR(dry_part(0.02, 0.02, 5000, 0.05), 0.5, 0.1);
}

TEST(GateWatches, NotWhoWaitsForWhatIsLong) {
  EXPECT_LT(dry_part(5, 0.05, 200), 0.02);
  EXPECT_LT(dry_part(1, 0.03, 500), 0.05);
}

TEST(GateWatches, NotWhoKeepsTheGpuBusy) {
  for (const double kernel_ms : {0.005, 0.1, 1.0, 5.0}) {
    ClockedGpu gpu(arbiter::kUntilWanted);
    double free_at = 0;
    // As far ahead of the GPU as the gate lets it be at least, once it knows how long they take.
    for (int i = 0; i < 200; ++i) {
      gpu.now = std::max(gpu.now, free_at - (i < 20 ? 0 : 0.2));
      gpu.launch(1, kernel_ms);
      free_at = std::max(gpu.now, free_at) + kernel_ms;
    }
    const uint64_t first = 20 * static_cast<uint64_t>(kernel_ms * 1e6);
    gpu.now = free_at;
    gpu.pause(1);
    EXPECT_GT(gpu.gate.watched_ns(), 2 * first);
    EXPECT_LE(gpu.gate.dry_ns(), first) << kernel_ms;
  }
}

// A client that has nothing to do now and then, and otherwise keeps the GPU busy.
TEST(GateWatches, APauseCountsOnce) {
  ClockedGpu gpu(arbiter::kUntilWanted);
  for (int i = 0; i < 100; ++i) {  // it learns how long they take
    gpu.launch(1, 0.01);
    gpu.now += 0.01;
  }
  for (int request = 0; request < 100; ++request) {
    for (int i = 0; i < 40; ++i) gpu.launch(1, 0.01);
    gpu.now += 0.4;
    gpu.pause(0.08);
  }
  EXPECT_NEAR(static_cast<double>(gpu.gate.dry_ns()), 100 * 80'000, 10 * 80'000);
}

TEST(GateWatches, NobodyButInTurns) {
  ClockedGpu gpu(arbiter::kAlone);
  for (int i = 0; i < 100; ++i) {
    gpu.launch(1, 0.01);
    gpu.now += 0.03;
  }
  gpu.pause(1);
  EXPECT_EQ(gpu.gate.watched_ns(), 0u);
  EXPECT_EQ(gpu.gate.launches(), 100u);
}

}  // namespace
}  // namespace sluice::worker
