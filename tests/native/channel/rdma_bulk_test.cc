// SPDX-License-Identifier: Apache-2.0
// Bulk that goes straight: from memory that Sluice allocated, into a place that the other side
// granted.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "channel/futex.h"
#include "channel/rdma_placing.h"
#include "tests/native/channel/rdma_pair.h"

namespace sluice::channel {
namespace {

TEST(RdmaBulk, OwnMemoryIsSentFromWhereItLies) {
  NEEDS_RDMA(pair);
  const Owned bulk(20 << 20, 1);  // more than one registration
  std::thread writer([&] {
    ASSERT_TRUE(write_kept(*pair.ends[0], "head", 4, bulk.at(), bulk.bytes()));
    ASSERT_TRUE(write_all(*pair.ends[0], "tail", 4));
  });
  std::vector<char> got(bulk.bytes() + 8);
  ASSERT_TRUE(read_all(*pair.ends[1], got.data(), got.size()));
  writer.join();
  EXPECT_EQ(std::memcmp(got.data(), "head", 4), 0);
  EXPECT_TRUE(bulk.holds(got.data() + 4, bulk.bytes()));
  EXPECT_EQ(std::memcmp(got.data() + 4 + bulk.bytes(), "tail", 4), 0);
  EXPECT_EQ(pair.ends[0]->straight_bytes(), bulk.bytes());
  EXPECT_EQ(pair.ends[0]->placed_bytes(), 0u) << "nobody granted a place";
  EXPECT_EQ(pair.ends[0]->registrations().count(), 2u);
}

TEST(RdmaBulk, NoOtherMemoryIsRegistered) {
  NEEDS_RDMA(pair);
  const auto bulk = some_bytes(3 << 20, 2);
  const Owned own(1 << 20, 3);
  std::vector<char> got(bulk.size() + own.bytes());
  std::thread writer([&] {
    ASSERT_TRUE(write_kept(*pair.ends[0], "", 0, bulk.data(), bulk.size()));
    ASSERT_TRUE(write_all(*pair.ends[0], own.at(), own.bytes()));  // which may change at once
  });
  ASSERT_TRUE(read_all(*pair.ends[1], got.data(), got.size()));
  writer.join();
  EXPECT_EQ(std::memcmp(got.data(), bulk.data(), bulk.size()), 0);
  EXPECT_TRUE(own.holds(got.data() + bulk.size(), own.bytes()));
  EXPECT_EQ(pair.ends[0]->straight_bytes(), 0u);
  EXPECT_EQ(pair.ends[0]->registrations().count(), 0u);
}

TEST(RdmaBulk, RegistrationsAreBoundedAndGoWithTheirMemory) {
  NEEDS_RDMA(pair);
  constexpr size_t kBytes = 64 << 10, kMany = RdmaRegistrations::kMost + 20;
  {
    std::vector<std::unique_ptr<Owned>> all;
    std::vector<char> got(kBytes);
    for (size_t i = 0; i < kMany; ++i) {
      all.push_back(std::make_unique<Owned>(kBytes, static_cast<unsigned>(i + 1)));
      ASSERT_TRUE(write_kept(*pair.ends[0], "", 0, all.back()->at(), kBytes));
      ASSERT_TRUE(read_all(*pair.ends[1], got.data(), got.size()));
      ASSERT_TRUE(all.back()->holds(got.data(), kBytes)) << i;
      ASSERT_LE(pair.ends[0]->registrations().count(), RdmaRegistrations::kMost);
    }
    EXPECT_GT(pair.ends[0]->straight_bytes(), kBytes * RdmaRegistrations::kMost / 2);
  }
  EXPECT_EQ(pair.ends[0]->registrations().count(), 0u);
  EXPECT_FALSE(pair.ends[0]->broken());
}

// The other side is gone, so nothing is acknowledged; the memory is freed all the same, and the
// adapter does not come back to it.
TEST(RdmaBulk, MemoryThatIsFreedIsNotWaitedForForLong) {
  NEEDS_RDMA(pair);
  auto own = std::make_unique<Owned>(1 << 20, 4);
  ASSERT_TRUE(write_kept(*pair.ends[0], "", 0, own->at(), 64 << 10));
  ASSERT_TRUE(pair.ends[0]->flush());
  pair.ends[1].reset();
  write_kept(*pair.ends[0], "", 0, own->at(), own->bytes());
  const uint64_t begin = now_ns();
  own.reset();
  EXPECT_LT(now_ns() - begin, 20'000'000'000u);
  EXPECT_EQ(pair.ends[0]->registrations().count(), 0u);
  EXPECT_TRUE(pair.ends[0]->broken());
}

TEST(RdmaBulk, AGrantedPlaceIsWrittenIntoAndNothingIsCopied) {
  NEEDS_RDMA(pair);
  const Owned bulk(1 << 20, 5), place(1 << 20);
  ASSERT_TRUE(pair.ends[1]->grant(place.at(), place.bytes()));
  std::thread writer([&] {
    char word;
    ASSERT_TRUE(read_all(*pair.ends[0], &word, 1));  // then the grant has come, too
    ASSERT_TRUE(write_kept(*pair.ends[0], "head", 4, bulk.at(), bulk.bytes()));
    ASSERT_TRUE(write_all(*pair.ends[0], "tail", 4));
  });
  ASSERT_TRUE(write_all(*pair.ends[1], "x", 1));
  char head[64] = {};  // more than the head: a part that has its place begins a read
  const iovec part{head, sizeof head};
  ASSERT_EQ(pair.ends[1]->read(&part, 1), 4);
  EXPECT_STREQ(head, "head");
  EXPECT_EQ(pair.ends[1]->await_placed(place.bytes()), place.at());
  EXPECT_EQ(pair.ends[1]->await_placed(17), nullptr);
  std::memset(place.at(), 0, 4096);  // shows that reading it there does not touch it
  ASSERT_TRUE(read_all(*pair.ends[1], place.at(), place.bytes()));
  EXPECT_EQ(place.at()[0], std::byte{0});
  EXPECT_TRUE(bulk.holds(place.at(4096), place.bytes() - 4096, 4096));
  ASSERT_TRUE(read_all(*pair.ends[1], head, 4));
  EXPECT_EQ(std::memcmp(head, "tail", 4), 0);
  writer.join();
  EXPECT_EQ(pair.ends[0]->placed_bytes(), bulk.bytes());
}

TEST(RdmaBulk, APartIsReadElsewhereAsWell) {
  NEEDS_RDMA(pair);
  const Owned bulk(512 << 10, 6), place(1 << 20);
  ASSERT_TRUE(pair.ends[1]->grant(place.at(), place.bytes()));
  std::thread writer([&] {
    char word;
    ASSERT_TRUE(read_all(*pair.ends[0], &word, 1));
    ASSERT_TRUE(write_kept(*pair.ends[0], "", 0, bulk.at(), bulk.bytes()));
    ASSERT_TRUE(write_kept(*pair.ends[0], "", 0, bulk.at(), bulk.bytes()));  // through the ring
  });
  ASSERT_TRUE(write_all(*pair.ends[1], "x", 1));
  std::vector<char> got(2 * bulk.bytes());
  for (size_t at = 0; at < got.size(); at += got.size() / 16)
    ASSERT_TRUE(read_all(*pair.ends[1], got.data() + at, got.size() / 16));
  writer.join();
  EXPECT_TRUE(bulk.holds(got.data(), bulk.bytes()));
  EXPECT_TRUE(bulk.holds(got.data() + bulk.bytes(), bulk.bytes()));
  EXPECT_EQ(pair.ends[0]->placed_bytes(), bulk.bytes());
}

TEST(RdmaBulk, APartThatIsOfferedGoesToWhereItIsRead) {
  NEEDS_RDMA(pair);
  pair.ends[0]->offer_parts();
  const Owned bulk(20 << 20, 7), place(20 << 20);
  std::thread writer([&] {
    ASSERT_TRUE(write_kept(*pair.ends[0], "head", 4, bulk.at(), bulk.bytes()));
    ASSERT_TRUE(write_kept(*pair.ends[0], "tail", 4, bulk.at(), 2 << 20));
  });
  char head[64];
  const iovec part{head, sizeof head};
  ASSERT_EQ(pair.ends[1]->read(&part, 1), 4);
  ASSERT_TRUE(read_all(*pair.ends[1], place.at(), place.bytes()));
  EXPECT_TRUE(bulk.holds(place.at(), bulk.bytes()));
  const uint64_t placed = pair.ends[0]->placed_bytes();
  EXPECT_GE(placed, bulk.bytes() - RdmaPlacing::kLeast);
  std::vector<char> got((2 << 20) + 4);  // no memory of ours: through the ring
  ASSERT_TRUE(read_all(*pair.ends[1], got.data(), got.size()));
  writer.join();
  EXPECT_TRUE(bulk.holds(got.data() + 4, 2 << 20));
  EXPECT_EQ(pair.ends[0]->placed_bytes(), placed);
}

TEST(RdmaBulk, AnOfferOfOneWhoIsAloneEndsWithTheConnection) {
  NEEDS_RDMA(pair);
  pair.ends[0]->offer_parts();
  const Owned bulk(2 << 20, 8);
  bool went = true;
  std::thread writer([&] { went = write_kept(*pair.ends[0], "", 0, bulk.at(), bulk.bytes()); });
  sleep_ns(200'000'000);  // nobody reads, and nobody answers
  shutdown(pair.sockets[1], SHUT_RDWR);
  writer.join();
  EXPECT_FALSE(went);
}

// Where two memories differ first; n: nowhere.
size_t differs(const void* a, const void* b, size_t n) {
  const auto* x = static_cast<const std::byte*>(a);
  return static_cast<size_t>(std::mismatch(x, x + n, static_cast<const std::byte*>(b)).first - x);
}

// All ways at once, in both directions, in any order of sizes.
TEST(RdmaBulk, WhatIsWrittenIsReadWhateverWayItWent) {
  NEEDS_RDMA(pair);
  pair.ends[1]->offer_parts();
  constexpr size_t kMost = 3 << 20;
  constexpr size_t kPlaces = RdmaPlacing::kMostGrants + 1;
  constexpr int kWrites = 60;
  const Owned from[2] = {Owned(kMost + 60'000, 9), Owned(kMost + 60'000, 10)};
  const auto size_of = [](unsigned i) -> size_t {
    const unsigned r = i * 2654435761u >> 8;
    return i % 3 == 0 ? r % 5000 + 1 : r % kMost + 1;
  };
  std::vector<std::thread> threads;
  for (unsigned side = 0; side < 2; ++side) {
    threads.emplace_back([&, side] {
      for (unsigned i = side; i < kWrites; ++i) {
        const std::byte* at = from[side].at(i * 997 % 60'000);
        if (i % 4 == 3)
          ASSERT_TRUE(write_all(*pair.ends[side], at, size_of(i)));
        else
          ASSERT_TRUE(write_kept(*pair.ends[side], &i, sizeof i, at, size_of(i)));
      }
    });
    threads.emplace_back([&, side] {
      const unsigned other = 1 - side;
      const Owned own(kMost), places(2 * kPlaces << 20);
      size_t granted = 0;  // no more than kMostGrants are open, so none is granted twice
      std::vector<char> plain(kMost);
      for (unsigned i = other, word; i < kWrites; ++i) {
        if (side == 1 && i % 5 == 0 &&
            pair.ends[side]->grant(places.at((granted % kPlaces) << 21), 2 << 20))
          ++granted;
        if (i % 4 != 3) {
          ASSERT_TRUE(read_all(*pair.ends[side], &word, sizeof word));
          ASSERT_EQ(word, i);
        }
        const bool ours = i % 2 || (side == 0 && i % 16 != 4);
        void* to = ours ? static_cast<void*>(own.at()) : plain.data();
        ASSERT_TRUE(read_all(*pair.ends[side], to, size_of(i)));
        ASSERT_EQ(differs(to, from[other].at(i * 997 % 60'000), size_of(i)), size_of(i))
            << "write " << i << " to end " << side << ", of which "
            << pair.ends[other]->placed_bytes() << " bytes had their place";
      }
    });
  }
  for (auto& t : threads) t.join();
  EXPECT_GT(pair.ends[0]->placed_bytes(), 0u);
  EXPECT_GT(pair.ends[1]->placed_bytes(), 0u);
  for (const auto& end : pair.ends) EXPECT_EQ(end->why(), "");
}

// What a child of fork() writes there is its own, and its parent's bulk goes on.
TEST(RdmaBulk, AForkedChildDoesNotChangeWhatIsSent) {
  NEEDS_RDMA(pair);
  Owned bulk(2 << 20, 11);
  std::vector<char> got(bulk.bytes());
  const auto round = [&](unsigned seed) {
    const auto sent = some_bytes(bulk.bytes(), seed);
    std::memcpy(bulk.at(), sent.data(), sent.size());
    std::thread writer(
        [&] { ASSERT_TRUE(write_kept(*pair.ends[0], "", 0, bulk.at(), bulk.bytes())); });
    EXPECT_TRUE(read_all(*pair.ends[1], got.data(), got.size()));
    writer.join();
    EXPECT_TRUE(got == sent) << seed;
  };
  round(12);
  const pid_t child = fork();
  if (child == 0) {
    OwnMemory::remove(bulk.at());  // as its exit handlers might: its parent's stays registered
    _exit(0);
  }
  round(13);  // into pages that the child has, too
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  round(14);
  EXPECT_EQ(pair.ends[0]->registrations().count(), 1u);
}

// ---- the account alone

TEST(RdmaPlacing, PartsStandWhereTheyCame) {
  RdmaPlacing placing;
  std::byte memory[2][64];
  ASSERT_TRUE(placing.granted(memory[0], 64));
  ASSERT_TRUE(placing.granted(memory[1], 64));
  EXPECT_FALSE(placing.placed(65, true, 10)) << "more than there is room for";
  ASSERT_TRUE(placing.placed(10, false, 10));
  EXPECT_FALSE(placing.ring_is_open());
  EXPECT_FALSE(placing.has_part(10)) << "it has not all come";
  ASSERT_TRUE(placing.placed(0, true, 10)) << "it ends early";
  EXPECT_TRUE(placing.ring_is_open());
  ASSERT_TRUE(placing.placed(64, true, 25));
  EXPECT_FALSE(placing.placed(1, true, 25)) << "both grants are used up";
  EXPECT_TRUE(placing.has_part(10));
  EXPECT_EQ(placing.next_part(99), 10u);
  EXPECT_EQ(placing.place_of(10), memory[0]);
  EXPECT_EQ(placing.take(memory[0], 4), 4u);
  EXPECT_EQ(placing.place_of(6), nullptr) << "it has been begun";
  EXPECT_EQ(placing.take(memory[0] + 4, 100), 6u);
  EXPECT_TRUE(placing.has_part(25));
  EXPECT_EQ(placing.take(memory[1], 64), 64u);
  EXPECT_EQ(placing.next_part(99), 99u);
}

TEST(RdmaPlacing, GrantsAreBounded) {
  RdmaPlacing placing;
  std::byte memory[8];
  for (size_t i = 0; i < RdmaPlacing::kMostGrants; ++i) {
    EXPECT_TRUE(placing.granted(memory, 8));
    EXPECT_TRUE(placing.was_granted({1, 2, 8}));
  }
  EXPECT_FALSE(placing.granted(memory, 8));
  EXPECT_FALSE(placing.was_granted({1, 2, 8}));
  EXPECT_TRUE(placing.placed(8, true, 0));
  EXPECT_FALSE(placing.granted(memory, 8)) << "a part that nobody has read has its place";
  EXPECT_EQ(placing.take(memory, 8), 8u);
  EXPECT_TRUE(placing.granted(memory, 8));
}

TEST(OwnMemory, IsWhatWasAddedAndNothingBesides) {
  char memory[4096] = {};
  EXPECT_FALSE(OwnMemory::has(memory, 1));
  OwnMemory::add(memory, 4000);
  EXPECT_TRUE(OwnMemory::has(memory, 4000));
  EXPECT_TRUE(OwnMemory::has(memory + 3999, 1));
  EXPECT_FALSE(OwnMemory::has(memory + 3999, 2));
  EXPECT_FALSE(OwnMemory::has(memory + 10, SIZE_MAX));
  OwnMemory::remove(memory);
  EXPECT_FALSE(OwnMemory::has(memory, 1));
  OwnMemory::remove(memory);
}

}  // namespace
}  // namespace sluice::channel
