// SPDX-License-Identifier: Apache-2.0
// The pages of managed memory against a plain model: what is moved, what is accessible when, and
// that nothing is lost, with a mover that copies between two arrays.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "client/managed/pages.h"

namespace sluice::client {
namespace {

constexpr uint64_t kStart = 0x200000000000, kPage = ManagedPages::kPage;
using State = ManagedPages::State;

// A device of a byte for each page, and the program's view of it.
struct Rig : PageMover {
  explicit Rig(uint64_t pages, State initial = State::kDevice)
      : device(pages), host(pages), access(pages, Access::kNone), pages(pages) {
    table = std::make_unique<ManagedPages>(kStart, pages * kPage, initial, *this);
  }

  uint64_t index(uint64_t at) const { return (at - kStart) / kPage; }
  uint64_t at(uint64_t page) const { return kStart + page * kPage; }

  bool fetch(uint64_t from, uint64_t bytes) override {
    if (fails) return false;
    ++fetches;
    for (uint64_t p = index(from); p < index(from + bytes); ++p) {
      EXPECT_EQ(access[p], Access::kNone) << "a page is filled while the program may read it";
      host[p] = device[p];
      ++fetched;
    }
    return true;
  }
  bool store(uint64_t from, uint64_t bytes) override {
    if (fails) return false;
    for (uint64_t p = index(from); p < index(from + bytes); ++p) {
      EXPECT_EQ(access[p], Access::kNone) << "a page is stored while the program may write it";
      device[p] = host[p];
      ++stored;
    }
    return true;
  }
  bool protect(uint64_t from, uint64_t bytes, Access to) override {
    for (uint64_t p = index(from); p < index(from + bytes); ++p) access[p] = to;
    return true;
  }

  // As the processor does: a touch that is not allowed faults, until it is.
  uint8_t read(uint64_t page) {
    if (access[page] == Access::kNone) {
      EXPECT_TRUE(table->touch(at(page) + 17, false));
      ++faults;
    }
    EXPECT_NE(access[page], Access::kNone);
    return host[page];
  }
  void write(uint64_t page, uint8_t value) {
    if (access[page] != Access::kWrite) {
      EXPECT_TRUE(table->touch(at(page), true));
      ++faults;
    }
    EXPECT_EQ(access[page], Access::kWrite);
    host[page] = value;
  }

  std::vector<uint8_t> device, host;
  std::vector<Access> access;
  uint64_t pages;
  uint64_t fetches = 0, fetched = 0, stored = 0, faults = 0;
  bool fails = false;
  std::unique_ptr<ManagedPages> table;
};

TEST(ManagedPages, AreFetchedWhenReadAndStoredWhenWritten) {
  Rig rig(1000);
  rig.device[500] = 7;
  EXPECT_FALSE(rig.table->held());
  EXPECT_EQ(rig.read(500), 7);
  EXPECT_TRUE(rig.table->held());
  EXPECT_EQ(rig.fetched, ManagedPages::kFirstPiece / kPage) << "the first touch moves one piece";
  rig.write(500, 8);
  EXPECT_EQ(rig.device[500], 7);
  EXPECT_TRUE(rig.table->release(kStart, 1000 * kPage));
  EXPECT_EQ(rig.device[500], 8);
  EXPECT_FALSE(rig.table->held());
  EXPECT_EQ(rig.access[500], PageMover::Access::kNone);
  EXPECT_EQ(rig.table->run_count(), 1u);
}

TEST(ManagedPages, ThatWereOnlyReadAreNotStored) {
  Rig rig(100);
  for (uint64_t p = 0; p < 100; ++p) rig.read(p);
  EXPECT_TRUE(rig.table->release(kStart, 100 * kPage));
  EXPECT_EQ(rig.stored, 0u);
}

TEST(ManagedPages, ThatNobodyWroteAreNeitherFetchedNorStored) {
  Rig rig(3000, State::kFresh);
  EXPECT_TRUE(rig.table->held());
  rig.write(2999, 1);
  EXPECT_EQ(rig.fetched, 0u);
  EXPECT_TRUE(rig.table->release(kStart, 3000 * kPage));
  EXPECT_EQ(rig.device[2999], 1);
  EXPECT_LT(rig.stored, 100u) << "what was not touched is not moved";
}

TEST(ManagedPages, ThatAreWalkedThroughComeInPiecesThatGrow) {
  for (const bool backwards : {false, true}) {
    Rig rig(64 << 10);  // 256 MiB
    for (uint64_t i = 0; i < rig.pages; ++i) rig.read(backwards ? rig.pages - 1 - i : i);
    EXPECT_EQ(rig.fetched, rig.pages);
    // 64 KiB, 128 KiB, … 8 MiB, and that again.
    EXPECT_LE(rig.fetches, 7u + 32u) << (backwards ? "backwards" : "forwards");
  }
}

TEST(ManagedPages, OfSeveralWalksAtOnceGrowForEach) {
  Rig rig(64 << 10);
  const uint64_t part = rig.pages / 4;
  for (uint64_t i = 0; i < part; ++i)
    for (uint64_t walk = 0; walk < 4; ++walk) rig.read(walk * part + i);
  EXPECT_LE(rig.fetches, 4u * (7 + 8));
}

TEST(ManagedPages, HereAndThereMoveLittle) {
  Rig rig(16 << 10);
  std::mt19937 random(5);
  for (int i = 0; i < 100; ++i) rig.read(random() % rig.pages);
  EXPECT_LE(rig.fetched, 100 * ManagedPages::kFirstPiece / kPage * 4);
}

TEST(ManagedPages, OfLargeMemoryHaveFewRuns) {
  // 64 GiB, every other piece touched: the kernel has room for 65,530 mappings.
  const uint64_t pages = 16ull << 20;
  struct Nothing : PageMover {
    bool fetch(uint64_t, uint64_t) override { return true; }
    bool store(uint64_t, uint64_t) override { return true; }
    bool protect(uint64_t, uint64_t, Access) override { return true; }
  } nothing;
  ManagedPages table(kStart, pages * kPage, State::kDevice, nothing);
  std::mt19937_64 random(9);
  for (int i = 0; i < 200'000; ++i)
    ASSERT_TRUE(table.touch(kStart + random() % (pages * kPage), i % 3 == 0));
  EXPECT_LT(table.run_count(), 20'000u);
}

TEST(ManagedPages, ThatCannotBeMovedStayAsTheyAre) {
  Rig rig(100);
  rig.write(3, 9);
  rig.fails = true;
  EXPECT_FALSE(rig.table->touch(rig.at(90), false));
  EXPECT_EQ(rig.access[90], PageMover::Access::kNone);
  EXPECT_FALSE(rig.table->release(kStart, 100 * kPage));
  rig.fails = false;
  EXPECT_EQ(rig.read(3), 9) << "what could not be stored is still the program's";
  EXPECT_TRUE(rig.table->release(kStart, 100 * kPage));
  EXPECT_EQ(rig.device[3], 9);
}

TEST(ManagedPages, OfARangeArePreparedExactly) {
  Rig rig(100);
  EXPECT_TRUE(rig.table->needs_fetch(rig.at(10) + 100, kPage));
  EXPECT_TRUE(rig.table->prepare(rig.at(10) + 100, kPage, true));  // two pages
  EXPECT_EQ(rig.fetched, 2u);
  EXPECT_FALSE(rig.table->needs_fetch(rig.at(10), 2 * kPage));
  EXPECT_EQ(rig.access[11], PageMover::Access::kWrite);
  EXPECT_EQ(rig.access[12], PageMover::Access::kNone);
  EXPECT_TRUE(rig.table->prepare(rig.at(0), 100 * kPage, false));
  EXPECT_EQ(rig.fetched, 100u) << "what is there is not fetched again";
  EXPECT_EQ(rig.access[11], PageMover::Access::kWrite);
  EXPECT_TRUE(rig.table->release(rig.at(20), 10 * kPage));
  EXPECT_EQ(rig.access[25], PageMover::Access::kNone);
  EXPECT_EQ(rig.access[30], PageMover::Access::kRead);
}

TEST(ManagedPages, AreWhatAPlainArrayIs) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    Rig rig(1 + random() % 700);
    std::vector<uint8_t> model(rig.pages);
    for (int step = 0; step < 3000; ++step) {
      const uint64_t page = random() % rig.pages;
      const uint64_t count = 1 + random() % std::min<uint64_t>(rig.pages - page, 40);
      const auto value = static_cast<uint8_t>(random());
      switch (random() % 6) {
        case 0:
        case 1:
          ASSERT_EQ(rig.read(page), model[page]) << "seed " << seed << ", step " << step;
          break;
        case 2:
        case 3:
          rig.write(page, value);
          model[page] = value;
          break;
        case 4:  // a kernel
          ASSERT_TRUE(rig.table->release(kStart, rig.pages * kPage));
          for (uint64_t p = page; p < page + count; ++p)
            rig.device[p] = model[p] = static_cast<uint8_t>(model[p] + value);
          ASSERT_EQ(rig.device, model);
          break;
        default:  // a copy to a range
          ASSERT_TRUE(rig.table->release(rig.at(page), count * kPage));
          for (uint64_t p = page; p < page + count; ++p) rig.device[p] = model[p] = value;
      }
    }
  }
}

}  // namespace
}  // namespace sluice::client
