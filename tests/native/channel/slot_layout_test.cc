// SPDX-License-Identifier: Apache-2.0
// Where the parts of a slot lie, for every size that a slot may have.
#include <gtest/gtest.h>

#include <bit>
#include <vector>

#include "channel/slot.h"

namespace sluice::channel {
namespace {

constexpr size_t kMiB = 1 << 20;

TEST(SlotLayout, PartsFollowOneAnotherInsideTheSlot) {
  for (size_t bytes = 4 * kMiB; bytes < 80 * kMiB; bytes += 37 * kPage) {
    const SlotLayout l = slot_layout(bytes);
    ASSERT_EQ(l.total, bytes);
    ASSERT_GE(l.lanes, sizeof(SlotHeader));
    ASSERT_EQ(l.mailbox, l.lanes + kLaneCount * sizeof(Lane));
    ASSERT_EQ(l.marks, l.mailbox + kMailboxBytes);
    ASSERT_EQ(l.ring, l.marks + kMarkCount * sizeof(uint64_t));
    ASSERT_EQ(l.arena, l.ring + l.ring_bytes);
    ASSERT_EQ(l.arena + l.arena_bytes, bytes);
    ASSERT_GT(l.arena_bytes, bytes / 2);
    for (size_t offset : {l.lanes, l.mailbox, l.marks, l.ring, l.arena, l.arena_bytes})
      ASSERT_EQ(offset % kPage, 0u) << bytes;
  }
}

TEST(SlotLayout, RingIsAPowerOfTwoThatGrowsWithTheSlot) {
  struct Case {
    size_t slot, ring;
  };
  for (const Case& c : {Case{4 * kMiB, kMiB / 4}, Case{7 * kMiB, kMiB / 4},
                        Case{8 * kMiB, kMiB / 2}, Case{16 * kMiB, kMiB}, Case{63 * kMiB, 2 * kMiB},
                        Case{64 * kMiB, 4 * kMiB}, Case{size_t{64} << 30, 4 * kMiB}}) {
    EXPECT_EQ(slot_layout(c.slot).ring_bytes, c.ring) << c.slot;
    EXPECT_TRUE(std::has_single_bit(slot_layout(c.slot).ring_bytes));
  }
}

TEST(SlotLayout, RefusesWhatIsTooSmallOrNoWholePages) {
  for (size_t bytes :
       {size_t{0}, size_t{1}, kPage, kMiB, 4 * kMiB - kPage, 4 * kMiB + 1, 8 * kMiB + 512})
    EXPECT_EQ(slot_layout(bytes).total, 0u) << bytes;
}

TEST(SlotLayout, SlotsOfARegionDoNotOverlapAndFit) {
  for (uint32_t slots : {1u, 2u, 3u, 7u, 64u, 4096u}) {
    for (size_t region : {kPage + 4 * kMiB * slots, 5 * kMiB * slots + 12345, size_t{1} << 40}) {
      const size_t bytes = slot_bytes_of(region, slots);
      EXPECT_EQ(bytes % kPage, 0u);
      EXPECT_GE(slot_offset_of(bytes, 0), sizeof(RegionHeader));
      EXPECT_LE(slot_offset_of(bytes, slots - 1) + bytes, region);
      EXPECT_GT(slot_offset_of(bytes, slots) + slots * kPage, region - kPage) << "room is wasted";
    }
  }
  EXPECT_EQ(slot_bytes_of(1 << 30, 0), 0u);
  EXPECT_EQ(slot_bytes_of(kPage, 1), 0u);
  EXPECT_EQ(slot_bytes_of(0, 1), 0u);
}

}  // namespace
}  // namespace sluice::channel
