// SPDX-License-Identifier: Apache-2.0
// Bulk over several connections: each byte arrives at its place, whatever the size; one lost
// subflow is all of them; and nobody waits for ever.
#include "channel/subflows.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <random>
#include <thread>
#include <vector>

namespace sluice::channel {
namespace {

std::unique_ptr<Stream> plain(int socket) { return std::make_unique<PlainStream>(socket); }

struct Pair {
  Subflows here, there;
  std::vector<int> sockets;  // of `there`
  explicit Pair(uint32_t subflows = 0) {
    for (uint32_t i = 0; i < subflows; ++i) add(i);
  }
  void add(uint32_t number) {
    int s[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, s), 0);
    EXPECT_TRUE(here.add(number, s[0], plain(s[0])));
    EXPECT_TRUE(there.add(number, s[1], plain(s[1])));
    sockets.push_back(s[1]);
  }
};

std::vector<std::byte> some(size_t bytes) {
  std::vector<std::byte> data(bytes);
  std::minstd_rand random(static_cast<unsigned>(bytes) + 1);
  for (std::byte& b : data) b = static_cast<std::byte>(random());
  return data;
}

TEST(Subflows, CarryEachByteToItsPlace) {
  for (const uint32_t subflows : {1u, 2u, 3u, 8u}) {
    Pair p(subflows);
    for (const size_t bytes : {1ul, 4096ul, 4097ul, 300'001ul, 1ul << 20, 3'000'000ul}) {
      const auto sent = some(bytes);
      std::vector<std::byte> got(bytes), back(bytes);
      std::thread other([&] {
        EXPECT_TRUE(p.there.receive(got.data(), bytes, subflows));
        EXPECT_TRUE(p.there.send(got.data(), bytes, subflows));
      });
      EXPECT_TRUE(p.here.send(sent.data(), bytes, subflows));
      EXPECT_TRUE(p.here.receive(back.data(), bytes, subflows));
      other.join();
      EXPECT_EQ(got, sent);
      EXPECT_EQ(back, sent);
    }
  }
}

TEST(Subflows, CarryInBothDirectionsAtOnce) {
  constexpr size_t kBytes = 1 << 20;
  Pair p(4);
  const auto out = some(kBytes), in = some(kBytes - 1);
  std::vector<std::byte> got(out.size()), back(in.size());
  std::thread sends([&] {
    for (int i = 0; i < 20; ++i) EXPECT_TRUE(p.here.send(out.data(), out.size(), 4));
  });
  std::thread answers([&] {
    for (int i = 0; i < 20; ++i) EXPECT_TRUE(p.there.send(in.data(), in.size(), 4));
  });
  std::thread takes([&] {
    for (int i = 0; i < 20; ++i) EXPECT_TRUE(p.there.receive(got.data(), got.size(), 4));
  });
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(p.here.receive(back.data(), back.size(), 4));
  sends.join();
  answers.join();
  takes.join();
  EXPECT_EQ(got, out);
  EXPECT_EQ(back, in);
}

TEST(Subflows, AreUsedInARowAndForWhatIsWorthIt) {
  Pair p;
  EXPECT_EQ(p.here.count_for(1 << 20), 0u);
  p.add(1);
  EXPECT_EQ(p.here.count_for(1 << 20), 0u) << "the first is missing";
  p.add(0);
  EXPECT_EQ(p.here.count_for(1 << 20), 2u);
  p.add(2);
  EXPECT_EQ(p.here.count_for(1 << 20), 3u);
  EXPECT_EQ(p.here.count_for(128 << 10), 2u);
  EXPECT_EQ(p.here.count_for(1000), 0u);
}

TEST(Subflows, ANumberIsTakenOnce) {
  Pair p(1);
  for (const uint32_t number : {0u, Subflows::kMost, ~0u}) {
    int s[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, s), 0);
    EXPECT_FALSE(p.here.add(number, s[0], plain(s[0])));
    char byte;
    EXPECT_EQ(recv(s[1], &byte, 1, 0), 0) << "it is closed";
    close(s[1]);
  }
}

TEST(Subflows, OneThatIsMissingIsWaitedFor) {
  Pair p(2);
  const auto sent = some(1 << 20);
  std::vector<std::byte> got(sent.size());
  int s[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, s), 0);
  EXPECT_TRUE(p.here.add(2, s[0], plain(s[0])));
  std::thread receiver([&] { EXPECT_TRUE(p.there.receive(got.data(), got.size(), 3)); });
  std::thread sender([&] { EXPECT_TRUE(p.here.send(sent.data(), sent.size(), 3)); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_TRUE(p.there.add(2, s[1], plain(s[1])));
  sender.join();
  receiver.join();
  EXPECT_EQ(got, sent);
}

TEST(Subflows, ANumberThatCannotBeIsRefused) {
  Pair p(1);
  std::byte got[1];
  EXPECT_FALSE(p.there.receive(got, 1, Subflows::kMost + 1));
  EXPECT_FALSE(p.there.receive(got, 1, 0));
}

TEST(Subflows, OneThatIsLostIsAllOfThem) {
  Pair p(3);
  const auto sent = some(8 << 20);
  std::thread sender([&] { EXPECT_FALSE(p.here.send(sent.data(), sent.size(), 3)); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  shutdown(p.sockets[1], SHUT_RDWR);
  sender.join();
  std::vector<std::byte> got(sent.size());
  EXPECT_FALSE(p.there.receive(got.data(), got.size(), 3));
  EXPECT_FALSE(p.here.send(sent.data(), 1, 3));
  EXPECT_FALSE(p.here.add(3, -1, nullptr));
}

TEST(Subflows, WhoWaitsComesBackWhenTheyAreCut) {
  Pair p(2);
  std::vector<std::byte> got(1 << 20);
  std::thread waits([&] { EXPECT_FALSE(p.here.receive(got.data(), got.size(), 2)); });
  std::thread lacks([&] { EXPECT_FALSE(p.there.receive(got.data(), got.size(), 3)); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  p.here.cut();
  p.there.cut();
  waits.join();
  lacks.join();
}

}  // namespace
}  // namespace sluice::channel
