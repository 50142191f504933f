// SPDX-License-Identifier: Apache-2.0
// Device memory against a naive model: where allocations lie, what is charged, and what the node is
// told.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

#include "tests/native/client/device_window.h"

namespace sluice::client {
namespace {

TEST(RangeAllocator, AgainstAModelOfBytes) {
  constexpr uint64_t kUnits = 256;
  RangeAllocator ranges;
  ranges.add(1000, kUnits);
  std::vector<int> owner(kUnits, 0);  // 0: free
  std::map<uint64_t, uint64_t> live;
  std::mt19937 random(3);
  for (int step = 1; step < 50000; ++step) {
    if (random() % 2) {
      const uint64_t bytes = 1 + random() % 24;
      const uint64_t at = ranges.allocate(bytes);
      uint64_t largest = 0;
      for (uint64_t i = 0, run = 0; i < kUnits; ++i)
        largest = std::max(largest, run = owner[i] ? 0 : run + 1);
      ASSERT_EQ(at == RangeAllocator::kNone, largest < bytes)
          << "largest hole " << largest << ", wanted " << bytes;
      if (at == RangeAllocator::kNone) continue;
      ASSERT_GE(at, 1000u);
      ASSERT_LE(at + bytes, 1000 + kUnits);
      for (uint64_t i = at; i < at + bytes; ++i) {
        ASSERT_EQ(owner[i - 1000], 0) << "given out twice";
        owner[i - 1000] = step;
      }
      live[at] = bytes;
    } else if (!live.empty()) {
      auto it = live.begin();
      std::advance(it, random() % live.size());
      uint64_t start = 0, bytes = 0;
      ASSERT_TRUE(ranges.find(it->first + random() % it->second, &start, &bytes));
      ASSERT_EQ(start, it->first);
      ASSERT_EQ(bytes, it->second);
      ASSERT_EQ(ranges.release(it->first), it->second);
      ASSERT_EQ(ranges.release(it->first), 0u);
      for (uint64_t i = it->first; i < it->first + it->second; ++i) owner[i - 1000] = 0;
      live.erase(it);
    }
    ASSERT_EQ(ranges.used_count(), live.size());
    uint64_t start = 0, bytes = 0;
    ASSERT_EQ(ranges.first(&start, &bytes), !live.empty());
    if (!live.empty()) {
      ASSERT_EQ(start, live.begin()->first);
    }
  }
  for (const auto& [at, bytes] : live) ranges.release(at);
  EXPECT_EQ(ranges.allocate(kUnits), 1000u) << "the holes grew together again";
}

TEST(RangeAllocator, TakesTheSmallestHoleThatFits) {
  RangeAllocator ranges;
  ranges.add(0, 100);
  ranges.add(1000, 10);
  ranges.add(2000, 12);
  EXPECT_EQ(ranges.allocate(11), 2000u);
  EXPECT_EQ(ranges.allocate(10), 1000u);
  EXPECT_EQ(ranges.allocate(10), 0u);
}

TEST(RangeAllocator, AtAnAddressAndAligned) {
  RangeAllocator ranges;
  ranges.add(1000, 110);
  EXPECT_FALSE(ranges.allocate_at(990, 20));
  EXPECT_FALSE(ranges.allocate_at(1100, 20));
  EXPECT_TRUE(ranges.allocate_at(1040, 20));
  EXPECT_FALSE(ranges.allocate_at(1030, 11));
  EXPECT_FALSE(ranges.allocate_at(1059, 2));
  EXPECT_EQ(ranges.allocate(30, 64), RangeAllocator::kNone) << "no such hole at a multiple of 64";
  EXPECT_EQ(ranges.allocate(20, 32), 1088u);
  EXPECT_TRUE(ranges.allocate_at(1000, 40));
  EXPECT_EQ(ranges.release(1040), 20u);
  EXPECT_EQ(ranges.allocate(20), 1040u) << "the hole is whole again";
}

// Writes down what is mapped, and refuses what no worker would take.
struct FakeNode {
  std::map<uint64_t, uint64_t> mapped;
  uint64_t bytes = 0, maps = 0, unmaps = 0;
  bool lost = false;

  DeviceMemory::Sink sink() {
    return {[this](uint64_t at, uint64_t n) {
              if (lost) return false;
              EXPECT_TRUE(n > 0 && at % kSlab == 0 && n % kSlab == 0);
              EXPECT_TRUE(at >= kWindow && at + n <= kWindow + kWindowBytes);
              const auto next = mapped.lower_bound(at);
              EXPECT_TRUE(next == mapped.end() || next->first >= at + n);
              EXPECT_TRUE(next == mapped.begin() ||
                          std::prev(next)->first + std::prev(next)->second <= at);
              mapped[at] = n;
              bytes += n;
              ++maps;
              return true;
            },
            [this](uint64_t at, uint64_t n) {
              EXPECT_EQ(mapped.count(at), 1u) << "unmapped what is not mapped";
              EXPECT_EQ(mapped[at], n);
              bytes -= n;
              mapped.erase(at);
              ++unmaps;
              return !lost;
            }};
  }
  bool covers(uint64_t at, uint64_t n) const {
    auto it = mapped.upper_bound(at);
    return it != mapped.begin() && (--it, at + n <= it->first + it->second);
  }
};

class Memory : public ::testing::Test {
 protected:
  static constexpr uint64_t kLimit = 64ull << 20;
  using Result = DeviceMemory::Result;

  void SetUp() override { memory.open(kWindow, kWindowBytes, kLimit, node.sink()); }
  uint64_t allocate(uint64_t bytes) {
    uint64_t at = 0;
    EXPECT_EQ(memory.allocate(bytes, &at), Result::kDone) << bytes;
    return at;
  }
  uint64_t available() {
    uint64_t free_bytes = 0, total = 0;
    memory.info(&free_bytes, &total);
    EXPECT_EQ(total, kLimit);
    return free_bytes;
  }

  FakeNode node;
  DeviceMemory memory;
};

TEST_F(Memory, AgainstAModel) {
  std::map<uint64_t, uint64_t> live;
  std::mt19937_64 random(11);
  int refused = 0;
  for (int step = 0; step < 40000; ++step) {
    if (random() % 100 < 55) {
      const uint64_t shape = random() % 10;
      const uint64_t bytes = shape < 7   ? 1 + random() % 8192
                             : shape < 9 ? 1 + random() % DeviceMemory::kSmall
                                         : 1 + random() % (9 << 20);
      uint64_t at = 0;
      const Result r = memory.allocate(bytes, &at);
      if (r == Result::kOutOfMemory) {
        ++refused;
        // Refused only when another slab (or as many as it takes) does not fit the limit.
        const uint64_t charge =
            bytes > DeviceMemory::kSmall ? (bytes + kSlab - 1) / kSlab * kSlab : kSlab;
        ASSERT_GT(charge, available()) << bytes;
        continue;
      }
      ASSERT_EQ(r, Result::kDone);
      ASSERT_EQ(at % DeviceMemory::kAlignment, 0u);
      const auto next = live.lower_bound(at);
      ASSERT_TRUE(next == live.end() || next->first >= at + bytes);
      ASSERT_TRUE(next == live.begin() || std::prev(next)->first + std::prev(next)->second <= at);
      ASSERT_TRUE(node.covers(at, bytes)) << "an address that nothing backs";
      live[at] = bytes;
    } else if (!live.empty()) {
      auto it = live.begin();
      std::advance(it, random() % live.size());
      uint64_t start = 0, bytes = 0;
      ASSERT_TRUE(memory.find(it->first + random() % it->second, &start, &bytes));
      ASSERT_EQ(start, it->first);
      ASSERT_GE(bytes, it->second);
      ASSERT_EQ(memory.free(it->first), Result::kDone);
      live.erase(it);
    }
    ASSERT_LE(node.bytes, kLimit);
    const uint64_t charged = kLimit - available();
    // What is mapped is what is charged, but for one spare slab.
    ASSERT_TRUE(node.bytes == charged || node.bytes == charged + kSlab)
        << node.bytes << " " << charged;
    for (const auto& [at, bytes] : live) ASSERT_TRUE(step % 512 || node.covers(at, bytes));
  }
  EXPECT_GT(refused, 50);
  EXPECT_GT(live.size(), 0u);
  for (const auto& [at, bytes] : live) ASSERT_EQ(memory.free(at), Result::kDone);
  EXPECT_EQ(available(), kLimit);
  EXPECT_LE(node.bytes, kSlab);
}

TEST_F(Memory, SmallOnesShareASlabAtMultiplesOf512) {
  const uint64_t a = allocate(1), b = allocate(512), c = allocate(513), d = allocate(1);
  EXPECT_EQ(b, a + 512);
  EXPECT_EQ(c, b + 512);
  EXPECT_EQ(d, c + 1024);
  EXPECT_EQ(node.maps, 1u);
  EXPECT_EQ(kLimit - available(), kSlab);
}

TEST_F(Memory, LargeOnesAreChargedByWholeSlabs) {
  allocate(DeviceMemory::kSmall + 1);
  EXPECT_EQ(kLimit - available(), kSlab);
  const uint64_t at = allocate(kSlab + 1);
  EXPECT_EQ(kLimit - available(), 3 * kSlab);
  EXPECT_EQ(at % kSlab, 0u);
  EXPECT_EQ(node.mapped[at], 2 * kSlab);
}

TEST_F(Memory, TheLimitIsReachedExactlyAndComesBack) {
  const uint64_t at = allocate(kLimit);
  uint64_t more = 0;
  EXPECT_EQ(memory.allocate(1, &more), Result::kOutOfMemory);
  EXPECT_EQ(memory.allocate(kSlab, &more), Result::kOutOfMemory);
  EXPECT_EQ(memory.free(at), Result::kDone);
  allocate(1);
  EXPECT_EQ(memory.allocate(kLimit, &more), Result::kOutOfMemory);
  allocate(kLimit - kSlab);
  EXPECT_EQ(node.bytes, kLimit);
}

TEST_F(Memory, SizesNearTheEndOfNumbersAreRefused) {
  uint64_t at = 0;
  for (uint64_t bytes : {~uint64_t{0}, ~uint64_t{0} - kSlab, kLimit + 1, uint64_t{1} << 63})
    EXPECT_EQ(memory.allocate(bytes, &at), Result::kOutOfMemory) << bytes;
  EXPECT_EQ(node.maps, 0u);
}

TEST_F(Memory, ALimitThatIsNoWholeSlabIsNotExceeded) {
  DeviceMemory odd;
  FakeNode odd_node;
  odd.open(kWindow, kWindowBytes, 3 * kSlab + 12345, odd_node.sink());
  uint64_t at = 0;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(odd.allocate(kSlab, &at), Result::kDone);
  EXPECT_EQ(odd.allocate(1, &at), Result::kOutOfMemory);
  EXPECT_EQ(odd_node.bytes, 3 * kSlab);
}

TEST_F(Memory, OneEmptySlabIsKeptForTheNextAllocation) {
  for (int i = 0; i < 100; ++i) EXPECT_EQ(memory.free(allocate(4096)), Result::kDone);
  EXPECT_EQ(node.maps, 1u);
  EXPECT_EQ(node.unmaps, 0u);
  EXPECT_EQ(available(), kLimit) << "the spare slab counts as free";
  allocate(kLimit);  // which takes the spare one's place
  EXPECT_EQ(node.unmaps, 1u);
  EXPECT_EQ(node.bytes, kLimit);
}

TEST_F(Memory, TheSecondEmptySlabIsGivenBack) {
  const uint64_t a = allocate(DeviceMemory::kSmall), b = allocate(DeviceMemory::kSmall),
                 c = allocate(DeviceMemory::kSmall);
  EXPECT_EQ(node.maps, 2u);
  EXPECT_EQ(memory.free(c), Result::kDone);
  EXPECT_EQ(node.unmaps, 0u);
  EXPECT_EQ(memory.free(a), Result::kDone);
  EXPECT_EQ(memory.free(b), Result::kDone);
  EXPECT_EQ(node.unmaps, 1u);
  EXPECT_EQ(node.bytes, kSlab);
}

TEST_F(Memory, WhatWasNotGivenOutCannotBeFreed) {
  const uint64_t small = allocate(4096), large = allocate(4 * kSlab);
  for (uint64_t at : {small + 512, small + 1, large + kSlab, large + 1, kWindow,
                      kWindow + kWindowBytes, uint64_t{0}, ~uint64_t{0}})
    EXPECT_EQ(memory.free(at), Result::kUnknown) << std::hex << at;
  EXPECT_EQ(memory.free(large), Result::kDone);
  EXPECT_EQ(memory.free(large), Result::kUnknown) << "twice";
  EXPECT_EQ(memory.free(small), Result::kDone);
  EXPECT_EQ(memory.free(small), Result::kUnknown) << "twice";
  uint64_t start, bytes;
  EXPECT_FALSE(memory.find(large, &start, &bytes));
  EXPECT_FALSE(memory.find(small, &start, &bytes));
}

TEST_F(Memory, TheWindowIsKnownByItsAddresses) {
  EXPECT_TRUE(memory.in_window(kWindow));
  EXPECT_TRUE(memory.in_window(kWindow + kWindowBytes - 1));
  EXPECT_FALSE(memory.in_window(kWindow - 1));
  EXPECT_FALSE(memory.in_window(kWindow + kWindowBytes));
  EXPECT_FALSE(memory.in_window(0));
  EXPECT_GE(allocate(1), kWindow + kSlab)
      << "nothing at the very start: an address just below must fault";
}

TEST_F(Memory, ClearGivesEverythingBack) {
  allocate(1);
  EXPECT_EQ(memory.free(allocate(DeviceMemory::kSmall)), Result::kDone);
  allocate(5 * kSlab);
  allocate(3 * kSlab);
  memory.clear();
  EXPECT_EQ(node.bytes, 0u);
  EXPECT_TRUE(node.mapped.empty());
  EXPECT_EQ(available(), kLimit);
  allocate(kLimit);
}

TEST_F(Memory, AddressesAndCreditAreToBeHadApart) {
  const uint64_t base = memory.reserve(1ull << 39, 0, 0);
  ASSERT_NE(base, 0u);
  EXPECT_EQ(available(), kLimit) << "addresses cost nothing";
  EXPECT_EQ(node.maps, 0u);
  EXPECT_FALSE(memory.covers(base, 1));
  memory.note_backed(base + kSlab, kSlab);
  memory.note_backed(base + 2 * kSlab, 4 * kSlab);
  EXPECT_TRUE(memory.covers(base + kSlab + 5, 5 * kSlab - 5)) << "neighbours are one piece";
  EXPECT_FALSE(memory.covers(base + kSlab + 5, 5 * kSlab - 4));
  EXPECT_FALSE(memory.covers(base + kSlab - 1, 2));
  memory.note_gone(base + 2 * kSlab);
  EXPECT_FALSE(memory.covers(base + kSlab, kSlab + 1));
  EXPECT_EQ(memory.free(base), Result::kUnknown) << "a reservation is no allocation";
  EXPECT_TRUE(memory.charge(kLimit));
  uint64_t at = 0;
  EXPECT_EQ(memory.allocate(1, &at), Result::kOutOfMemory);
  EXPECT_FALSE(memory.charge(1));
  memory.refund(kLimit);
  const uint64_t elsewhere = memory.reserve(1ull << 39, 0, 0);
  EXPECT_EQ(elsewhere, 0u) << "the window has no room for another";
  memory.release(base);
  EXPECT_EQ(memory.reserve(1ull << 39, 1ull << 30, base + kSlab) % (1ull << 30), 0u);
}

TEST_F(Memory, NeighbouringAllocationsAreNotOnePiece) {
  const uint64_t a = allocate(kSlab + 1), b = allocate(kSlab + 1);
  ASSERT_EQ(b, a + 2 * kSlab);
  EXPECT_TRUE(memory.covers(a, 2 * kSlab));
  EXPECT_FALSE(memory.covers(a, 2 * kSlab + 1));
}

TEST_F(Memory, ALostSessionIsSaidAndChargesNothing) {
  const uint64_t kept = allocate(kSlab);
  node.lost = true;
  uint64_t at = 0;
  EXPECT_EQ(memory.allocate(1, &at), Result::kSessionLost);
  EXPECT_EQ(memory.allocate(kSlab, &at), Result::kSessionLost);
  EXPECT_EQ(kLimit - available(), kSlab);
  EXPECT_EQ(memory.free(kept), Result::kSessionLost);
  EXPECT_EQ(available(), kLimit);
}

// A job's memory, of which others have some.
class SharedMemoryCredit : public ::testing::Test {
 protected:
  using Result = DeviceMemory::Result;
  static constexpr uint64_t kLimit = 16 * kSlab;

  void SetUp() override {
    auto sink = node.sink();
    sink.credit = [this](uint64_t bytes, uint64_t* left) {
      ++asked;
      if (lost) return Result::kSessionLost;
      const bool given = bytes <= kLimit - others - taken;
      if (given) taken += bytes;
      *left = kLimit - others - taken;
      return given ? Result::kDone : Result::kOutOfMemory;
    };
    memory.open(kWindow, kWindowBytes, kLimit, sink);
  }
  uint64_t free_bytes() {
    uint64_t available = 0, total = 0;
    memory.info(&available, &total);
    EXPECT_EQ(total, kLimit);
    return available;
  }

  FakeNode node;
  DeviceMemory memory;
  uint64_t taken = 0, others = 0;
  int asked = 0;
  bool lost = false;
};

TEST_F(SharedMemoryCredit, IsAskedForExactlyAndNothingIsHoarded) {
  uint64_t small, large;
  ASSERT_EQ(memory.allocate(512, &small), Result::kDone);
  EXPECT_EQ(taken, kSlab);
  uint64_t second;
  ASSERT_EQ(memory.allocate(512, &second), Result::kDone);
  EXPECT_EQ(asked, 1) << "the slab has room";
  ASSERT_EQ(memory.allocate(3 * kSlab, &large), Result::kDone);
  EXPECT_EQ(taken, 4 * kSlab);
  taken -= 3 * kSlab;  // as the worker does with the memory
  ASSERT_EQ(memory.free(large), Result::kDone);
  EXPECT_EQ(free_bytes(), kLimit - kSlab);
  ASSERT_EQ(memory.free(small), Result::kDone);
  taken -= kSlab;
  ASSERT_EQ(memory.free(second), Result::kDone);
  EXPECT_EQ(node.mapped.size(), 0u) << "an empty slab is another process's to have";
  EXPECT_EQ(free_bytes(), kLimit);
  EXPECT_EQ(memory.used(), 0u);
}

TEST_F(SharedMemoryCredit, WhatOthersHaveIsRefused) {
  others = 15 * kSlab;
  uint64_t at;
  EXPECT_EQ(memory.allocate(2 * kSlab, &at), Result::kOutOfMemory);
  EXPECT_EQ(node.mapped.size(), 0u);
  EXPECT_EQ(free_bytes(), kSlab);
  EXPECT_FALSE(memory.charge(2 * kSlab));
  EXPECT_TRUE(memory.charge(kSlab));
  EXPECT_EQ(free_bytes(), 0u);
  EXPECT_EQ(memory.used(), kSlab);
}

TEST_F(SharedMemoryCredit, ASessionThatIsLostIsNotCalledOutOfMemory) {
  lost = true;
  uint64_t at;
  EXPECT_EQ(memory.allocate(kSlab, &at), Result::kSessionLost);
}

}  // namespace
}  // namespace sluice::client
