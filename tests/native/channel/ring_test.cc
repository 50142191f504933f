// SPDX-License-Identifier: Apache-2.0
// The command ring: frames of any size come out as they went in, and nothing that a client writes
// makes the consumer read outside.
#include "channel/ring.h"

#include <deque>
#include <random>
#include <thread>
#include <vector>

#include "tests/native/channel/shared_slot.h"

namespace sluice::channel {
namespace {

using Got = RingConsumer::Got;

class Ring : public ::testing::Test {
 protected:
  void SetUp() override {
    producer.attach(client.header(), client.ring(), client.layout().ring_bytes);
    consumer.attach(host.header(), host.ring(), host.layout().ring_bytes);
  }

  // A frame whose bytes tell its number. False: the ring is full.
  bool put(uint32_t number, uint32_t size) {
    std::byte* at = producer.try_reserve(size);
    if (!at) return false;
    const wire::FrameHeader h{size, 64, wire::kNoLane, number, 0};
    std::memcpy(at, &h, sizeof h);
    for (uint32_t i = sizeof h; i < size; ++i) at[i] = pattern(number, i);
    producer.commit(size);
    return true;
  }
  ::testing::AssertionResult is_frame(uint32_t number, uint32_t size) const {
    wire::FrameHeader h;
    std::memcpy(&h, out.data(), sizeof h);
    if (h.size != size || h.sequence != number)
      return ::testing::AssertionFailure() << "frame " << h.sequence << " of " << h.size
                                           << " bytes, not " << number << " of " << size;
    for (uint32_t i = sizeof h; i < size; ++i)
      if (out[i] != pattern(number, i))
        return ::testing::AssertionFailure() << "byte " << i << " of frame " << number;
    return ::testing::AssertionSuccess();
  }
  static std::byte pattern(uint32_t number, uint32_t i) {
    return static_cast<std::byte>(number * 131 + i * 7 + (i >> 8));
  }
  // What a hostile client can do: any tail, any size in front.
  Got take_with(uint64_t tail, uint32_t size) {
    std::memcpy(client.ring() + (consumer.consumed() & (producer.capacity() - 1)), &size,
                sizeof size);
    client.header().tail = tail;
    return consumer.take(out.data());
  }

  test::SharedSlot shared;
  // One mapping for both ends: ThreadSanitizer knows memory by its address.
  MappedSlot client = shared.map();
  MappedSlot& host = client;
  RingProducer producer;
  RingConsumer consumer;
  std::vector<std::byte> out = std::vector<std::byte>(wire::kMaxFrameBytes + 64);
};

TEST_F(Ring, RandomFramesComeOutInOrderAcrossTheEnd) {
  std::mt19937 random(20261);
  struct Frame {
    uint32_t number, size;
  };
  std::deque<Frame> inside;
  uint32_t number = 0;
  uint64_t through = 0;
  while (through < 40 * producer.capacity() || number < 3000) {
    const bool small = random() % 4;
    const auto size =
        static_cast<uint32_t>(16 + random() % (small ? 40 : producer.capacity() / 8 - 2) * 8);
    if (random() % 2 && put(number, size)) inside.push_back({number++, size});
    if (random() % 2) {
      if (inside.empty()) {
        ASSERT_EQ(consumer.take(out.data()), Got::kEmpty);
        continue;
      }
      ASSERT_EQ(consumer.take(out.data()), Got::kFrame);
      ASSERT_TRUE(is_frame(inside.front().number, inside.front().size));
      through += inside.front().size;
      inside.pop_front();
      consumer.release();
    }
  }
}

TEST_F(Ring, FillsToTheLastByteAndNoFurther) {
  const size_t n = producer.capacity();
  ASSERT_TRUE(put(0, static_cast<uint32_t>(n - 16)));
  EXPECT_EQ(producer.try_reserve(24), nullptr);
  ASSERT_TRUE(put(1, 16));
  EXPECT_EQ(producer.try_reserve(16), nullptr);
  ASSERT_EQ(consumer.take(out.data()), Got::kFrame);
  EXPECT_TRUE(is_frame(0, static_cast<uint32_t>(n - 16)));
  EXPECT_EQ(producer.try_reserve(16), nullptr) << "room comes back when it is released";
  consumer.release();
  ASSERT_TRUE(put(2, static_cast<uint32_t>(n - 16)));
  ASSERT_EQ(consumer.take(out.data()), Got::kFrame);
  EXPECT_TRUE(is_frame(1, 16));
  ASSERT_EQ(consumer.take(out.data()), Got::kFrame);
  EXPECT_TRUE(is_frame(2, static_cast<uint32_t>(n - 16)));
  EXPECT_EQ(consumer.take(out.data()), Got::kEmpty);
}

TEST_F(Ring, AHeadThatMakesNoSenseGivesNoRoom) {
  ASSERT_TRUE(put(0, 4096));
  ASSERT_TRUE(put(1, static_cast<uint32_t>(producer.capacity() - 4096)));
  for (uint64_t head : {~uint64_t{0}, uint64_t{1} << 40, uint64_t{producer.capacity() + 8}}) {
    host.header().head = head;  // ahead of the tail: the device is gone
    EXPECT_EQ(producer.try_reserve(16), nullptr) << head;
  }
}

TEST_F(Ring, HostileTailsBreakTheChannel) {
  const uint64_t n = producer.capacity();
  for (uint64_t tail : {n + 8, n + 1, n * 2, uint64_t{1} << 63, ~uint64_t{0}, ~uint64_t{0} - 7,
                        uint64_t{1}, uint64_t{8}, uint64_t{15}})
    EXPECT_EQ(take_with(tail, 16), Got::kBroken) << tail;
  EXPECT_EQ(consumer.consumed(), 0u);
}

TEST_F(Ring, ATailThatGoesBackBreaksTheChannel) {
  ASSERT_TRUE(put(0, 64));
  ASSERT_EQ(consumer.take(out.data()), Got::kFrame);
  for (uint64_t tail : {uint64_t{0}, uint64_t{63}, uint64_t{56}})
    EXPECT_EQ(take_with(tail, 16), Got::kBroken) << tail;
}

TEST_F(Ring, HostileSizesBreakTheChannel) {
  const auto n = static_cast<uint32_t>(producer.capacity());
  for (uint32_t size :
       {0u, 1u, 8u, 15u, 17u, 20u, 31u, n + 8, wire::kMaxFrameBytes + 8, 0x80000000u, ~0u, ~7u})
    EXPECT_EQ(take_with(n, size), Got::kBroken) << size;
  EXPECT_EQ(take_with(64, 72), Got::kBroken) << "more than was produced";
  EXPECT_EQ(take_with(64, 64), Got::kFrame);
}

TEST(LargeRing, FramesAboveTheLargestAreRefused) {
  test::SharedSlot shared(64 << 20);
  const MappedSlot slot = shared.map();
  RingConsumer consumer;
  consumer.attach(slot.header(), slot.ring(), slot.layout().ring_bytes);
  ASSERT_GT(slot.layout().ring_bytes, wire::kMaxFrameBytes);
  std::vector<std::byte> out(wire::kMaxFrameBytes);
  const auto size_at = [&](uint32_t size) { std::memcpy(slot.ring(), &size, sizeof size); };
  slot.header().tail = slot.layout().ring_bytes;
  size_at(wire::kMaxFrameBytes + 8);
  EXPECT_EQ(consumer.take(out.data()), Got::kBroken);
  size_at(wire::kMaxFrameBytes);
  EXPECT_EQ(consumer.take(out.data()), Got::kFrame);
}

TEST_F(Ring, TheSizeThatWasCheckedIsTheSizeThatIsSeen) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the race is the test";
#endif
  // A client that rewrites a frame while it is read: whatever comes out, its size was checked and
  // its bytes are private.
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (uint32_t i = 0; !stop; ++i) {
      const uint32_t size = i % 2 ? 64 : wire::kMaxFrameBytes * 2;
      __atomic_store_n(reinterpret_cast<uint32_t*>(client.ring()), size, __ATOMIC_RELAXED);
    }
  });
  client.header().tail = 64;
  int frames = 0, broken = 0;
  const uint64_t start = now_ns();
  while ((frames < 1000 || broken < 1000) && now_ns() - start < 20'000'000'000) {
    RingConsumer fresh;
    fresh.attach(host.header(), host.ring(), host.layout().ring_bytes);
    if (fresh.take(out.data()) != Got::kFrame) {
      ++broken;
      continue;
    }
    wire::FrameHeader h;
    std::memcpy(&h, out.data(), sizeof h);
    ASSERT_EQ(h.size, 64u);
    ++frames;
  }
  stop = true;
  writer.join();
  EXPECT_GE(frames, 1000);
  EXPECT_GE(broken, 1000);
}

TEST_F(Ring, TwoThreadsPassAMillionFrames) {
  constexpr uint32_t kFrames = 1'000'000;
  std::thread client_thread([&] {
    std::mt19937 random(7);
    for (uint32_t i = 0; i < kFrames; ++i) {
      const uint32_t size = 16 + static_cast<uint32_t>(random() % 16) * 8;
      while (!put(i, size)) std::this_thread::yield();
    }
  });
  std::mt19937 random(7);
  for (uint32_t i = 0; i < kFrames;) {
    const Got got = consumer.take(out.data());
    ASSERT_NE(got, Got::kBroken);
    if (got == Got::kEmpty) {
      std::this_thread::yield();
      continue;
    }
    ASSERT_TRUE(is_frame(i, 16 + static_cast<uint32_t>(random() % 16) * 8));
    if (++i % 16 == 0 || consumer.empty()) consumer.release();
  }
  client_thread.join();
  EXPECT_TRUE(consumer.empty());
}

// The consumer sleeps as soon as it finds nothing, so nearly every round goes through the words
// `sleeping` and `wake`. A lost wake-up stands still and is caught by the consumer's timeout.
TEST_F(Ring, NoWakeUpIsLost) {
  constexpr uint32_t kRounds = 1'000'000;
  std::atomic<uint32_t> taken{0};
  std::thread client_thread([&] {
    for (uint32_t i = 0; i < kRounds; ++i) {
      std::byte* at;
      while (!(at = producer.try_reserve(16))) std::this_thread::yield();
      const wire::FrameHeader h{16, 64, wire::kNoLane, i, 0};
      std::memcpy(at, &h, sizeof h);
      auto& slot = client.header();
      if (producer.commit(16) && slot.sleeping.exchange(0) != 0) {
        slot.wake.fetch_add(1);
        futex_wake(slot.wake);
      }
      // Mostly one at a time, so that the consumer falls asleep in between.
      for (int spin = 0; i % 64 != 0 && taken.load(std::memory_order_relaxed) <= i && spin < 2000;
           ++spin)
        cpu_relax();
    }
  });
  auto& slot = host.header();
  uint64_t sleeps = 0;
  for (uint32_t i = 0; i < kRounds;) {
    const uint32_t seen = slot.wake.load();
    const Got got = consumer.take(out.data());
    ASSERT_NE(got, Got::kBroken);
    if (got == Got::kFrame) {
      consumer.release();
      taken.store(++i, std::memory_order_relaxed);
      continue;
    }
    slot.sleeping.store(1);
    if (consumer.empty()) {
      ++sleeps;
      const uint64_t since = now_ns();
      futex_wait(slot.wake, seen, 20'000'000'000);
      ASSERT_LT(now_ns() - since, 19'000'000'000u) << "slept through frame " << i;
    }
    slot.sleeping.store(0);
  }
  client_thread.join();
  EXPECT_GT(sleeps, kRounds / 1000);  // few where both threads have one core
}

}  // namespace
}  // namespace sluice::channel
