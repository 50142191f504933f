// SPDX-License-Identifier: Apache-2.0
// What is counted of collectives, as the arbiter finds it: two sessions of one job have one name
// for what both take part in.
#include "worker/collectives.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>

#include "worker/turn_keeper.h"

namespace sluice::worker {
namespace {

// One rank, in a session of its own.
struct Rank {
  std::unique_ptr<TurnKeeper> turns;
  int bell = eventfd(0, EFD_NONBLOCK);
  Collectives collectives;

  Rank() {
    const int fd = memfd_create("turns", MFD_CLOEXEC);
    EXPECT_EQ(ftruncate(fd, arbiter::kTurnPageBytes), 0);
    const uint64_t magic = wire::kTurnPageMagic;
    EXPECT_EQ(pwrite(fd, &magic, sizeof magic, 0), ssize_t{sizeof magic});
    std::string error;
    turns = TurnKeeper::open(fd, dup(bell), &error);
    EXPECT_TRUE(turns) << error;
    turns->page()->until = arbiter::kAlone;
    collectives.show(turns.get());
  }
  ~Rank() { close(bell); }
  // -1: the arbiter sees nothing of it.
  int64_t seen(uint64_t name) {
    const arbiter::TurnPage& page = *turns->page();
    for (size_t i = 0; i < page.places; ++i)
      if (name && page.issued[i].communicator == name)
        return static_cast<int64_t>(page.issued[i].count);
    return -1;
  }
  int64_t seen(const Collectives::One& one) { return seen(one.name); }
  bool rang() {
    uint64_t n;
    return read(bell, &n, sizeof n) == sizeof n;
  }
};

constexpr uint64_t kWorld = 11, kPart = 12, kOther = 13;  // a session's ids for its communicators

uint64_t world(int which = 1) {
  std::array<std::byte, 128> id{};
  id[5] = static_cast<std::byte>(which);
  return Collectives::named(id);
}

TEST(Collectives, AreThereBeforeTheFirstAndCounted) {
  Rank r;
  r.collectives.made(kWorld, world(), 0);
  EXPECT_EQ(r.seen(world()), 0);
  const auto one = r.collectives.collective(kWorld);
  r.collectives.issue(one);
  r.collectives.issue(one);
  EXPECT_EQ(r.seen(world()), 2);
  EXPECT_FALSE(r.rang()) << "it is alone";
  r.collectives.take_back({{one, 1}});
  EXPECT_EQ(r.seen(world()), 1);
  r.collectives.ended(kWorld);
  EXPECT_EQ(r.seen(world()), -1);
  r.collectives.issue(one);
  EXPECT_EQ(r.seen(world()), -1);
}

TEST(Collectives, AfterATurnTheArbiterHearsOfThem) {
  Rank r;
  r.collectives.made(kWorld, world(), 0);
  r.turns->page()->until = 1;  // long ago
  r.collectives.issue(r.collectives.collective(kWorld));
  EXPECT_TRUE(r.rang());
}

TEST(Collectives, OfAGraphAreCountedWithEachLaunch) {
  Rank r;
  r.collectives.made(kWorld, world(), 0);
  r.collectives.made(kOther, world(2), 0);
  Collectives::Many graph, around;
  Collectives::add(&graph, r.collectives.collective(kWorld));
  Collectives::add(&graph, r.collectives.collective(kWorld));
  Collectives::add(&graph, r.collectives.collective(kOther));
  Collectives::add(&graph, r.collectives.collective(77));
  Collectives::add(&around, graph);
  Collectives::add(&around, graph);
  EXPECT_EQ(r.seen(world()), 0);
  r.collectives.issue(graph);
  r.collectives.issue(around);
  EXPECT_EQ(r.seen(world()), 6);
  EXPECT_EQ(r.seen(world(2)), 3);
}

TEST(Collectives, ASendIsWhatItsReceiverReceives) {
  std::array<Rank, 3> ranks;
  for (int i = 0; i < 3; ++i) ranks[static_cast<size_t>(i)].collectives.made(kWorld, world(), i);
  const auto there = ranks[0].collectives.sent(kWorld, 1);
  EXPECT_EQ(there.name, ranks[1].collectives.received(kWorld, 0).name);
  EXPECT_NE(there.name, ranks[1].collectives.sent(kWorld, 0).name);
  EXPECT_NE(there.name, ranks[2].collectives.received(kWorld, 0).name);
  EXPECT_NE(there.name, world());
  ranks[0].collectives.issue(there);
  EXPECT_EQ(ranks[0].seen(there), 1);
  EXPECT_EQ(ranks[0].seen(world()), 0) << "the others of the communicator have no part in it";
  ranks[0].collectives.made(kOther, world(2), -1);
  EXPECT_EQ(ranks[0].collectives.sent(kOther, 1).communicator, 0u) << "nobody knows whose it is";
}

TEST(Collectives, NamesOfWhatIsMadeOfOthersAgree) {
  std::array<Rank, 4> ranks;
  for (Rank& r : ranks) r.collectives.made(kWorld, world(), 0);
  std::array<uint64_t, 4> first, second;
  for (size_t i = 0; i < 4; ++i) first[i] = ranks[i].collectives.split(kWorld, i < 2 ? 0 : 1);
  for (size_t i = 0; i < 4; ++i)
    second[i] = ranks[i].collectives.split(kWorld, i == 3 ? -1 : static_cast<int>(i) % 2);
  EXPECT_EQ(first[0], first[1]);
  EXPECT_EQ(first[2], first[3]);
  EXPECT_NE(first[0], first[2]);
  EXPECT_EQ(second[0], second[2]);
  EXPECT_NE(second[0], first[0]) << "of one color, another time";
  const uint64_t shrunk = ranks[0].collectives.shrunk(kWorld, {3, 2});
  EXPECT_EQ(shrunk, ranks[1].collectives.shrunk(kWorld, {2, 3}));
  const uint64_t without = ranks[3].collectives.shrunk(kWorld, {1});
  EXPECT_EQ(without, ranks[0].collectives.shrunk(kWorld, {1})) << "3 was not asked before";
  EXPECT_NE(ranks[0].collectives.shrunk(kWorld, {1}), without);
  EXPECT_EQ(ranks[0].collectives.split(99, 0), 0u);
  ranks[0].collectives.made(kPart, 0, 0);
  EXPECT_EQ(ranks[0].collectives.collective(kPart).communicator, 0u);
}

TEST(Collectives, WhatWasUsedLongestAgoMakesRoom) {
  Rank r;
  for (uint64_t i = 0; i < arbiter::kPlaces + 8; ++i) {
    r.collectives.made(100 + i, world(static_cast<int>(i)), 0);
    r.collectives.issue(r.collectives.collective(100 + i));
    r.collectives.issue(r.collectives.collective(100));
  }
  EXPECT_EQ(r.seen(world(0)), static_cast<int64_t>(arbiter::kPlaces + 9));
  EXPECT_EQ(r.seen(world(5)), -1);
  EXPECT_EQ(r.seen(world(static_cast<int>(arbiter::kPlaces))), 1);
  EXPECT_LE(r.turns->page()->places, arbiter::kPlaces);
  r.collectives.issue(r.collectives.collective(105));
  EXPECT_EQ(r.seen(world(5)), 2) << "it goes on where it was";
}

TEST(Collectives, WithoutTurnsThereAreNone) {
  Collectives none;
  none.made(kWorld, world(), 0);
  none.issue(none.collective(kWorld));
  none.ended(kWorld);
}

}  // namespace
}  // namespace sluice::worker
