// SPDX-License-Identifier: Apache-2.0
// Memory on a GPU of which more is promised than it has: an allocation waits until the arbiter has
// given room for it, which keeps nobody from stopping the session, and nothing is lost or
// reordered.
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/native/worker/executor_rig.h"

namespace sluice::test {
namespace {

using namespace std::chrono_literals;
using channel::now_ns;

constexpr uint64_t kSlab = 2ull << 20, kEver = 20'000'000'000;

// The test is the arbiter.
class Allowance : public ::testing::TestWithParam<Kind> {
 protected:
  Rig& make() {
    Rig& rig = keep<Rig>(GetParam());
    if (GetParam() == Kind::kIvshmem || GetParam() == Kind::kRelayedGuest) rig.ring_for_guest();
    const int fd = memfd_create("turns", MFD_CLOEXEC);
    EXPECT_EQ(ftruncate(fd, arbiter::kTurnPageBytes), 0);
    page = static_cast<arbiter::TurnPage*>(
        mmap(nullptr, arbiter::kTurnPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    page->magic = wire::kTurnPageMagic;
    page->until = arbiter::kAlone;
    std::string error;
    rig.session->turns = worker::TurnKeeper::open(fd, eventfd(0, EFD_NONBLOCK), &error);
    EXPECT_TRUE(rig.session->turns) << error;
    auto& table = rig.driver.table;
    table.cuMemCreate = [](CUmemGenericAllocationHandle* handle, size_t, const CUmemAllocationProp*,
                           unsigned long long) {
      *handle = 1 + created.fetch_add(1);
      return CUDA_SUCCESS;
    };
    table.cuMemMap = [](CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle,
                        unsigned long long) { return CUDA_SUCCESS; };
    table.cuMemSetAccess = [](CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) {
      return CUDA_SUCCESS;
    };
    created = 0;
    worker::Vgpu& v = *rig.session->vgpus[0];
    v.memory = worker::VgpuMemory(64 * kSlab, 64 * kSlab);
    worker::MemoryAllowance& room = rig.session->turns->memory();
    v.memory.show_on(room.taken(0), room.staying(0));
    EXPECT_TRUE(rig.executor->start());
    return rig;
  }
  arbiter::MemoryWords& words() const { return page->memory; }
  void allow(uint64_t bytes) {
    words().room[0] = bytes;
    ++words().changes;
    channel::futex_wake(words().changes, 100);
  }
  static void map(Rig& rig, uint64_t slab) {
    const wire::MemoryMap m{0, 0, wire::kWindowsBegin + slab * kSlab, kSlab};
    rig.send(wire::kMemoryMap, wire::kNoLane, 0, &m, sizeof m);
  }
  template <typename What>
  static bool soon(What what) {
    for (int i = 0; i < 20'000 && !what(); ++i) std::this_thread::sleep_for(1ms);
    return what();
  }

  arbiter::TurnPage* page = nullptr;
  static inline std::atomic<uint64_t> created{0};
};

TEST_P(Allowance, WithoutABoundNobodyIsAsked) {
  Rig& rig = make();
  map(rig, 0);
  EXPECT_TRUE(rig.wait_idle(0));
  EXPECT_EQ(created, 1u);
  EXPECT_EQ(words().taken[0], kSlab);
  EXPECT_EQ(words().calls, 0u);
  EXPECT_TRUE(soon([&] { return words().begun == words().done; }));
}

TEST_P(Allowance, AnAllocationWaitsForRoomAndWhatFollowsItDoes) {
  Rig& rig = make();
  words().bounded = 1;
  allow(kSlab);
  map(rig, 0);
  map(rig, 1);
  rig.post_fill(7);
  ASSERT_TRUE(soon([&] { return words().waits == 1; }));
  EXPECT_EQ(words().asked, kSlab);
  EXPECT_EQ(words().asked_of, 0u);
  EXPECT_GE(words().calls, 1u);
  EXPECT_EQ(created, 1u);
  EXPECT_EQ(rig.driver.fill_count(), 0u);
  allow(2 * kSlab);
  EXPECT_TRUE(rig.driver.wait_fills(1));
  EXPECT_EQ(created, 2u);
  EXPECT_EQ(words().taken[0], 2 * kSlab);
  EXPECT_EQ(words().asked, 0u);
  EXPECT_EQ(words().waits, 0u);
}

TEST_P(Allowance, ASessionThatWaitsForRoomComesToAStopAndGoesOnWaiting) {
  Rig& rig = make();
  words().bounded = 1;
  map(rig, 0);
  ASSERT_TRUE(soon([&] { return words().waits == 1; }));
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(rig.executor->stop(now_ns() + kEver));
    if (i == 19) allow(kSlab);  // while it stands still: not before it goes on
    std::this_thread::sleep_for(1ms);
    EXPECT_EQ(created, 0u);
    rig.executor->go_on();
  }
  EXPECT_TRUE(rig.wait_idle(0));
  EXPECT_EQ(created, 1u);
}

// Somebody takes what nobody counts: what is counted leaves room, and the GPU has none.
TEST_P(Allowance, WhereTheGpuHasLessThanIsCountedItAsksForMoreAndWaits) {
  Rig& rig = make();
  static std::atomic<size_t> free_bytes;
  free_bytes = kSlab / 2;
  rig.driver.table.cuMemGetInfo_v2 = [](size_t* free, size_t* total) {
    *free = free_bytes;
    *total = 64 * kSlab;
    return CUDA_SUCCESS;
  };
  rig.driver.table.cuMemCreate = [](CUmemGenericAllocationHandle* handle, size_t bytes,
                                    const CUmemAllocationProp*, unsigned long long) {
    if (bytes > free_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
    *handle = 1 + created.fetch_add(1);
    return CUDA_SUCCESS;
  };
  words().bounded = 1;
  allow(kSlab);
  map(rig, 0);
  ASSERT_TRUE(soon([&] { return words().waits == 1; }));
  EXPECT_EQ(words().asked, kSlab + kSlab / 2) << "with what is missing";
  EXPECT_EQ(created, 0u);
  for (int i = 0; i < 5; ++i) {  // it stands still meanwhile as ever
    ASSERT_TRUE(rig.executor->stop(now_ns() + kEver));
    rig.executor->go_on();
  }
  free_bytes = 2 * kSlab;  // somebody has gone
  allow(2 * kSlab);
  EXPECT_TRUE(rig.wait_idle(0));
  EXPECT_EQ(created, 1u);
  EXPECT_EQ(words().asked, 0u);
}

TEST_P(Allowance, WhatIsOutOfMemoryForAnotherReasonIsNotTriedAgain) {
  Rig& rig = make();
  static std::atomic<int> tries;
  tries = 0;
  rig.driver.table.cuMemGetInfo_v2 = [](size_t* free, size_t* total) {
    *free = *total = 64 * kSlab;
    return CUDA_SUCCESS;
  };
  rig.driver.table.cuMemCreate = [](CUmemGenericAllocationHandle*, size_t,
                                    const CUmemAllocationProp*, unsigned long long) {
    ++tries;
    return CUDA_ERROR_OUT_OF_MEMORY;
  };
  words().bounded = 1;
  allow(4 * kSlab);
  map(rig, 0);
  rig.post_fill(1);
  EXPECT_TRUE(rig.driver.wait_fills(1));
  EXPECT_EQ(tries, 1);
}

TEST_P(Allowance, WhatStandsStillSaysThatItHasWork) {
  Rig& rig = make();
  ASSERT_TRUE(rig.executor->stop(now_ns() + kEver));
  const uint32_t calls = words().calls;
  rig.post_fill(7);
  EXPECT_TRUE(soon([&] { return words().waits == 1 && words().calls > calls; }));
  rig.executor->go_on();
  EXPECT_TRUE(rig.driver.wait_fills(1));
  EXPECT_TRUE(soon([&] { return words().waits == 0; }));
}

// What a stop finds waiting for the last one to end is still counted as waiting: none of it runs
// while the session stands still.
TEST_P(Allowance, StopAfterStopNothingRunsInBetween) {
  Rig& rig = make();
  std::atomic<bool> over{false};
  std::thread client([&] {
    for (unsigned i = 0; i < 500; ++i) {
      rig.post_fill(i);
      if (i % 50 == 0) std::this_thread::sleep_for(1ms);
    }
    EXPECT_TRUE(rig.wait_idle(0));
    over = true;
  });
  while (!over && rig.executor->stop(now_ns() + kEver)) {
    const size_t before = rig.driver.fill_count();
    rig.executor->go_on();
    if (!rig.executor->stop(now_ns() + kEver)) break;
    const size_t after = rig.driver.fill_count();
    std::this_thread::sleep_for(1ms);
    EXPECT_EQ(rig.driver.fill_count(), after);
    EXPECT_GE(after, before);
    rig.executor->go_on();
    std::this_thread::yield();
  }
  client.join();
  EXPECT_EQ(rig.driver.fill_count(), 500u);
}

INSTANTIATE_TEST_SUITE_P(Channels, Allowance,
                         ::testing::Values(Kind::kShm, Kind::kIvshmem, Kind::kTcp));

}  // namespace
}  // namespace sluice::test
