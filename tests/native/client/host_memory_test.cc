// SPDX-License-Identifier: Apache-2.0
// Pinned memory: from the arena while it lasts, beyond it from ordinary memory; and what CUDA knows
// of an address.
#include "client/core/host_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <memory>
#include <set>

#include "channel/own_memory.h"

namespace sluice::client {
namespace {

using Place = HostMemory::Place;

class Host : public ::testing::Test {
 protected:
  static constexpr size_t kArena = 160 << 20;
  static constexpr size_t kStaging = 32 << 20;

  void SetUp() override {
    at_ = mmap(nullptr, kArena, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
               -1, 0);
    ASSERT_NE(at_, MAP_FAILED);
    marks_.open(page_.get());
    memory.open({static_cast<std::byte*>(at_), kArena}, &marks_,
                [this](uint64_t at, uint64_t bytes) {
                  EXPECT_TRUE(known.insert(at - base()).second) << "told twice";
                  EXPECT_EQ((at - base()) % wire::kArenaChunk, 0u);
                  EXPECT_EQ(bytes, std::min<uint64_t>(wire::kArenaChunk, kArena - (at - base())));
                  return !lost;
                });
  }
  ~Host() override { munmap(at_, kArena); }

  uint64_t base() const { return reinterpret_cast<uint64_t>(at_); }
  std::byte* allocate(size_t bytes, unsigned flags = 0) {
    void* at = nullptr;
    EXPECT_TRUE(memory.allocate(bytes, flags, 0, &at));
    return static_cast<std::byte*>(at);
  }

  void* at_ = nullptr;
  std::unique_ptr<std::atomic<uint64_t>[]> page_{new std::atomic<uint64_t>[channel::kMarkCount]()};
  Marks marks_;
  std::set<uint64_t> known;  // offsets of the chunks that the worker was told of
  bool lost = false;
  HostMemory memory;
};

TEST_F(Host, ComesFromTheArenaBehindTheStagingPart) {
  std::byte* a = allocate(100, 3);
  EXPECT_TRUE(memory.in_arena(a, 100));
  EXPECT_GE(reinterpret_cast<uint64_t>(a), base() + kStaging);
  EXPECT_EQ(reinterpret_cast<uint64_t>(a) % 4096, 0u);
  const auto r = memory.find(a + 99);
  EXPECT_EQ(r.place, Place::kArena);
  EXPECT_EQ(r.start, reinterpret_cast<uint64_t>(a));
  EXPECT_EQ(r.bytes, 100u);
  EXPECT_EQ(r.flags, 3u);
  EXPECT_EQ(memory.find(a + 100).place, Place::kPageable);
  EXPECT_EQ(memory.find(a - 1).place, Place::kPageable);
}

TEST_F(Host, OnlyTheChunksThatAreTouchedBecomeKnown) {
  allocate(4096);
  EXPECT_EQ(known, (std::set<uint64_t>{1 * wire::kArenaChunk}));
  allocate(40 << 20);
  EXPECT_EQ(known, (std::set<uint64_t>{1 * wire::kArenaChunk, 2 * wire::kArenaChunk}));
  allocate(4096);
  EXPECT_EQ(known.size(), 2u);
}

TEST_F(Host, BeyondTheArenaItIsOrdinaryMemory) {
  std::byte* large = allocate(kArena);
  EXPECT_FALSE(memory.in_arena(large, 1));
  EXPECT_EQ(memory.find(large).place, Place::kPlain);
  std::memset(large, 1, 4096);
  std::byte* rest = allocate(kArena - kStaging);
  EXPECT_TRUE(memory.in_arena(rest, kArena - kStaging)) << "all that does not stage";
  std::byte* beyond = allocate(1);
  EXPECT_EQ(memory.find(beyond).place, Place::kPlain);
  EXPECT_TRUE(memory.release(rest));
  EXPECT_TRUE(memory.in_arena(allocate(1), 1));
  EXPECT_TRUE(memory.release(beyond));
  EXPECT_TRUE(memory.release(large));
  EXPECT_FALSE(memory.release(large));
}

// What RDMA may register: what was allocated here, as long as it is.
TEST_F(Host, OnlyPinnedMemoryBeyondTheArenaIsSluicesOwn) {
  using channel::OwnMemory;
  std::byte* large = allocate(kArena);
  std::byte* in_arena = allocate(4096);
  std::byte registered[64] = {};
  ASSERT_TRUE(memory.add_registered(registered, sizeof registered, 0, 0));
  EXPECT_TRUE(OwnMemory::has(large, kArena));
  EXPECT_FALSE(OwnMemory::has(large, kArena + 1));
  EXPECT_FALSE(OwnMemory::has(in_arena, 1));
  EXPECT_FALSE(OwnMemory::has(registered, 1)) << "the program may unmap it";
  ASSERT_TRUE(memory.release(large));
  EXPECT_FALSE(OwnMemory::has(large, 1));
}

TEST_F(Host, WithoutAnArenaEverythingIsOrdinary) {
  HostMemory none;
  Marks no_marks;
  none.open({}, &no_marks, [](uint64_t, uint64_t) { return false; });
  void* at = nullptr;
  ASSERT_TRUE(none.allocate(10000, 0, 0, &at));
  EXPECT_EQ(none.find(at).place, Place::kPlain);
  EXPECT_FALSE(none.in_arena(at, 1));
  EXPECT_FALSE(none.in_arena(nullptr, 0));
  EXPECT_TRUE(none.staging().empty());
  EXPECT_TRUE(none.release(at));
}

TEST_F(Host, SizesNearTheEndOfNumbersAreRefused) {
  void* at = nullptr;
  for (size_t bytes : {~size_t{0}, ~size_t{0} - 100, size_t{1} << 62})
    EXPECT_FALSE(memory.allocate(bytes, 0, 0, &at));
}

TEST_F(Host, ARangeThatCrossesTheArenasEndIsNotInIt) {
  auto* end = static_cast<std::byte*>(at_) + kArena;
  EXPECT_TRUE(memory.in_arena(end - 8, 8));
  EXPECT_FALSE(memory.in_arena(end - 8, 9));
  EXPECT_FALSE(memory.in_arena(end, 0));
  EXPECT_FALSE(memory.in_arena(static_cast<std::byte*>(at_) - 1, 2));
  EXPECT_FALSE(memory.in_arena(at_, ~size_t{0}));
}

TEST_F(Host, RegisteredRangesDoNotOverlap) {
  std::byte buffer[4096];
  EXPECT_TRUE(memory.add_registered(buffer + 1000, 1000, 5, 2));
  EXPECT_FALSE(memory.add_registered(buffer + 1000, 1000, 0, 0));
  EXPECT_FALSE(memory.add_registered(buffer + 999, 2, 0, 0));
  EXPECT_FALSE(memory.add_registered(buffer + 1999, 10, 0, 0));
  EXPECT_FALSE(memory.add_registered(buffer, 4096, 0, 0));
  EXPECT_TRUE(memory.add_registered(buffer, 1000, 0, 0));
  EXPECT_TRUE(memory.add_registered(buffer + 2000, 96, 0, 0));
  const auto r = memory.find(buffer + 1500);
  EXPECT_EQ(r.place, Place::kRegistered);
  EXPECT_EQ(r.flags, 5u);
  EXPECT_EQ(r.device, 2u);
  EXPECT_FALSE(memory.release(buffer + 1000)) << "cuMemFreeHost of a registered range";
  EXPECT_FALSE(memory.drop_registered(buffer + 1500)) << "not its start";
  EXPECT_TRUE(memory.drop_registered(buffer + 1000));
  EXPECT_FALSE(memory.drop_registered(buffer + 1000));
  EXPECT_EQ(memory.find(buffer + 1500).place, Place::kPageable);
  std::byte* own = allocate(100);
  EXPECT_FALSE(memory.drop_registered(own));
}

TEST_F(Host, StagingPiecesLieBeforeEverythingElseAndHaveTheirOwnMarks) {
  auto& pieces = memory.staging();
  ASSERT_FALSE(pieces.empty());
  std::set<uint32_t> marks;
  uint64_t at = base();
  for (const auto& p : pieces) {
    EXPECT_EQ(reinterpret_cast<uint64_t>(p.at), at);
    at += p.bytes;
    EXPECT_LT(p.mark, channel::kMarkCount);
    EXPECT_TRUE(marks.insert(p.mark).second);
  }
  EXPECT_LE(at, base() + kStaging);
  EXPECT_EQ(&memory.staging(), &pieces);
  EXPECT_EQ(known.count(0), 1u);
}

TEST_F(Host, WithoutAMarkThereIsNoPiece) {
  uint32_t last = 0;
  while (marks_.take() != wire::kNoMark) ++last;
  EXPECT_EQ(last, channel::kMarkCount);
  EXPECT_TRUE(memory.staging().empty()) << "a piece that nobody can wait for";
  marks_.give_back(7);
  EXPECT_EQ(memory.staging().size(), 1u) << "later there is";
}

TEST_F(Host, ALostSessionGivesNoMemory) {
  lost = true;
  void* at = nullptr;
  EXPECT_FALSE(memory.allocate(4096, 0, 0, &at));
  EXPECT_TRUE(memory.staging().empty());
}

// A chunk is nothing that CUDA knows of; what a pool adds in it is, until the pool drops it.
TEST_F(Host, AChunkIsDividedByWhoeverTookIt) {
  constexpr size_t kChunk = 2 << 20;
  uint64_t chunk = 0;
  ASSERT_TRUE(memory.take_chunk(kChunk, &chunk));
  EXPECT_TRUE(memory.in_arena(reinterpret_cast<void*>(chunk), kChunk));
  EXPECT_EQ(memory.find(reinterpret_cast<void*>(chunk)).place, Place::kPageable);
  memory.add_pooled(chunk + 512, 100, 1);
  const auto r = memory.find(reinterpret_cast<void*>(chunk + 512 + 99));
  EXPECT_EQ(r.place, Place::kArena);
  EXPECT_TRUE(r.pooled);
  EXPECT_EQ(r.start, chunk + 512);
  EXPECT_EQ(r.device, 1u);
  EXPECT_EQ(memory.find(reinterpret_cast<void*>(chunk + 512 + 100)).place, Place::kPageable);
  EXPECT_FALSE(memory.release(reinterpret_cast<void*>(chunk + 512))) << "it is the pool's";
  EXPECT_FALSE(memory.drop_pooled(chunk));
  EXPECT_TRUE(memory.drop_pooled(chunk + 512));
  EXPECT_FALSE(memory.drop_pooled(chunk + 512)) << "twice";
  std::byte* own = allocate(kChunk);
  EXPECT_FALSE(memory.drop_pooled(reinterpret_cast<uint64_t>(own))) << "no pool's";
  memory.give_chunk(chunk);
  EXPECT_EQ(reinterpret_cast<uint64_t>(allocate(kChunk)), chunk) << "which came back";
}

TEST_F(Host, ChunksBeyondTheArenaAreOrdinaryMemory) {
  uint64_t chunk = 0;
  ASSERT_TRUE(memory.take_chunk(kArena, &chunk));
  memory.add_pooled(chunk, 4096, 0);
  memory.add_pooled(chunk + 4096, 4096, 0);
  EXPECT_EQ(memory.find(reinterpret_cast<void*>(chunk)).place, Place::kPlain);
  EXPECT_TRUE(memory.may_be_unmapped(chunk + 4096));
  EXPECT_TRUE(memory.is_unmapped(chunk, 4096));
  EXPECT_FALSE(memory.is_unmapped(chunk, 4097)) << "its neighbour is another allocation";
  EXPECT_TRUE(memory.drop_pooled(chunk));
  EXPECT_FALSE(memory.is_unmapped(chunk, 1));
  EXPECT_TRUE(memory.drop_pooled(chunk + 4096));
  memory.give_chunk(chunk);
  EXPECT_FALSE(memory.take_chunk(size_t{1} << 60, &chunk));
}

}  // namespace
}  // namespace sluice::client
