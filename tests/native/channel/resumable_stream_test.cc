// SPDX-License-Identifier: Apache-2.0
// Two ends of a resumable stream over pairs of sockets that are cut at random places: what arrives
// is what was sent, once and in order, whatever was cut.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <thread>

#include "channel/resumption.h"
#include "tests/native/channel/resumable_rig.h"

namespace sluice::channel {
namespace {

using namespace resumable;

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

// Fails in the middle of a record once, and would go on: as one does whose socket has ended beside
// what carries its bytes. Whoever reads finds its end.
class HalfWritten : public PlainStream {
 public:
  explicit HalfWritten(int socket) : PlainStream(socket) {}
  ssize_t read(const iovec* parts, int count) override {
    reads = true;
    return PlainStream::read(parts, count);
  }
  bool write(iovec* parts, int count) override {
    if (!fails.exchange(false)) return PlainStream::write(parts, count);
    iovec half{parts[0].iov_base, 8};
    EXPECT_TRUE(PlainStream::write(&half, 1));
    errno = EIO;
    return false;
  }
  bool is_last() const override { return true; }

  std::atomic<bool> reads{false}, fails{true};
};

TEST(ResumableStream, NothingFollowsHalfARecord) {
  const Ends ends = pair();
  auto half = std::make_unique<HalfWritten>(ends.a);
  HalfWritten& over = *half;
  ResumableStream stream(std::make_unique<Connection>(ends.a, std::move(half)),
                         {60 * kSecond, 60 * kSecond});
  std::thread reader([&] {
    char byte;
    const iovec part{&byte, 1};
    EXPECT_EQ(stream.read(&part, 1), 0);
  });
  while (!over.reads) std::this_thread::yield();
  char words[] = "the first, of which a part goes";
  iovec part{words, sizeof words};
  EXPECT_TRUE(stream.write(&part, 1)) << "it is kept";
  part = {words, sizeof words};
  EXPECT_TRUE(stream.write(&part, 1)) << "and so is the next, which does not go";
  stream.try_write(words, sizeof words);
  char sent[256];
  EXPECT_EQ(recv(ends.b, sent, sizeof sent, MSG_DONTWAIT), 8);
  stream.end();
  reader.join();
  close(ends.b);
}

// Nobody goes on trying to say what has been received over one that has failed and is the last:
// whoever reads would never come to its end.
TEST(ResumableStream, AnAcknowledgementThatCannotBeSentIsLeft) {
  const Ends ends = pair();
  auto half = std::make_unique<HalfWritten>(ends.a);
  HalfWritten& over = *half;
  ResumableStream stream(std::make_unique<Connection>(ends.a, std::move(half)),
                         {60 * kSecond, 60 * kSecond});
  std::thread reader([&] {
    char byte;
    const iovec part{&byte, 1};
    EXPECT_EQ(stream.read(&part, 1), 0);
  });
  while (!over.reads) std::this_thread::yield();
  char word[] = "a write that fails";
  iovec part{word, sizeof word};
  EXPECT_TRUE(stream.write(&part, 1)) << "it is kept";
  const wire::StreamRecord asks{0, wire::kWantsAcknowledgement, 0};
  ASSERT_EQ(send(ends.b, &asks, sizeof asks, MSG_NOSIGNAL), static_cast<ssize_t>(sizeof asks));
  close(ends.b);
  reader.join();
  EXPECT_TRUE(stream.over());
}

// Who has said good-bye is answered by the end, for which no connection is to be made.
TEST(ResumableStream, AnEndAfterGoodByeIsNoBreak) {
  const Ends ends = pair();
  ResumableStream stream(over(ends.a), {60 * kSecond, 60 * kSecond});
  stream.give_up();
  char word[] = "good-bye";
  iovec part{word, sizeof word};
  EXPECT_TRUE(stream.write(&part, 1));
  close(ends.b);
  char byte;
  part = {&byte, 1};
  EXPECT_EQ(stream.read(&part, 1), 0);
  EXPECT_FALSE(stream.wait_for_break(kSecond));
  EXPECT_TRUE(stream.over());
}

// A thread that dials while its process ends: OpenSSL has taken itself apart by then.
TEST(ResumptionDeathTest, NoKeyIsMadeWhenTheProcessEnds) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  constexpr int kNone = 3;
  const auto late = [] {
    SessionKey key;
    std::string error;
    _exit(make_session_key("key", 1, &key, &error) ? 0 : kNone);
  };
  EXPECT_EXIT(
      {
        std::atexit(late);  // runs last
        expect_the_end();
        SessionKey key;
        std::string error;
        if (!make_session_key("key", 1, &key, &error)) _exit(1);
        std::exit(0);
      },
      testing::ExitedWithCode(kNone), "");
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

// Whoever dials is who would find out that the other side is gone.
TEST(ResumableStream, SendingAgainDoesNotWaitForOneWhoNeverReads) {
  ResumableStream::Terms terms{600 * kSecond, 600 * kSecond};
  terms.takes_some_seconds = 1;
  const Ends first = pair(), second = pair();
  ResumableStream stream(over(first.a), terms);
  close(first.b);
  while (stream.socket() >= 0) stream.wait_for_break(kSecond);
  std::vector<char> much(4 << 20);  // more than a socket holds
  iovec part{much.data(), much.size()};
  ASSERT_TRUE(stream.write(&part, 1)) << "it is kept";
  const wire::StreamRecord hello{0, 0, 0};
  ASSERT_EQ(write(second.b, &hello, sizeof hello), static_cast<ssize_t>(sizeof hello));
  EXPECT_TRUE(stream.resume(1, over(second.a)));
  EXPECT_EQ(stream.socket(), -1) << "it is given up";
  EXPECT_FALSE(stream.over());
  close(second.b);
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

TEST(ResumableStream, WhoeverDialsFindsTheEndOfAConnectionThatNobodyReads) {
  const Ends ends = pair();
  ResumableStream stream(over(ends.a), {60 * kSecond, 60 * kSecond});
  EXPECT_FALSE(stream.wait_for_break(1'000'000));
  char text[] = "before it", got[32];
  const wire::StreamRecord record{sizeof text, 0, 0};
  ASSERT_GT(write(ends.b, &record, sizeof record), 0);
  ASSERT_GT(write(ends.b, text, sizeof text), 0);
  std::thread leaves([&] { shutdown(ends.b, SHUT_WR); });  // its own half only: no error comes
  EXPECT_TRUE(stream.wait_for_break(600 * kSecond));
  leaves.join();
  EXPECT_TRUE(stream.was_closed());
  const iovec part{got, sizeof got};
  EXPECT_EQ(stream.read(&part, 1), static_cast<ssize_t>(sizeof text)) << "nothing is lost";
  close(ends.b);
}

Ends tcp_pair() {
  sockaddr_in address{AF_INET, 0, {htonl(INADDR_LOOPBACK)}, {}};
  socklen_t n = sizeof address;
  const int listener = socket(AF_INET, SOCK_STREAM, 0), near = socket(AF_INET, SOCK_STREAM, 0);
  auto* const at = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(bind(listener, at, n) | ::listen(listener, 1) | getsockname(listener, at, &n), 0);
  EXPECT_EQ(connect(near, at, n), 0);
  const int far = accept(listener, nullptr, nullptr);
  close(listener);
  return {near, far};
}

// A process that says good-bye and ends: its kernel resets the connection where it had not read
// all, and no other connection brings its last words.
class LastWords : public testing::Test {
 protected:
  void SetUp() override {
    const Ends ends = tcp_pair();
    stream_.emplace(over(ends.a), ResumableStream::Terms{60 * kSecond, 60 * kSecond});
    const wire::StreamRecord record{sizeof kBye, 0, 0};
    ASSERT_GT(write(ends.b, &record, sizeof record), 0);
    ASSERT_GT(write(ends.b, kBye, sizeof kBye), 0);
    const linger at_once{1, 0};
    ASSERT_EQ(setsockopt(ends.b, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once), 0);
    close(ends.b);
    pollfd reset{ends.a, 0, 0};
    ASSERT_EQ(poll(&reset, 1, 60'000), 1);
  }
  void expect_words() {
    EXPECT_TRUE(stream_->was_closed());
    char got[32];
    const iovec part{got, sizeof got};
    EXPECT_EQ(stream_->read_present(&part, 1), static_cast<ssize_t>(sizeof kBye));
    stream_->end();
  }

  static constexpr char kBye[] = "good-bye";
  std::optional<ResumableStream> stream_;
};

TEST_F(LastWords, AreNotLostToWhoeverLooks) {
  EXPECT_FALSE(stream_->look(10'000));
  expect_words();
}

TEST_F(LastWords, AreNotLostToWhoeverWrites) {
  char answer[] = "an answer";
  iovec part{answer, sizeof answer};
  EXPECT_TRUE(stream_->write(&part, 1)) << "it is kept";
  expect_words();
}

TEST(ResumableStream, WhoStandsStillOnALiveMachineIsFoundByHisSilence) {
  const Ends ends = tcp_pair();  // whose kernel would tell of a machine that is gone
  ResumableStream other(over(ends.b), {60 * kSecond, 60 * kSecond});
  ResumableStream::Terms terms{60 * kSecond, 60 * kSecond};
  terms.silent_ns = 1;
  ResumableStream stream(over(ends.a), terms);
  for (int i = 0; i < 3; ++i) {
    other.look(10'000);  // says a word each time, also behind others
    pollfd word{ends.a, POLLIN, 0};
    ASSERT_EQ(poll(&word, 1, 60'000), 1);
    EXPECT_FALSE(stream.look(10'000));
    EXPECT_EQ(stream.broken_since(), 0) << "nobody reads, and yet it is heard";
  }
  EXPECT_FALSE(stream.look(10'000));
  EXPECT_NE(stream.broken_since(), 0) << "the socket is as it was, and nothing came";
}

TEST(ResumableStream, WhoeverDialsWaitsWhereNoSocketTells) {
  struct Silent : Stream {
    Silent() : Stream(-1) {}
    ssize_t read(const iovec*, int) override { return 0; }
    bool write(iovec*, int) override { return true; }
    void try_write(const void*, size_t) override {}
    void cut() override {}
    uint32_t round_trip_us() const override { return 0; }
  };
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  close(ends[1]);  // what is closed with something else says nothing of this one
  auto over = std::make_unique<ResumableStream::Connection>(ends[0], std::make_unique<Silent>());
  ResumableStream stream(std::move(over), {60 * kSecond, 60 * kSecond});
  const uint64_t began = now_ns();
  EXPECT_FALSE(stream.wait_for_break(50'000'000));
  EXPECT_GE(now_ns() - began, 50'000'000u);
  EXPECT_EQ(stream.broken_since(), 0);
}

TEST(ResumableStream, WhoeverDialsIsToldWhatIsWanted) {
  const Ends ends = pair();
  ResumableStream stream(over(ends.a), {60 * kSecond, 60 * kSecond});
  EXPECT_FALSE(stream.wait_for_break(1'000'000));
  std::thread wants([&] { stream.want_subflows(); });
  EXPECT_FALSE(stream.wait_for_break(600 * kSecond));
  uint32_t epoch = 7;
  EXPECT_TRUE(stream.take_wanted(&epoch));
  wants.join();
  std::thread ends_it([&] { stream.end(); });
  EXPECT_FALSE(stream.wait_for_break(600 * kSecond));
  ends_it.join();
  close(ends.b);
}

}  // namespace
}  // namespace sluice::channel
