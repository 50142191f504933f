// SPDX-License-Identifier: Apache-2.0
// The accounting of a vGPU's memory: what is taken is covered, and comes back once.
#include "worker/vgpu_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace sluice::worker {
namespace {

using enum MemoryUse;
constexpr uint64_t kAll = 1ull << 30, kMost = ~uint64_t{0};

TEST(VgpuMemory, ClientAndLibrariesShareOneMemory) {
  VgpuMemory m(kAll, kAll);
  EXPECT_EQ(m.bytes(), kAll);
  EXPECT_TRUE(m.take(kClient, kAll - 10));
  EXPECT_EQ(m.left(kLibrary), 10u);
  EXPECT_FALSE(m.take(kLibrary, 11));
  EXPECT_FALSE(m.take(kLibrary, kMost)) << "no sum wraps";
  EXPECT_EQ(m.taken(kLibrary), 0u) << "what is refused is not taken";
  EXPECT_TRUE(m.take(kLibrary, 10));
  EXPECT_EQ(m.room(), 0u);
  EXPECT_FALSE(m.take(kClient, 1));
  EXPECT_TRUE(m.take(kClient, 0));
  EXPECT_EQ(m.give(kClient, kAll - 10), kAll - 10);
  EXPECT_EQ(m.room(), kAll - 10);
}

TEST(VgpuMemory, TheOthersHaveLimitsOfTheirOwn) {
  VgpuMemory m(kAll, kAll);
  for (const MemoryUse use : {kLibraryHost, kCode, kOpened}) {
    EXPECT_TRUE(m.take(use, kAll));
    EXPECT_FALSE(m.take(use, 1));
    EXPECT_EQ(m.left(use), 0u);
  }
  EXPECT_EQ(m.room(), kAll);
  EXPECT_EQ(m.used(), kAll) << "of these the code only is shown";
  VgpuMemory small(1 << 20, 1 << 20);
  EXPECT_EQ(small.left(kLibraryHost), 256ull << 20) << "libraries need so much, however little";
}

TEST(VgpuMemory, NothingFallsBelowZero) {
  VgpuMemory m(kAll, kAll);
  for (const MemoryUse use : {kClient, kLibrary, kLibraryHost, kCode, kOpened}) {
    ASSERT_TRUE(m.take(use, 7));
    EXPECT_EQ(m.give(use, 8), 7u);
    EXPECT_EQ(m.taken(use), 0u);
    EXPECT_EQ(m.give(use, 1), 0u);
  }
  EXPECT_EQ(m.room(), kAll);
  m.give_stream();
  EXPECT_EQ(m.streams(), 0u);
}

TEST(VgpuMemory, OfAJobsSessionIsWhatItHasCreditFor) {
  VgpuMemory m(kAll, 0);
  EXPECT_EQ(m.room(), 0u);
  EXPECT_FALSE(m.take(kClient, 1));
  m.add_credit(100);
  EXPECT_TRUE(m.take(kClient, 60));
  EXPECT_EQ(m.room(), 40u);
  EXPECT_EQ(m.left(kCode), kAll) << "code is charged beside it";
  m.drop_credit(1000);
  EXPECT_EQ(m.credit(), 60u) << "what is in use stays covered";
  EXPECT_EQ(m.give(kClient, 60), 60u);
  m.drop_credit(60);
  EXPECT_EQ(m.credit(), 0u);
}

TEST(VgpuMemory, ChangesOfLibrariesAreNumbered) {
  VgpuMemory m(kAll, kAll);
  m.take(kClient, 1);
  m.take(kCode, 1);
  EXPECT_EQ(m.library_changes(), 0u);
  m.take(kLibrary, 1);
  EXPECT_FALSE(m.take(kLibrary, kAll));
  m.give(kLibrary, 1);
  EXPECT_EQ(m.library_changes(), 2u);
}

TEST(VgpuMemory, StreamsBeyondAContextsFirstArePaidOnce) {
  VgpuMemory m(kAll, kAll);
  for (uint64_t i = 0; i < kStreamsOfContext; ++i) ASSERT_TRUE(m.take_paid_stream());
  EXPECT_FALSE(m.take_paid_stream());
  m.add_paid_stream();
  EXPECT_EQ(m.streams(), kStreamsOfContext + 1);
  EXPECT_FALSE(m.take_paid_stream());
  m.give_stream();
  EXPECT_TRUE(m.take_paid_stream()) << "the driver keeps its memory for the next";
  uint64_t unpaid = 0;
  while (m.take_unpaid_stream()) ++unpaid;
  EXPECT_EQ(unpaid, 2 * kStreamsOfContext);
}

TEST(VgpuMemory, WhateverHappensItIsCovered) {
  std::mt19937_64 next(7);
  VgpuMemory m(kAll, 0);
  uint64_t client = 0, library = 0;
  for (int i = 0; i < 20'000; ++i) {
    const uint64_t bytes = next() % (kAll / 8);
    const MemoryUse use = next() % 2 ? kClient : kLibrary;
    uint64_t& mine = use == kClient ? client : library;
    switch (next() % 4) {
      case 0:
        if (m.credit() + bytes <= kAll) m.add_credit(bytes);
        break;
      case 1:
        m.drop_credit(bytes);
        break;
      case 2: {
        const bool fits = bytes <= m.room();
        ASSERT_EQ(m.take(use, bytes), fits);
        if (fits) mine += bytes;
        break;
      }
      default: {
        const uint64_t some = std::min(bytes, mine);
        ASSERT_EQ(m.give(use, some), some);
        mine -= some;
      }
    }
    ASSERT_EQ(m.taken(kClient), client);
    ASSERT_EQ(m.taken(kLibrary), library);
    ASSERT_LE(client + library, m.credit());
    ASSERT_EQ(m.room(), m.credit() - client - library);
  }
}

}  // namespace
}  // namespace sluice::worker
