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

// As far as sockets and slices go: nobody receives yet.
TEST(Subflows, SendAheadWithoutWaitingForOneThatIsSlow) {
  constexpr size_t kBytes = 1 << 20;
  Pair p(2);
  const auto first = some(kBytes), second = some(kBytes - 8192), third = some(kBytes - 5);
  std::vector<std::vector<std::byte>> got{std::vector<std::byte>(first.size()),
                                          std::vector<std::byte>(second.size()),
                                          std::vector<std::byte>(third.size())};
  const auto first_half = [](const auto& piece) {
    return ((piece.size() + 1) / 2 + 4095) / 4096 * 4096;
  };
  // Of the sender's own subflow all is taken; of the other nothing, until all are sent.
  std::thread own([&] {
    for (auto& into : got) {
      const size_t slice = first_half(into);
      EXPECT_EQ(recv(p.sockets[0], into.data(), slice, MSG_WAITALL), ssize_t(slice));
    }
  });
  for (const auto* piece : {&first, &second, &third})
    EXPECT_TRUE(p.here.send_ahead(piece->data(), piece->size(), 2, {}));
  own.join();
  for (auto& into : got) {
    const size_t slice = first_half(into), rest = into.size() - slice;
    EXPECT_EQ(recv(p.sockets[1], into.data() + slice, rest, MSG_WAITALL), ssize_t(rest));
  }
  EXPECT_EQ(got[0], first);
  EXPECT_EQ(got[1], second);
  EXPECT_EQ(got[2], third);
}

// Reads what it is given for as long as it is not cut, and takes its time to notice that.
struct Reads : Stream {
  Reads() : Stream(-1) {}
  ssize_t read(const iovec*, int) override { return 0; }
  void try_write(const void*, size_t) override {}
  bool write(iovec* parts, int) override {
    ++writing;
    while (!is_cut) sum += *static_cast<const volatile unsigned char*>(parts->iov_base);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    sum += *static_cast<const volatile unsigned char*>(parts->iov_base);
    --writing;
    return false;
  }
  std::atomic<int> writing{0};
  std::atomic<bool> is_cut{false};
  uint64_t sum = 0;
};

TEST(Subflows, WhatWasSentAheadIsNotReadAfterItWasAbandoned) {
  Subflows flows;
  int s[2], t[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, s), 0);
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, t), 0);
  auto slow = std::make_unique<Reads>();
  Reads& reads = *slow;
  ASSERT_TRUE(flows.add(0, s[0], plain(s[0])));
  ASSERT_TRUE(flows.add(1, t[0], std::move(slow)));
  const auto sent = some(128 << 10);  // the first slice fits into its socket
  std::thread cuts([&] {
    char end;
    EXPECT_EQ(recv(t[1], &end, 1, 0), 0);
    reads.is_cut = true;
  });
  EXPECT_TRUE(flows.send_ahead(sent.data(), sent.size(), 2, {}));
  while (reads.writing == 0) std::this_thread::yield();
  EXPECT_FALSE(flows.lost());
  flows.abandon();
  EXPECT_EQ(reads.writing, 0);
  EXPECT_TRUE(flows.lost());
  EXPECT_FALSE(flows.send_ahead(sent.data(), sent.size(), 2, {}));
  cuts.join();
  close(s[1]);
  close(t[1]);
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
