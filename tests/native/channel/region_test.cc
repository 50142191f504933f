// SPDX-License-Identifier: Apache-2.0
// Formatting a region, and reading the header of one that somebody else may have written over.
#include "channel/region.h"

#include <cstring>
#include <functional>
#include <memory>

#include "tests/native/channel/shared_slot.h"

namespace sluice::channel {
namespace {

constexpr size_t kRegion = (32 << 20) + kPage;

class Region : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(ftruncate(fd_, kRegion), 0);
    ASSERT_TRUE(format_region(fd_, kRegion, 4, &error_)) << error_;
    ASSERT_EQ(pread(fd_, &header_, sizeof header_, 0), static_cast<ssize_t>(sizeof header_));
  }
  ~Region() override { ::close(fd_); }

  int fd_ = memfd_create("region", MFD_CLOEXEC);
  RegionHeader header_{};
  std::string error_;
};

TEST_F(Region, FormatThenCheckAgree) {
  EXPECT_EQ(check_region(header_, kRegion, &error_), slot_bytes_of(kRegion, 4));
  EXPECT_EQ(header_.slot_count, 4u);
  EXPECT_TRUE(error_.empty());
}

TEST_F(Region, ADeviceLargerThanTheRegionIsFine) {
  EXPECT_EQ(check_region(header_, size_t{64} << 20, &error_), slot_bytes_of(kRegion, 4));
}

TEST_F(Region, FormattingAgainChangesTheGeneration) {
  const uint32_t before = header_.generation.load();
  ASSERT_TRUE(format_region(fd_, kRegion, 4, &error_));
  ASSERT_EQ(pread(fd_, &header_, sizeof header_, 0), static_cast<ssize_t>(sizeof header_));
  EXPECT_NE(header_.generation.load(), before);
}

TEST_F(Region, TheGenerationIsNeverWhatALostDeviceReads) {
  for (uint32_t last : {~0u, ~0u - 1}) {
    header_.generation = last;
    ASSERT_EQ(pwrite(fd_, &header_, sizeof header_, 0), static_cast<ssize_t>(sizeof header_));
    ASSERT_TRUE(format_region(fd_, kRegion, 4, &error_));
    ASSERT_EQ(pread(fd_, &header_, sizeof header_, 0), static_cast<ssize_t>(sizeof header_));
    EXPECT_EQ(header_.generation.load(), 1u);
  }
}

TEST_F(Region, HostileHeadersAreRefusedWithAReason) {
  struct Case {
    const char* name;
    std::function<void(RegionHeader&)> change;
    const char* reason;
  };
  const Case cases[] = {
      {"blank", [](auto& h) { h.magic = 0; }, "blank"},
      {"taken away", [](auto& h) { std::memset(static_cast<void*>(&h), 0xff, sizeof h); },
       "taken away"},
      {"foreign", [](auto& h) { h.magic ^= 1; }, "not Sluice's"},
      {"version 0", [](auto& h) { h.version = 0; }, "layout version 0"},
      {"version 2", [](auto& h) { h.version = 2; }, "layout version 2"},
      {"no slots", [](auto& h) { h.slot_count = 0; }, "does not fit"},
      {"too many slots", [](auto& h) { h.slot_count = 4097; }, "does not fit"},
      {"all slots", [](auto& h) { h.slot_count = ~0u; }, "does not fit"},
      {"other slots", [](auto& h) { h.slot_count = 5; }, "does not fit"},
      {"more bytes than there are", [](auto& h) { h.region_bytes = kRegion + 1; }, "does not fit"},
      {"all bytes", [](auto& h) { h.region_bytes = ~0ull; }, "does not fit"},
      {"no bytes", [](auto& h) { h.region_bytes = 0; }, "does not fit"},
      {"larger slots", [](auto& h) { h.slot_bytes += kPage; }, "does not fit"},
      {"huge slots", [](auto& h) { h.slot_bytes = ~0ull; }, "does not fit"},
      {"slots too small to work",
       [](auto& h) {
         h.slot_count = 4096;
         h.slot_bytes = slot_bytes_of(kRegion, 4096);
       },
       "does not fit"},
  };
  for (const Case& c : cases) {
    auto h = std::make_unique<RegionHeader>();
    std::memcpy(static_cast<void*>(h.get()), &header_, sizeof header_);
    c.change(*h);
    std::string error;
    EXPECT_EQ(check_region(*h, kRegion, &error), 0u) << c.name;
    EXPECT_NE(error.find(c.reason), std::string::npos) << c.name << ": " << error;
  }
}

TEST_F(Region, TooSmallForItsSlotsIsSaidInWords) {
  EXPECT_FALSE(format_region(fd_, kRegion, 64, &error_));
  EXPECT_NE(error_.find("64 slots"), std::string::npos) << error_;
}

TEST(MappedSlot, TheRingIsMappedTwiceInARow) {
  test::SharedSlot shared;
  const MappedSlot slot = shared.map();
  const size_t n = slot.layout().ring_bytes;
  std::memset(slot.ring() + n - 8, 0x5a, 16);
  EXPECT_EQ(slot.ring()[n - 1], std::byte{0x5a});
  EXPECT_EQ(slot.ring()[7], std::byte{0x5a});
  EXPECT_EQ(slot.ring()[8], std::byte{0});
  slot.ring()[1] = std::byte{1};
  EXPECT_EQ(slot.ring()[n + 1], std::byte{1});
}

TEST(MappedSlot, FormattingLeavesNothingOfTheSessionBefore) {
  test::SharedSlot shared;
  const MappedSlot slot = shared.map();
  auto& h = slot.header();
  const uint32_t generation = h.generation.load();
  h.tail = 4096, h.head = 77, h.sticky_error = 700, h.sleeping = 1, h.doorbell = 1, h.heartbeat = 9;
  h.client_pid = 4, h.state = static_cast<uint32_t>(SlotState::kDead);
  slot.lane(kLaneCount - 1).sequence = 5;
  slot.marks()[kMarkCount - 1] = 5;
  std::memset(slot.mailbox().data(), 0xee, 1024);
  format_slot(slot, 3, SlotState::kFree);
  EXPECT_EQ(h.state.load(), static_cast<uint32_t>(SlotState::kFree));
  EXPECT_EQ(h.generation.load(), generation + 1);
  EXPECT_EQ(h.index, 3u);
  EXPECT_EQ(h.tail.load() | h.head.load() | h.sticky_error | h.sleeping | h.doorbell | h.heartbeat |
                h.client_pid,
            0u);
  EXPECT_EQ(slot.lane(kLaneCount - 1).sequence.load(), 0u);
  EXPECT_EQ(slot.marks()[kMarkCount - 1].load(), 0u);
  EXPECT_EQ(slot.mailbox()[1023], std::byte{0});
}

TEST(MappedSlot, AnUnusableSizeIsSaidInWords) {
  test::SharedSlot shared;
  MappedSlot slot;
  std::string error;
  EXPECT_FALSE(slot.map(shared.fd(), 1 << 20, 0, kNoArena, &error));
  EXPECT_NE(error.find("too small"), std::string::npos) << error;
  EXPECT_FALSE(slot);
}

TEST(MappedSlot, AnArenaAddressThatIsTakenIsRefused) {
  test::SharedSlot shared;
  void* taken = mmap(nullptr, 4 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(taken, MAP_FAILED);
  MappedSlot slot;
  std::string error;
  EXPECT_FALSE(slot.map(shared.fd(), 4 << 20, 0, reinterpret_cast<uint64_t>(taken), &error));
  EXPECT_NE(error.find("fixed address"), std::string::npos) << error;
  munmap(taken, 4 << 20);
}

TEST(MappedSlot, AnArenaThatNeedsNoPlaceIsMappedAnywhere) {
  const test::SharedSlot shared;
  const MappedSlot one = shared.map(true), other = shared.map(true), none = shared.map();
  ASSERT_NE(one.arena(), nullptr);
  EXPECT_NE(one.arena(), other.arena());
  EXPECT_EQ(none.arena(), nullptr);
  one.arena()[one.layout().arena_bytes - 1] = std::byte{7};
  EXPECT_EQ(other.arena()[other.layout().arena_bytes - 1], std::byte{7});
}

TEST(MappedSlot, AnAliasIsTheSameMappingAndLeavesItMapped) {
  const test::SharedSlot shared;
  const MappedSlot slot = shared.map(true);
  {
    const MappedSlot alias = slot.alias();
    EXPECT_EQ(&alias.header(), &slot.header());
    EXPECT_EQ(alias.ring(), slot.ring());
    EXPECT_EQ(alias.arena(), slot.arena());
  }
  slot.header().tail = 8;
  slot.ring()[0] = slot.arena()[0] = std::byte{1};
}

}  // namespace
}  // namespace sluice::channel
