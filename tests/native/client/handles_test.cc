// SPDX-License-Identifier: Apache-2.0
// Minted handles and marks: what was destroyed, foreign or made up is recognised, and nothing is
// handed out while somebody may still write it.
#include "client/objects/handles.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <set>
#include <thread>

#include "client/core/marks.h"

namespace sluice::client {
namespace {

struct Thing {
  uint64_t value = 0;
};

TEST(Handles, AreFoundUntilTheyAreDestroyed) {
  HandleTable<Thing> table{Kind::kStream};
  uint64_t id = 0;
  Thing* made = table.create(&id);
  made->value = 9;
  EXPECT_EQ(id >> 48, 0x51ceu);
  EXPECT_EQ(table.find(id), made);
  EXPECT_EQ(table.find(reinterpret_cast<void*>(id)), made);
  EXPECT_TRUE(table.destroy(id));
  EXPECT_EQ(table.find(id), nullptr);
  EXPECT_FALSE(table.destroy(id));
  uint64_t next = 0;
  EXPECT_EQ(table.create(&next)->value, 0u) << "a slot is reused blank";
  EXPECT_NE(next, id);
  EXPECT_EQ(table.find(id), nullptr) << "the old handle of a reused slot";
}

TEST(Handles, ForeignAndMadeUpOnesAreRefused) {
  HandleTable<Thing> streams{Kind::kStream}, events{Kind::kEvent};
  uint64_t stream = 0, event = 0;
  streams.create(&stream);
  events.create(&event);
  EXPECT_EQ(events.find(stream), nullptr);
  EXPECT_EQ(streams.find(event), nullptr);
  for (uint64_t id : {uint64_t{0}, uint64_t{1}, uint64_t{2}, ~uint64_t{0}, stream + 1,
                      stream | 0xffffff, stream ^ (uint64_t{1} << 24), stream & ~kHandleTag,
                      stream ^ (uint64_t{1} << 63), uint64_t{0x7ffe12345678}}) {
    EXPECT_EQ(streams.find(id), nullptr) << std::hex << id;
    EXPECT_FALSE(streams.destroy(id)) << std::hex << id;
  }
  EXPECT_NE(streams.find(stream), nullptr);
}

TEST(Handles, NoIdComesBackSoon) {
  HandleTable<Thing> table{Kind::kEvent};
  std::set<uint64_t> seen;
  for (int i = 0; i < 200'000; ++i) {
    uint64_t id = 0;
    ASSERT_NE(table.create(&id), nullptr);
    ASSERT_TRUE(seen.insert(id).second) << "after " << i;
    ASSERT_TRUE(table.destroy(id));
  }
}

TEST(Handles, ObjectsStayWhereTheyAreAndTheTableEndsSomewhere) {
  HandleTable<Thing> table{Kind::kEvent};
  std::vector<std::pair<uint64_t, Thing*>> all;
  for (;;) {
    uint64_t id = 0;
    Thing* t = table.create(&id);
    if (!t) break;
    t->value = id;
    all.emplace_back(id, t);
  }
  EXPECT_EQ(all.size(), size_t{1024} * 1024);
  for (size_t i = 0; i < all.size(); i += 997) {
    EXPECT_EQ(table.find(all[i].first), all[i].second);
    EXPECT_EQ(all[i].second->value, all[i].first);
  }
  ASSERT_TRUE(table.destroy(all[5].first));
  uint64_t id = 0;
  EXPECT_EQ(table.create(&id), all[5].second);
}

TEST(Handles, ThreadsDoNotDisturbOneAnother) {
  HandleTable<Thing> table{Kind::kStream};
  std::vector<std::thread> threads;
  std::atomic<uint64_t> live{0};
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      std::vector<uint64_t> mine;
      for (int i = 0; i < 50'000; ++i) {
        if (mine.size() < 100 && random() % 2) {
          uint64_t id = 0;
          Thing* thing = table.create(&id);
          ASSERT_NE(thing, nullptr);
          thing->value = id;
          mine.push_back(id);
        } else if (!mine.empty()) {
          const size_t at = random() % mine.size();
          const uint64_t id = mine[at];
          Thing* thing = table.find(id);
          ASSERT_NE(thing, nullptr);
          ASSERT_EQ(thing->value, id);
          ASSERT_TRUE(table.destroy(id));
          ASSERT_EQ(table.find(id), nullptr);
          mine[at] = mine.back();
          mine.pop_back();
        }
      }
      live += mine.size();
    });
  }
  for (auto& t : threads) t.join();
  uint64_t counted = 0;
  table.for_each([&](uint64_t id, Thing& thing) {
    EXPECT_EQ(thing.value, id);
    ++counted;
  });
  EXPECT_EQ(counted, live.load());
}

class MarkPage : public ::testing::Test {
 protected:
  void SetUp() override { marks.open(page.get()); }
  void write(uint32_t mark, uint64_t value) { page[mark].store(value); }

  std::unique_ptr<std::atomic<uint64_t>[]> page{new std::atomic<uint64_t>[channel::kMarkCount]()};
  Marks marks;
};

TEST_F(MarkPage, ValuesOnlyGrowAcrossOwners) {
  const uint32_t mark = marks.take();
  EXPECT_EQ(marks.next(mark), 1u);
  write(mark, 1);
  EXPECT_TRUE(marks.reached(mark, 1));
  marks.give_back(mark);
  ASSERT_EQ(marks.take(), mark);
  EXPECT_EQ(marks.next(mark), 2u);
  EXPECT_FALSE(marks.reached(mark, 2)) << "the old owner's write is not the new one's";
  marks.raise(mark, 100);
  EXPECT_EQ(marks.next(mark), 101u);
}

TEST_F(MarkPage, AMarkUnderWayIsNotHandedOut) {
  const uint32_t late = marks.take();
  const uint64_t value = marks.next(late);
  marks.give_back(late);
  std::set<uint32_t> taken;
  for (uint32_t mark; (mark = marks.take()) != wire::kNoMark;) {
    EXPECT_NE(mark, late);
    EXPECT_TRUE(taken.insert(mark).second);
  }
  EXPECT_EQ(taken.size(), channel::kMarkCount - 1);
  write(late, value);
  EXPECT_EQ(marks.take(), late) << "once it has landed";
  EXPECT_EQ(marks.take(), wire::kNoMark);
}

TEST_F(MarkPage, SomeAreKeptForThoseWhoCannotDoWithout) {
  size_t events = 0, others = 0;
  while (marks.take(true) != wire::kNoMark) ++events;
  while (marks.take(false) != wire::kNoMark) ++others;
  EXPECT_EQ(others, 256u);
  EXPECT_EQ(events + others, channel::kMarkCount);
  marks.give_back(wire::kNoMark);
  EXPECT_EQ(marks.take(false), wire::kNoMark);
}

TEST(Marks, WithoutASharedPageThereAreNone) {
  Marks marks;
  marks.open(nullptr);
  EXPECT_FALSE(static_cast<bool>(marks));
  EXPECT_EQ(marks.take(), wire::kNoMark);
}

TEST_F(MarkPage, ThreadsNeverShareAMark) {
  std::vector<std::atomic<int>> owner(channel::kMarkCount);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50'000; ++i) {
        const uint32_t mark = marks.take(true);
        ASSERT_NE(mark, wire::kNoMark);
        ASSERT_EQ(owner[mark].fetch_add(1), 0);
        const uint64_t value = marks.next(mark);
        owner[mark].fetch_sub(1);
        marks.give_back(mark);
        write(mark, value);  // lands late
      }
    });
  }
  for (auto& t : threads) t.join();
}

}  // namespace
}  // namespace sluice::client
