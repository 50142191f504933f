// SPDX-License-Identifier: Apache-2.0
// How whoever reads waits: looks where the last waits were short, else sleeps, and reads the same.
#include "channel/stream.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "channel/futex.h"

namespace sluice::channel {
namespace {

constexpr uint64_t kUs = 1000, kMs = 1'000'000;
constexpr SpinTime::Bounds kBounds{0, 1 * kMs};

TEST(SpinTime, LooksForTwiceAsLongAsTheLastShortWait) {
  SpinTime time(kBounds, 16);
  EXPECT_EQ(time.nanoseconds(), 0u) << "nothing is known yet";
  time.waited(100 * kUs);
  EXPECT_EQ(time.nanoseconds(), 200 * kUs);
  time.waited(150 * kUs);
  EXPECT_EQ(time.nanoseconds(), 200 * kUs) << "it came while one looked";
  time.waited(900 * kUs);
  EXPECT_EQ(time.nanoseconds(), 1 * kMs) << "no longer than it may";
}

TEST(SpinTime, EndsSoonWhereWaitsAreLong) {
  SpinTime time(kBounds, 16);
  time.waited(600 * kUs);
  uint64_t looked = 0;
  for (int i = 0; i < 100; ++i) {
    looked += time.nanoseconds();
    time.waited(50 * kMs);
  }
  EXPECT_EQ(time.nanoseconds(), 0u);
  EXPECT_LT(looked, 2 * kMs) << "of five seconds";
}

TEST(SpinTime, KeepsWhatItIsToLookAtLeast) {
  SpinTime time({50 * kUs, 400 * kUs}, 16);
  EXPECT_EQ(time.nanoseconds(), 50 * kUs);
  time.waited(300 * kUs);
  EXPECT_EQ(time.nanoseconds(), 400 * kUs);
  for (int i = 0; i < 10; ++i) time.waited(50 * kMs);
  EXPECT_EQ(time.nanoseconds(), 50 * kUs);
}

TEST(SpinTime, LeavesFewProcessorsToWhoWorks) {
  SpinTime few(kBounds, 2), least({50 * kUs, 1 * kMs}, 2), one({50 * kUs, 1 * kMs}, 1);
  for (SpinTime* time : {&few, &least, &one}) time->waited(60 * kUs);
  EXPECT_FALSE(few.looks());
  EXPECT_EQ(few.nanoseconds(), 0u);
  EXPECT_EQ(least.nanoseconds(), 50 * kUs) << "and no longer";
  EXPECT_EQ(one.nanoseconds(), 0u);
  EXPECT_FALSE(one.looks());
}

// How many waits it does not look.
uint32_t rests(SpinTime* time) {
  uint32_t count = 0;
  for (; time->nanoseconds() == 0; ++count) time->waited(100 * kUs);
  return count;
}

TEST(SpinTime, RestsWhereOthersWantedTheProcessorLongerEachTime) {
  SpinTime time(kBounds, 16);
  time.waited(100 * kUs);
  for (uint32_t wanted : {16u, 32u, 64u, 128u, 256u, 512u, 1024u, 1024u}) {
    time.held_up();
    EXPECT_EQ(rests(&time), wanted);
  }
  EXPECT_EQ(time.nanoseconds(), 200 * kUs);
  time.waited(100 * kUs);  // nobody wanted it
  time.held_up();
  EXPECT_EQ(rests(&time), SpinTime::kRests);
}

struct Sockets {
  Sockets() {
    socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends);
    reader = std::make_unique<PlainStream>(ends[0]);
    writer = std::make_unique<PlainStream>(ends[1]);
    reader->look_before_sleeping(kBounds.most, 16);
  }
  ~Sockets() {
    for (int end : ends) close(end);
  }
  bool write(const std::vector<uint8_t>& bytes) const {
    iovec part{const_cast<uint8_t*>(bytes.data()), bytes.size()};
    return writer->write(&part, 1);
  }
  int ends[2] = {-1, -1};
  std::unique_ptr<PlainStream> reader, writer;
};

uint64_t thread_cpu_ns() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(t.tv_nsec);
}

TEST(PlainStream, ReadsTheSameWhetherItLooksOrSleeps) {
  constexpr int kPieces = 400;
  const Sockets pair;
  std::mt19937 random(7);
  std::vector<std::vector<uint8_t>> pieces;
  std::vector<uint8_t> all;
  for (int i = 0; i < kPieces; ++i) {
    std::vector<uint8_t> piece(1 + random() % 5000);
    for (uint8_t& byte : piece) byte = static_cast<uint8_t>(random());
    all.insert(all.end(), piece.begin(), piece.end());
    pieces.push_back(std::move(piece));
  }
  std::thread writes([&] {
    std::mt19937 pauses(8);
    for (const auto& piece : pieces) {
      if (pauses() % 3) sleep_ns(pauses() % (2 * kMs));
      if (!pair.write(piece)) return;
    }
    pair.writer->finish();
  });
  std::vector<uint8_t> got(all.size() + 1);
  size_t have = 0;
  for (;;) {
    const iovec parts[2] = {{got.data() + have, std::min<size_t>(got.size() - have, 100)},
                            {got.data() + std::min(have + 100, got.size()),
                             got.size() - std::min(have + 100, got.size())}};
    const ssize_t n = pair.reader->read(parts, 2);
    if (n <= 0) {
      EXPECT_EQ(n, 0) << "the other side is through";
      break;
    }
    have += static_cast<size_t>(n);
  }
  writes.join();
  got.resize(have);
  EXPECT_EQ(got, all);
}

// By its own processor time: a busy host makes it no longer.
TEST(PlainStream, SleepsThroughALongWait) {
  const Sockets pair;
  uint8_t byte = 0;
  const iovec part{&byte, 1};
  std::thread writes([&] {
    for (int i = 0; i < 50; ++i) {
      sleep_ns(200 * kUs);
      pair.write({1});
    }
    sleep_ns(700 * kMs);
    pair.write({2});
  });
  for (int i = 0; i < 50; ++i) ASSERT_EQ(pair.reader->read(&part, 1), 1);
  const uint64_t before = thread_cpu_ns();
  ASSERT_EQ(pair.reader->read(&part, 1), 1);
  EXPECT_EQ(byte, 2);
  EXPECT_LT(thread_cpu_ns() - before, 50 * kMs);
  writes.join();
}

TEST(PlainStream, GivesUpWhereTheSocketHasALimit) {
  const Sockets pair;
  const timeval limit{0, 20'000};
  setsockopt(pair.ends[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  uint8_t byte;
  const iovec part{&byte, 1};
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(pair.reader->read(&part, 1), -1);
    EXPECT_EQ(errno, EAGAIN);
  }
}

TEST(PlainStream, ComesBackFromACut) {
  const Sockets pair;
  std::thread cuts([&] {
    sleep_ns(5 * kMs);
    pair.reader->cut();
  });
  uint8_t byte;
  const iovec part{&byte, 1};
  EXPECT_LE(pair.reader->read(&part, 1), 0);
  cuts.join();
}

}  // namespace
}  // namespace sluice::channel
