// SPDX-License-Identifier: Apache-2.0
// Memory pools against a model of a device whose streams really take time: whatever is handed out
// must be free of all earlier uses, by completion or by the stream's order, at every step.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

#include "client/core/memory_pools.h"
#include "client/core/session.h"
#include "client/objects/stream.h"
#include "tests/native/client/device_window.h"

namespace sluice::client {
namespace {

using Result = DeviceMemory::Result;

// Streams that come past their work only when the test lets them, and a client that learns of it
// only when it looks. All are non-blocking.
class ModelDevice : public StreamOrder {
 public:
  struct Work {
    uint64_t number;
    Stream* earlier;  // of a wait: for what
    uint64_t upto;
  };
  struct Progress {
    uint64_t given = 0, known = 0;
    uint64_t probe = 0;      // work before an unanswered probe
    std::vector<Work> work;  // not done yet, oldest first
  };
  std::map<Stream*, Progress> streams;
  uint64_t issued = 0, idle_at = 0;
  int probes = 0, follows = 0, idles = 0;

  StreamPoint point(Stream* s) override { return {streams[s].given, false}; }
  bool passed(Stream* s, StreamPoint p) override {
    if (idle_at >= p.work) return true;
    if (p.whole_device) return false;
    Progress& g = streams[s];
    if (g.probe && done(s, g.probe)) {
      g.known = std::max(g.known, g.probe);
      g.probe = 0;
    }
    return g.known >= p.work;
  }
  void probe(Stream* s) override {
    ++probes;
    if (!streams[s].probe) streams[s].probe = streams[s].given;
  }
  bool follow(Stream* later, Stream* earlier) override {
    ++follows;
    wait(later, earlier);
    return true;
  }
  bool wait_idle() override {
    ++idles;
    for (auto& [s, g] : streams) g.work.clear();
    idle_at = issued;
    return true;
  }

  uint64_t launch(Stream* s, Stream* earlier = nullptr, uint64_t upto = 0) {
    streams[s].given = ++issued;
    streams[s].work.push_back({issued, earlier, upto});
    return issued;
  }
  uint64_t wait(Stream* later, Stream* earlier) {
    const uint64_t upto = issued;
    launch(later, earlier, upto);
    return upto;
  }
  // Whether what `s` is given after its work `number` waits for that of `other`.
  bool behind(Stream* s, uint64_t number, Stream* other, uint64_t of_other) {
    for (const Work& w : streams[s].work) {
      if (w.number > number || !w.earlier) continue;
      if (w.earlier == other && w.upto >= of_other) return true;
      if (behind(w.earlier, w.upto, other, of_other)) return true;
    }
    return false;
  }
  bool done(Stream* s, uint64_t number) {
    const auto& work = streams[s].work;
    return work.empty() || work.front().number > number;
  }
  void finish_one(Stream* s) {
    auto& work = streams[s].work;
    if (work.empty() || (work[0].earlier && !done(work[0].earlier, work[0].upto))) return;
    work.erase(work.begin());
  }
  void finish(Stream* s, uint64_t upto) {
    auto& work = streams[s].work;
    while (!work.empty() && work[0].number <= upto) {
      if (work[0].earlier) finish(work[0].earlier, work[0].upto);
      work.erase(work.begin());
    }
  }
  void synchronize(Stream* s) {
    finish(s, issued);
    streams[s].known = issued;
  }
};

struct PoolTest : public ::testing::Test {
  static constexpr uint64_t kLimit = 32 * kSlab;

  void SetUp() override {
    memory.open(kWindow, kWindowBytes, kLimit,
                {[this](uint64_t, uint64_t n) { return mapped += n, ++maps, true; },
                 [this](uint64_t at, uint64_t n) {
                   for (const auto& u : uses) {
                     const bool apart = u.at + u.bytes <= at || at + n <= u.at;
                     EXPECT_TRUE(apart || device->done(u.stream, u.number))
                         << "unmapped under running work";
                   }
                   return mapped -= n, true;
                 }});
    auto order = std::make_unique<ModelDevice>();
    device = order.get();
    pools.open(&memory, std::move(order));
    pool = pools.standard();
  }
  uint64_t allocate(uint64_t bytes, Stream* s, MemoryPool* from = nullptr) {
    uint64_t at = 0;
    EXPECT_EQ(pools.allocate(from ? from : pool, s, bytes, &at), Result::kDone);
    return at;
  }
  // Work of `s` on that memory.
  void use(uint64_t at, uint64_t bytes, Stream* s) {
    uses.push_back({at, bytes, s, device->launch(s)});
  }
  uint64_t get(CUmemPool_attribute a, MemoryPool* of = nullptr) {
    cuuint64_t value = 0;
    EXPECT_EQ(pools.get(of ? of : pool, a, &value), CUDA_SUCCESS);
    return value;
  }
  void turn(CUmemPool_attribute a, bool on) {
    const int value = on;
    EXPECT_EQ(pools.set(pool, a, &value), CUDA_SUCCESS);
  }

  struct Use {
    uint64_t at, bytes;
    Stream* stream;
    uint64_t number;
  };
  std::vector<Use> uses;
  uint64_t mapped = 0, maps = 0;
  DeviceMemory memory;
  MemoryPools pools;
  ModelDevice* device = nullptr;
  MemoryPool* pool = nullptr;
  Stream a, b, c;
};

TEST_F(PoolTest, WhatAStreamFreesIsAtOnceItsOwn) {
  const uint64_t first = allocate(5000, &a);
  for (int i = 0; i < 100; ++i) {
    const uint64_t at = i ? allocate(5000, &a) : first;
    EXPECT_EQ(at, first);
    use(at, 5000, &a);
    EXPECT_TRUE(pools.free(at, &a));
  }
  EXPECT_EQ(maps, 1u);
  EXPECT_EQ(device->probes + device->follows + device->idles, 0);
}

TEST_F(PoolTest, AnotherStreamGetsItAfterAnEvent) {
  turn(CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, false);
  const uint64_t at = allocate(kSlab, &a);
  use(at, kSlab, &a);
  EXPECT_TRUE(pools.free(at, &a));
  EXPECT_NE(allocate(kSlab, &b), at) << "not in its order";
  pools.note_wait(&b, &a, device->wait(&b, &a));
  EXPECT_EQ(allocate(kSlab, &b), at);
  // An event of before the free says nothing.
  const uint64_t next = allocate(kSlab, &a);
  pools.note_wait(&b, &a, device->wait(&b, &a));
  use(next, kSlab, &a);
  EXPECT_TRUE(pools.free(next, &a));
  EXPECT_NE(allocate(kSlab, &b), next);
}

TEST_F(PoolTest, EventsAreNotFollowedWhereTheAttributeSaysSo) {
  turn(CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, false);
  const uint64_t at = allocate(kSlab, &a);
  use(at, kSlab, &a);
  EXPECT_TRUE(pools.free(at, &a));
  pools.note_wait(&b, &a, device->wait(&b, &a));
  EXPECT_NE(allocate(kSlab, &b), at);
}

TEST_F(PoolTest, AnotherStreamGetsItOnceItIsKnownToBeDone) {
  const uint64_t at = allocate(kSlab, &a);
  use(at, kSlab, &a);
  EXPECT_TRUE(pools.free(at, &a));
  EXPECT_NE(allocate(kSlab, &b), at);
  EXPECT_EQ(device->probes, 1) << "so that next time it is known";
  device->finish_one(&a);
  EXPECT_EQ(allocate(kSlab, &b), at);
  const uint64_t next = allocate(kSlab, &a);
  use(next, kSlab, &a);
  EXPECT_TRUE(pools.free(next, &a));
  device->synchronize(&a);
  EXPECT_EQ(allocate(kSlab, &b), next) << "by a synchronisation";
}

TEST_F(PoolTest, WhenMemoryRunsOutAWaitIsPutIn) {
  const uint64_t at = allocate(kLimit, &a);
  use(at, kLimit, &a);
  EXPECT_TRUE(pools.free(at, &a));
  EXPECT_EQ(allocate(kSlab, &b), at);
  EXPECT_EQ(device->follows, 1);
  EXPECT_EQ(device->idles, 0);
  allocate(kLimit - kSlab, &b);
  EXPECT_EQ(device->follows, 1) << "the rest of it came along";
}

TEST_F(PoolTest, OrTheDeviceIsWaitedFor) {
  turn(CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, false);
  const uint64_t at = allocate(kLimit, &a);
  use(at, kLimit, &a);
  EXPECT_TRUE(pools.free(at, &a));
  allocate(kSlab, &b);
  EXPECT_EQ(device->follows, 0);
  EXPECT_EQ(device->idles, 1);
  uint64_t more = 0;
  EXPECT_EQ(pools.allocate(pool, &b, kLimit, &more), Result::kOutOfMemory);
  EXPECT_EQ(pools.allocate(pool, &b, ~uint64_t{0}, &more), Result::kOutOfMemory);
}

TEST_F(PoolTest, AfterASynchronisationTheThresholdHolds) {
  const uint64_t at = allocate(3 * kSlab, &a), other = allocate(kSlab, &a);
  use(at, 3 * kSlab, &a);
  EXPECT_TRUE(pools.free(at, &a));
  EXPECT_TRUE(pools.free(other, &a));
  pools.after_synchronisation();
  EXPECT_EQ(mapped, 4 * kSlab) << "the stream is not known to be done";
  const cuuint64_t keep = kSlab;
  EXPECT_EQ(pools.set(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep), CUDA_SUCCESS);
  device->synchronize(&a);
  pools.after_synchronisation();
  EXPECT_EQ(mapped, kSlab);
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), kSlab);
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), 4 * kSlab);
  const cuuint64_t one = 1, zero = 0;
  EXPECT_EQ(pools.set(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &one), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(pools.set(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &zero), CUDA_SUCCESS);
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), kSlab);
  pools.trim(pool, 0);
  EXPECT_EQ(mapped, 0u);
}

// Chunks go as they were made: one that would leave too little stays, a smaller one behind it goes.
TEST_F(PoolTest, ATrimLeavesAtLeastWhatIsToBeKept) {
  const uint64_t large = allocate(3 * kSlab, &a), small = allocate(kSlab, &a);
  EXPECT_TRUE(pools.free(large, &a));
  EXPECT_TRUE(pools.free(small, &a));
  device->synchronize(&a);
  pools.trim(pool, 5 * kSlab);
  EXPECT_EQ(mapped, 4 * kSlab) << "there is less than that";
  pools.trim(pool, 2 * kSlab);
  EXPECT_EQ(mapped, 3 * kSlab);
  pools.trim(pool, 1);
  EXPECT_EQ(mapped, 3 * kSlab) << "without it there would be nothing";
  const cuuint64_t threshold = kSlab;
  EXPECT_EQ(pools.set(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold), CUDA_SUCCESS);
  pools.after_synchronisation();
  EXPECT_EQ(mapped, 0u) << "a threshold says from where on memory goes back, not what stays";
}

TEST_F(PoolTest, APoolOfItsOwnHasItsOwnLimitAndEnd) {
  MemoryPool* own = pools.create(2 * kSlab);
  const uint64_t at = allocate(kSlab, &a, own);
  uint64_t more = 0;
  EXPECT_EQ(pools.allocate(own, &a, 2 * kSlab, &more), Result::kOutOfMemory);
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_USED_MEM_CURRENT, own), kSlab);
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0u);
  EXPECT_FALSE(pools.destroy(pool)) << "the standard pool stays";
  EXPECT_TRUE(pools.destroy(own));
  uint64_t start, bytes;
  EXPECT_TRUE(pools.find(at + 5, &start, &bytes)) << "what it gave out lives on";
  use(at, kSlab, &a);
  EXPECT_TRUE(pools.free(at, &a));
  EXPECT_EQ(mapped, kSlab);
  device->synchronize(&a);
  pools.after_synchronisation();
  EXPECT_EQ(mapped, 0u) << "with the last allocation goes the pool";
  EXPECT_FALSE(pools.free(at, &a));
}

TEST_F(PoolTest, OthersGetItsRoomWhenTheyNeedIt) {
  const uint64_t at = allocate(kLimit, &a);
  use(at, kLimit, &a);
  uint64_t plain = 0;
  EXPECT_FALSE(pools.make_room(true)) << "all of it is in use";
  EXPECT_TRUE(pools.free(at, &a));
  EXPECT_EQ(memory.allocate(kSlab, &plain), Result::kOutOfMemory);
  EXPECT_FALSE(pools.make_room(false));
  EXPECT_TRUE(pools.make_room(true));
  EXPECT_EQ(memory.allocate(kSlab, &plain), Result::kDone);
}

TEST_F(PoolTest, AStreamsPlaceBelongsToTheNextStream) {
  const uint64_t at = allocate(kSlab, &a);
  use(at, kSlab, &a);
  EXPECT_TRUE(pools.free(at, &a));
  pools.forget_stream(&a);
  // Another stream at the same place in memory: what the first one freed is not its own.
  EXPECT_NE(allocate(kSlab, &a), at);
  device->wait_idle();
  EXPECT_EQ(allocate(kSlab, &b), at);
}

TEST_F(PoolTest, NothingIsHandedOutUnderRunningWork) {
  Stream streams[4];
  std::mt19937_64 random(17);
  struct Live {
    uint64_t at, bytes;
    Stream* home;
  };
  std::vector<Live> live;
  int refused = 0, shared = 0;
  for (int step = 0; step < 60000; ++step) {
    Stream* s = &streams[random() % 4];
    const auto dice = random() % 100;
    if (dice < 30) {
      const uint64_t bytes = random() % 5 ? 1 + random() % (1 << 18) : 1 + random() % (6 << 20);
      uint64_t at = 0;
      const Result r = pools.allocate(pool, s, bytes, &at);
      if (r == Result::kOutOfMemory) {
        ++refused;
      } else {
        ASSERT_EQ(r, Result::kDone);
        for (const auto& l : live)
          ASSERT_TRUE(l.at + l.bytes <= at || at + bytes <= l.at) << "given out twice";
        for (const auto& u : uses) {
          if (u.at + u.bytes <= at || at + bytes <= u.at) continue;
          if (device->done(u.stream, u.number)) continue;
          if (u.stream == s) continue;
          ++shared;
          ASSERT_TRUE(device->behind(s, ~uint64_t{0}, u.stream, u.number))
              << "handed out while another stream's work runs on it";
        }
        live.push_back({at, bytes, s});
      }
    } else if (dice < 55 && !live.empty()) {
      const size_t i = random() % live.size();
      ASSERT_TRUE(pools.free(live[i].at, live[i].home));
      live.erase(live.begin() + static_cast<ptrdiff_t>(i));
    } else if (dice < 85 && !live.empty()) {
      const Live& l = live[random() % live.size()];
      use(l.at, l.bytes, l.home);
    } else if (dice < 92) {
      if (random() % 3 == 0) device->finish_one(s);
    } else if (dice < 95) {
      Stream* earlier = &streams[random() % 4];
      if (earlier != s) pools.note_wait(s, earlier, device->wait(s, earlier));
    } else if (dice == 95 && random() % 4 == 0) {
      device->synchronize(s);
      pools.after_synchronisation();
    }
    std::erase_if(uses, [&](const Use& u) { return device->done(u.stream, u.number); });
    uint64_t in_use = 0;
    for (const auto& l : live) in_use += (l.bytes + 511) / 512 * 512;
    ASSERT_EQ(get(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), in_use);
    ASSERT_EQ(get(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), mapped);
    ASSERT_LE(mapped, kLimit);
  }
  EXPECT_GT(refused, 20);
  EXPECT_GT(shared, 20);
  for (const auto& l : live) ASSERT_TRUE(pools.free_now(l.at));
  device->wait_idle();
  pools.trim(pool, 0);
  EXPECT_EQ(mapped, 0u);
}

}  // namespace
}  // namespace sluice::client
