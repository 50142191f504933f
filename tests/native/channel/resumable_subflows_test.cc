// SPDX-License-Identifier: Apache-2.0
// A resumable stream whose connections have subflows: bulk goes over them, frames do not wait
// behind it, and what is cut where changes nothing in what arrives.
#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>

#include "tests/native/channel/resumable_rig.h"

namespace sluice::channel {
namespace {

using namespace resumable;

constexpr ResumableStream::Terms kTerms{60 * kSecond, 60 * kSecond};
constexpr size_t kLarge = 3'000'000;

void both_ways(Rig* rig, uint64_t bytes) {
  std::atomic<int> sending{2};
  std::vector<std::thread> threads;
  for (ResumableStream* stream : {rig->client.get(), rig->server.get()}) {
    const unsigned seed = stream == rig->client.get() ? 1 : 2;
    threads.emplace_back([&sending, stream, bytes, seed] {
      send_all(stream, bytes, seed, kLarge);
      --sending;
    });
    threads.emplace_back([&sending, stream, bytes, seed] {
      receive_all(stream, bytes, seed + 10, kLarge);
      listen(stream, sending);
    });
  }
  for (std::thread& t : threads) t.join();
}

TEST(ResumableSubflows, WhatArrivesIsWhatWasSent) {
  Rig rig(kTerms, 3);
  both_ways(&rig, 64 << 20);
}

class CutSubflows : public testing::TestWithParam<size_t> {};

TEST_P(CutSubflows, WhatArrivesIsWhatWasSent) {
  Rig rig(kTerms, 3);
  rig.cut_after(GetParam(), 7);
  both_ways(&rig, 40 * GetParam());
  EXPECT_GT(rig.connections, 10);
}
INSTANTIATE_TEST_SUITE_P(After, CutSubflows, testing::Values(300'000, 1'500'000));

// Both ends of one connection, bare: the test is the other side.
struct Bare {
  Ends main = pair();
  std::vector<Ends> subflows;
  ResumableStream stream{over(main.a), kTerms};

  explicit Bare(uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) {
      subflows.push_back(pair());
      EXPECT_TRUE(stream.add_subflow(0, i, over(subflows.back().a)));
    }
  }
  ~Bare() {
    close(main.b);
    for (const Ends& subflow : subflows) close(subflow.b);
  }
  void say(const wire::StreamRecord& record) {
    ASSERT_EQ(write(main.b, &record, sizeof record), static_cast<ssize_t>(sizeof record));
  }
};

wire::StreamRecord bulk(uint32_t bytes, uint32_t subflows) {
  return {bytes, wire::kOverSubflows | subflows << 8, 0};
}

TEST(ResumableSubflows, OnlyTheHeaderOfBulkIsOnTheConnection) {
  Bare b(2);
  std::vector<char> data(1 << 20, 'x'), got(1 << 19);
  std::thread reader([&] {
    for (const Ends& subflow : b.subflows)
      EXPECT_EQ(recv(subflow.b, got.data(), got.size(), MSG_WAITALL),
                static_cast<ssize_t>(got.size()));
  });
  char frame[] = "frame";
  iovec parts[2] = {{frame, sizeof frame}, {data.data(), data.size()}};
  EXPECT_TRUE(b.stream.write_lent(parts, 2, nullptr));
  reader.join();
  struct {
    wire::StreamRecord first;
    char text[sizeof frame];
    wire::StreamRecord second;
    char more;
  } __attribute__((packed)) said{};
  EXPECT_EQ(recv(b.main.b, &said, sizeof said, 0), static_cast<ssize_t>(sizeof said) - 1);
  EXPECT_EQ(said.first.bytes, sizeof frame);
  EXPECT_STREQ(said.text, "frame");
  EXPECT_EQ(said.second.bytes, data.size());
  EXPECT_EQ(said.second.flags, wire::kOverSubflows | 2u << 8);
}

// What was read behind the header of bulk comes after it.
TEST(ResumableSubflows, WhatFollowsBulkComesAfterIt) {
  Bare b(1);
  std::vector<char> data(100'000, 'b'), got(data.size() + 10);
  b.say({2, 0, 0});
  ASSERT_EQ(write(b.main.b, "12", 2), 2);
  b.say(bulk(static_cast<uint32_t>(data.size()), 1));
  b.say({3, 0, 0});
  ASSERT_EQ(write(b.main.b, "345", 3), 3);
  std::thread writer([&] {
    EXPECT_EQ(write(b.subflows[0].b, data.data(), data.size()), static_cast<ssize_t>(data.size()));
  });
  size_t have = 0;
  while (have < data.size() + 5) {
    const iovec part{got.data() + have, got.size() - have};
    const ssize_t n = b.stream.read(&part, 1);
    ASSERT_GT(n, 0);
    have += static_cast<size_t>(n);
  }
  writer.join();
  const std::string all(got.data(), have);
  EXPECT_EQ(all, "12" + std::string(data.begin(), data.end()) + "345");
}

// Into the reader's own memory where all of it fits there, and aside where it does not.
TEST(ResumableSubflows, BulkThatDoesNotFitIsKeptForTheNextRead) {
  Bare b(2);
  std::vector<char> data(200'000, 'b');
  b.say(bulk(static_cast<uint32_t>(data.size()), 2));
  std::thread writer([&] {
    const ssize_t first = 102'400;  // of two slices
    EXPECT_EQ(write(b.subflows[0].b, data.data(), first), first);
    EXPECT_EQ(write(b.subflows[1].b, data.data(), data.size() - first),
              static_cast<ssize_t>(data.size()) - first);
  });
  size_t have = 0;
  while (have < data.size()) {
    char small[5'000];
    const iovec part{small, sizeof small};
    const ssize_t n = b.stream.read(&part, 1);
    ASSERT_GT(n, 0);
    have += static_cast<size_t>(n);
    EXPECT_EQ(b.stream.pending(), have < data.size());
  }
  writer.join();
}

TEST(ResumableSubflows, BulkOverNoSubflowsOrTooManyIsABreak) {
  for (const wire::StreamRecord& record : {bulk(100'000, 9), bulk(100'000, 255)}) {
    Bare b(1);
    b.say(record);
    std::thread looks([&] { EXPECT_TRUE(b.stream.wait_for_break(30 * kSecond)); });
    std::thread reads([&] {
      char byte;
      const iovec part{&byte, 1};
      EXPECT_EQ(b.stream.read(&part, 1), 0);
    });
    looks.join();
    b.stream.end();
    reads.join();
  }
  for (const wire::StreamRecord& record : {bulk(0, 1), bulk(100'000, 0), bulk(0xffffffff, 1)}) {
    Bare b(1);
    b.say(record);
    char byte;
    const iovec part{&byte, 1};
    EXPECT_EQ(b.stream.read(&part, 1), 0);
    EXPECT_TRUE(b.stream.over());
  }
}

TEST(ResumableSubflows, ASubflowOfAnotherConnectionIsNotTaken) {
  Bare b(0);
  const Ends subflow = pair();
  EXPECT_FALSE(b.stream.add_subflow(1, 0, over(subflow.a)));
  char byte;
  EXPECT_EQ(recv(subflow.b, &byte, 1, 0), 0) << "it is closed";
  close(subflow.b);
}

TEST(ResumableSubflows, AreWantedForOnceForEachConnection) {
  Bare b(0);
  uint32_t epoch = 7;
  EXPECT_FALSE(b.stream.take_wanted(&epoch));
  std::vector<char> data(1 << 20);
  std::thread reader([&] {
    std::vector<char> got(data.size() + sizeof(wire::StreamRecord));
    recv(b.main.b, got.data(), got.size(), MSG_WAITALL);
  });
  iovec part{data.data(), data.size()};
  EXPECT_TRUE(b.stream.write(&part, 1));
  reader.join();
  EXPECT_FALSE(b.stream.wait_for_break(60 * kSecond)) << "it comes back for that";
  EXPECT_TRUE(b.stream.take_wanted(&epoch));
  EXPECT_EQ(epoch, 0u);
  b.stream.want_subflows();
  EXPECT_FALSE(b.stream.take_wanted(&epoch));
}

}  // namespace
}  // namespace sluice::channel
