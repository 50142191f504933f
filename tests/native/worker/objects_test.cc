// SPDX-License-Identifier: Apache-2.0
// What the worker keeps of a client's ids.
#include "worker/objects.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace sluice::worker {
namespace {

constexpr uint64_t kKind = 3;
constexpr uint64_t id(uint64_t index, uint64_t generation = 1, uint64_t kind = kKind,
                      uint64_t tag = 0x51ce) {
  return tag << 48 | kind << 40 | generation << 24 | index;
}

TEST(Objects, ComeAndGoByTheirWholeId) {
  ObjectTable<int> table{wire::HandleKind{kKind}, 100};
  EXPECT_TRUE(table.has_room(id(5)));
  EXPECT_TRUE(table.add(id(5), 55));
  EXPECT_FALSE(table.has_room(id(5)));
  EXPECT_FALSE(table.add(id(5), 66)) << "taken";
  EXPECT_FALSE(table.add(id(5, 2), 66)) << "a slot that is taken by another generation";
  int value = 0;
  EXPECT_TRUE(table.get(id(5), &value));
  EXPECT_EQ(value, 55);
  for (uint64_t other : {id(5, 2), id(5, 0), id(4), id(6), id(5, 1, 4), id(5, 1, kKind, 0x51cf),
                         uint64_t{0}, uint64_t{5}, ~uint64_t{0}}) {
    EXPECT_FALSE(table.get(other, &value)) << std::hex << other;
    EXPECT_FALSE(table.take(other, &value)) << std::hex << other;
  }
  EXPECT_EQ(table.count(), 1u);
  EXPECT_TRUE(table.take(id(5), &value));
  EXPECT_FALSE(table.take(id(5), &value));
  EXPECT_EQ(table.count(), 0u);
  EXPECT_TRUE(table.add(id(5, 2), 77));
  EXPECT_FALSE(table.get(id(5), &value)) << "the old generation";
}

TEST(Objects, ForeignAndMadeUpIdsAreNotAdded) {
  ObjectTable<int> table{wire::HandleKind{kKind}, 100};
  for (uint64_t bad : {uint64_t{0}, id(0, 0, 0, 0), id(100), id(0xffffff), id(5, 1, 4),
                       id(5, 1, kKind, 0), id(5, 1, kKind, 0xd1ce), ~uint64_t{0}}) {
    EXPECT_FALSE(table.has_room(bad)) << std::hex << bad;
    EXPECT_FALSE(table.add(bad, 1)) << std::hex << bad;
  }
  EXPECT_TRUE(table.add(id(99), 1));
  EXPECT_EQ(table.count(), 1u);
}

TEST(Objects, AllAreVisited) {
  ObjectTable<int> table{wire::HandleKind{kKind}, 1000};
  for (int i = 0; i < 1000; i += 3) ASSERT_TRUE(table.add(id(static_cast<uint64_t>(i)), i));
  int sum = 0, seen = 0;
  table.for_each([&](uint64_t about, int value) {
    EXPECT_EQ(about & 0xffffff, static_cast<uint64_t>(value));
    sum += value;
    ++seen;
  });
  EXPECT_EQ(seen, 334);
  EXPECT_EQ(sum, 334 * 333 / 2 * 3);
}

TEST(Objects, ThreadsOfLanesReadWhileTheLeaderAdds) {
  ObjectTable<uint64_t> table{wire::HandleKind{kKind}, 1 << 16};
  std::atomic<bool> stop{false};
  std::vector<std::thread> readers;
  for (int t = 0; t < 3; ++t)
    readers.emplace_back([&] {
      while (!stop) {
        for (uint64_t i = 0; i < 64; ++i) {
          uint64_t v = i;
          table.get(id(i * 1000), &v);
          ASSERT_EQ(v, i);
        }
      }
    });
  for (int round = 0; round < 200; ++round) {
    for (uint64_t i = 0; i < 64; ++i) ASSERT_TRUE(table.add(id(i * 1000), i));
    uint64_t v;
    for (uint64_t i = 0; i < 64; ++i) ASSERT_TRUE(table.take(id(i * 1000), &v));
  }
  stop = true;
  for (auto& t : readers) t.join();
}

}  // namespace
}  // namespace sluice::worker
