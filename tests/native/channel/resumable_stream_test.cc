// SPDX-License-Identifier: Apache-2.0
// Two ends of a resumable stream over pairs of sockets that are cut at random places: what arrives
// is what was sent, once and in order, whatever was cut.
#include "channel/resumable_stream.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <random>
#include <thread>

#include "channel/futex.h"
#include "wire/protocol.h"

namespace sluice::channel {
namespace {

using Connection = ResumableStream::Connection;
constexpr int64_t kSecond = 1'000'000'000;

std::unique_ptr<Connection> over(int socket) {
  return std::make_unique<Connection>(socket, std::make_unique<PlainStream>(socket));
}

// A way between two sockets that passes so many bytes on in each direction, and is cut then.
class Way {
 public:
  Way(int a, int b, size_t forth, size_t back) : a_(a), b_(b) {
    thread_ = std::thread([this, forth, back] { run(forth, back); });
  }
  ~Way() {
    over_ = true;
    thread_.join();
    close(a_);
    close(b_);
  }
  bool cut() const { return over_; }

 private:
  void run(size_t forth, size_t back) {
    std::array<char, 4096> piece;
    while (!over_) {
      pollfd p[2] = {{a_, POLLIN, 0}, {b_, POLLIN, 0}};
      poll(p, 2, 10);
      for (int i = 0; i < 2; ++i) {
        if (!p[i].revents) continue;
        size_t& left = i == 0 ? forth : back;
        const ssize_t got = recv(p[i].fd, piece.data(), std::min(left, piece.size()), 0);
        if (got <= 0 ||
            send(i == 0 ? b_ : a_, piece.data(), static_cast<size_t>(got), MSG_NOSIGNAL) != got)
          over_ = true;
        else
          left -= static_cast<size_t>(got);
        if (left == 0) over_ = true;
      }
    }
    shutdown(a_, SHUT_RDWR);
    shutdown(b_, SHUT_RDWR);
  }

  int a_, b_;
  std::atomic<bool> over_{false};
  std::thread thread_;
};

struct Ends {
  int a, b;
};
Ends pair() {
  int s[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, s), 0);
  return {s[0], s[1]};
}

// Both ends, and whoever brings them other connections.
class Rig {
 public:
  explicit Rig(const ResumableStream::Terms& terms = {60 * kSecond, 60 * kSecond}) {
    const Ends near = pair(), far = pair();
    way_ = std::make_unique<Way>(near.b, far.a, SIZE_MAX, SIZE_MAX);
    client = std::make_unique<ResumableStream>(over(near.a), terms);
    server = std::make_unique<ResumableStream>(over(far.b), terms);
  }
  ~Rig() {
    stop();
    client->end();
    server->end();
  }

  // Connections that each carry at most so many bytes each way.
  void cut_after(size_t most, unsigned seed) {
    connect(most, most);
    dialler_ = std::thread([this, most, seed] {
      std::mt19937 random(seed);
      const auto some = [&] { return std::uniform_int_distribution<size_t>(1, most)(random); };
      while (!stopped_) {
        if (!client->wait_for_break(10'000'000) && !way_->cut()) continue;
        connect(some(), some());
      }
      connect(SIZE_MAX, SIZE_MAX);
    });
  }
  void connect(size_t forth, size_t back) {
    const Ends near = pair(), far = pair();
    auto way = std::make_unique<Way>(near.b, far.a, forth, back);
    const uint32_t epoch = ++epoch_;
    std::thread other([&] { server->resume(epoch, over(far.b)); });
    client->resume(epoch, over(near.a));
    other.join();
    way_ = std::move(way);
    ++connections;
  }
  void stop() {
    stopped_ = true;
    if (dialler_.joinable()) dialler_.join();
  }

  std::unique_ptr<ResumableStream> client, server;
  std::atomic<int> connections{1};

 private:
  std::unique_ptr<Way> way_;
  std::thread dialler_;
  std::atomic<bool> stopped_{false};
  uint32_t epoch_ = 0;
};

// The byte at a place of a stream.
char byte_at(uint64_t place) { return static_cast<char>(place * 2654435761u >> 13); }

// Sends so many bytes in pieces of all sizes, copied and lent.
void send_all(ResumableStream* stream, uint64_t bytes, unsigned seed) {
  std::mt19937 random(seed);
  for (uint64_t at = 0; at < bytes;) {
    const unsigned kind = random() % 8;
    const size_t most = kind == 0 ? 400'000 : kind < 3 ? 60'000 : 300;
    const size_t n = std::min<uint64_t>(1 + random() % most, bytes - at);
    auto piece = std::make_shared<std::vector<char>>(n);
    for (size_t i = 0; i < n; ++i) (*piece)[i] = byte_at(at + i);
    const size_t head = n / 3;
    iovec parts[2] = {{piece->data(), head}, {piece->data() + head, n - head}};
    bool sent;
    if (random() % 2) {
      const bool kept = random() % 2;
      sent = stream->write_lent(parts, 2, kept ? piece : nullptr);
      if (!kept) {
        ASSERT_TRUE(stream->settle());
        std::fill(piece->begin(), piece->end(), '\x5a');
      }
    } else {
      sent = stream->write(parts, 2);
      std::fill(piece->begin(), piece->end(), '\xa5');
    }
    ASSERT_TRUE(sent);
    at += n;
  }
}

void receive_all(ResumableStream* stream, uint64_t bytes, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<char> a(300'000), b(5'000);
  for (uint64_t at = 0; at < bytes;) {
    const size_t first = 1 + random() % a.size(), second = random() % b.size();
    const iovec parts[2] = {{a.data(), first}, {b.data(), second}};
    const ssize_t got = stream->read(parts, 2);
    ASSERT_GT(got, 0) << "at " << at;
    for (size_t i = 0; i < static_cast<size_t>(got); ++i)
      ASSERT_EQ(i < first ? a[i] : b[i - first], byte_at(at + i)) << "at " << at + i;
    at += static_cast<uint64_t>(got);
  }
}

// As an end does that has all it waited for, and still hears who asks how much it has.
void listen(ResumableStream* stream, const std::atomic<int>& sending) {
  char byte;
  const iovec part{&byte, 1};
  while (sending > 0) {
    ASSERT_EQ(stream->read_present(&part, 1), 0);
    sleep_ns(1'000'000);
  }
}

class Cut : public testing::TestWithParam<size_t> {};

TEST_P(Cut, WhatArrivesIsWhatWasSent) {
  Rig rig;
  rig.cut_after(GetParam(), 7);
  const uint64_t bytes = std::clamp<uint64_t>(200 * GetParam(), 60'000, 24 << 20);
  std::atomic<int> sending{2};
  const auto both_ways = [&](ResumableStream* stream, unsigned seed, std::thread* threads) {
    threads[0] = std::thread([&sending, stream, bytes, seed] {
      send_all(stream, bytes, seed);
      --sending;
    });
    threads[1] = std::thread([&sending, stream, bytes, seed] {
      receive_all(stream, bytes, seed + 10);
      listen(stream, sending);
    });
  };
  std::thread threads[4];
  both_ways(rig.client.get(), 1, threads);
  both_ways(rig.server.get(), 2, threads + 2);
  for (std::thread& t : threads) t.join();
  EXPECT_GT(rig.connections, 20);
}
INSTANTIATE_TEST_SUITE_P(After, Cut, testing::Values(100, 3'000, 70'000, 900'000));

// A program that only sends: acknowledgements are read by the sender itself.
TEST(ResumableStream, SendsWhileNobodyReads) {
  Rig rig;
  rig.cut_after(500'000, 9);
  std::atomic<int> sending{1};
  std::thread other([&] {
    receive_all(rig.server.get(), 40 << 20, 5);
    listen(rig.server.get(), sending);
  });
  send_all(rig.client.get(), 40 << 20, 6);
  --sending;
  other.join();
}

TEST(ResumableStream, AWriteDoesNotWaitForAConnection) {
  Rig rig;
  char word[] = "without a connection";
  std::unique_ptr<Connection> none;
  rig.connect(16, 16);  // the first records, and no more
  while (!rig.client->wait_for_break(kSecond)) {
    iovec part{word, 1};
    ASSERT_TRUE(rig.client->write(&part, 1));
  }
  iovec part{word, sizeof word};
  EXPECT_TRUE(rig.client->write(&part, 1));
}

TEST(ResumableStream, IsOverWhenNoConnectionComesInTime) {
  Rig rig({100'000'000, 50'000'000});
  rig.connect(16, 16);
  char byte;
  const iovec part{&byte, 1};
  EXPECT_EQ(rig.client->read(&part, 1), 0);
  EXPECT_TRUE(rig.client->over());
  EXPECT_FALSE(rig.client->settle() && rig.client->write(const_cast<iovec*>(&part), 1));
}

TEST(ResumableStream, AnOlderConnectionIsNotTaken) {
  Rig rig;
  rig.connect(SIZE_MAX, SIZE_MAX);  // 1
  const Ends ends = pair();
  EXPECT_FALSE(rig.client->resume(1, over(ends.a)));
  close(ends.b);
  EXPECT_NE(rig.client->socket(), -1) << "it has the one that it had";
}

// Whoever knows no key does not come so far; one who does lies about what it has had.
TEST(ResumableStream, WhatWasNeverSentIsNotAcknowledged) {
  Rig rig;
  const Ends ends = pair();
  const wire::StreamRecord hello{0, 0, 1'000'000};
  ASSERT_EQ(write(ends.b, &hello, sizeof hello), static_cast<ssize_t>(sizeof hello));
  EXPECT_FALSE(rig.client->resume(1, over(ends.a)));
  close(ends.b);
}

TEST(ResumableStream, ARecordThatIsNoneEndsIt) {
  const Ends ends = pair();
  ResumableStream stream(over(ends.a), {60 * kSecond, 60 * kSecond});
  const wire::StreamRecord bad{0xffffffff, 0, 0};
  ASSERT_EQ(write(ends.b, &bad, sizeof bad), static_cast<ssize_t>(sizeof bad));
  char byte;
  const iovec part{&byte, 1};
  EXPECT_EQ(stream.read(&part, 1), 0);
  EXPECT_TRUE(stream.over());
  close(ends.b);
}

TEST(ResumableStream, OneThatIsNotMissedDoesNotComeBack) {
  const Ends ends = pair();
  ResumableStream stream(over(ends.a), {60 * kSecond, 60 * kSecond});
  stream.give_up();
  char text[] = "last words", got[32];
  const wire::StreamRecord record{sizeof text, 0, 0};
  ASSERT_GT(write(ends.b, &record, sizeof record), 0);
  ASSERT_GT(write(ends.b, text, sizeof text), 0);
  close(ends.b);
  const iovec part{got, sizeof got};
  EXPECT_EQ(stream.read(&part, 1), static_cast<ssize_t>(sizeof text));
  EXPECT_EQ(stream.read(&part, 1), 0);
}

}  // namespace
}  // namespace sluice::channel
