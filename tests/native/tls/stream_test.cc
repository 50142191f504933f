// SPDX-License-Identifier: Apache-2.0
// Streams after a handshake: what goes in comes out, through renewals of the keys and in both
// directions at once, and whatever else comes ends the stream. Where the kernel has TLS its streams
// are held against ours.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "tls/kernel_stream.h"
#include "tls/record_stream.h"

namespace sluice::tls {
namespace {

using Bytes = std::vector<uint8_t>;

Session ours(Suite suite) {
  Session s;
  s.suite = suite;
  for (size_t i = 0; i < kMostSecretBytes; ++i) {
    s.in.secret[i] = static_cast<uint8_t>(3 * i + 1);
    s.out.secret[i] = static_cast<uint8_t>(5 * i + 2);
  }
  s.in.sequence = 7;
  return s;
}

Session theirs(Suite suite) {
  Session s = ours(suite);
  std::swap(s.in, s.out);
  return s;
}

Bytes random_bytes(size_t n, unsigned seed) {
  std::mt19937 random(seed);
  Bytes b(n);
  for (auto& x : b) x = static_cast<uint8_t>(random());
  return b;
}

bool read_all(channel::Stream* s, uint8_t* to, size_t n) {
  while (n > 0) {
    const iovec part{to, n};
    const ssize_t got = s->read(&part, 1);
    if (got <= 0) return false;
    to += got;
    n -= static_cast<size_t>(got);
  }
  return true;
}

// Two ends of a TCP connection.
void connect_pair(int pair[2]) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t n = sizeof a;
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&a), n), 0);
  ASSERT_EQ(listen(listener, 1), 0);
  ASSERT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&a), &n), 0);
  pair[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_EQ(connect(pair[0], reinterpret_cast<sockaddr*>(&a), n), 0);
  pair[1] = accept(listener, nullptr, nullptr);
  ::close(listener);
}

class Streams : public ::testing::TestWithParam<Suite> {
 protected:
  void SetUp() override {
    std::string error;
    if (!OpenSsl::get(&error)) GTEST_SKIP() << error;
    connect_pair(sockets_);
  }
  ~Streams() override {
    left_.reset();
    right_.reset();
    for (const int s : sockets_)
      if (s >= 0) ::close(s);
  }
  void open(uint64_t records_per_key = kRecordsPerKey) {
    std::string error;
    left_ = RecordStream::open(sockets_[0], ours(GetParam()), &error, records_per_key);
    ASSERT_TRUE(left_) << error;
    right_ = RecordStream::open(sockets_[1], theirs(GetParam()), &error, records_per_key);
    ASSERT_TRUE(right_) << error;
  }
  // What `from` sends in writes of odd sizes, `to` gets in reads of others.
  static void carry(channel::Stream* from, channel::Stream* to, size_t bytes, unsigned seed) {
    const Bytes all = random_bytes(bytes, seed);
    std::thread writer([&] {
      std::mt19937 random(seed);
      for (size_t at = 0; at < all.size();) {
        const size_t n = std::min<size_t>(all.size() - at, 1 + random() % 100'000);
        const size_t first = random() % (n + 1), second = random() % (n - first + 1);
        uint8_t* p = const_cast<uint8_t*>(all.data()) + at;
        iovec parts[4] = {
            {p, first}, {p, 0}, {p + first, second}, {p + first + second, n - first - second}};
        ASSERT_TRUE(from->write(parts, 4));
        at += n;
      }
    });
    Bytes got(bytes);
    std::mt19937 random(seed + 1);
    for (size_t at = 0; at < bytes;) {
      const size_t most = random() % 3 ? 1 + random() % 300 : 1 + random() % 200'000;
      const size_t n = std::min(bytes - at, most), first = random() % (n + 1);
      const iovec parts[2] = {{got.data() + at, first}, {got.data() + at + first, n - first}};
      const ssize_t one = to->read(parts, 2);
      ASSERT_GT(one, 0);
      at += static_cast<size_t>(one);
    }
    writer.join();
    EXPECT_EQ(got, all);
    EXPECT_FALSE(to->pending());
  }

  int sockets_[2] = {-1, -1};
  std::unique_ptr<channel::Stream> left_, right_;
};

TEST_P(Streams, CarryEverythingBothWaysAtOnce) {
  open();
  std::thread other([&] { carry(right_.get(), left_.get(), 9'000'001, 1); });
  carry(left_.get(), right_.get(), 8'000'003, 2);
  other.join();
}

TEST_P(Streams, RenewTheirKeys) {
  open(20);
  std::thread other([&] { carry(right_.get(), left_.get(), 3'000'001, 3); });
  carry(left_.get(), right_.get(), 3'000'003, 4);
  other.join();
}

// Of `write` bytes what comes through a connection that is cut after so many, of all that it
// carries.
size_t comes_of(channel::Stream* out, int out_socket, size_t write, Suite suite, size_t cut) {
  int pair[2];
  connect_pair(pair);
  std::string error;
  const auto in = RecordStream::open(pair[1], theirs(suite), &error);
  Bytes all = random_bytes(write, 9), sealed(cut), got(write);
  iovec part{all.data(), write};
  std::thread writer([&] { out->write(&part, 1); });
  EXPECT_EQ(recv(out_socket, sealed.data(), cut, MSG_WAITALL), static_cast<ssize_t>(cut));
  EXPECT_EQ(send(pair[0], sealed.data(), cut, 0), static_cast<ssize_t>(cut));
  shutdown(pair[0], SHUT_WR);
  shutdown(out_socket, SHUT_RDWR);
  writer.join();
  size_t came = 0;
  for (ssize_t one; came < write; came += static_cast<size_t>(one)) {
    const iovec room{got.data() + came, write - came};
    if ((one = in->read(&room, 1)) <= 0) break;
  }
  EXPECT_EQ(std::memcmp(got.data(), all.data(), came), 0);
  for (const int s : pair) ::close(s);
  return came;
}

TEST_P(Streams, CarrySomethingHoweverEarlyTheyAreCut) {
  std::string error;
  left_ = RecordStream::open(sockets_[0], ours(GetParam()), &error);
  EXPECT_GE(comes_of(left_.get(), sockets_[1], 1 << 20, GetParam(), 4000), 3000u);
}

TEST_P(Streams, OfTheKernelCarrySomethingHoweverEarlyTheyAreCut) {
  std::string error;
  left_ = KernelStream::open(sockets_[0], ours(GetParam()), &error, /*also_old=*/true);
  if (!left_) GTEST_SKIP() << "this kernel has no TLS " << error;
  EXPECT_GE(comes_of(left_.get(), sockets_[1], 1 << 20, GetParam(), 4000), 3000u);
}

TEST_P(Streams, ComeToFullRecords) {
  open();
  Bytes all = random_bytes(1 << 20, 10);
  iovec part{all.data(), all.size()};
  std::thread writer([&] { EXPECT_TRUE(left_->write(&part, 1)); });
  size_t full = 0;
  for (size_t came = 0; came < all.size();) {
    uint8_t header[5];
    ASSERT_EQ(recv(sockets_[1], header, sizeof header, MSG_WAITALL), 5);
    const size_t sealed = static_cast<size_t>(header[3]) << 8 | header[4];
    Bytes record(sealed);
    ASSERT_EQ(recv(sockets_[1], record.data(), sealed, MSG_WAITALL), static_cast<ssize_t>(sealed));
    full += sealed == RecordSizes::kFull + 1 + kTagBytes;
    came += sealed - 1 - kTagBytes;
  }
  writer.join();
  EXPECT_EQ(full, (all.size() - RecordSizes::kSmallAtFirst) / RecordSizes::kFull);
}

TEST_P(Streams, EndWithTheConnection) {
  open();
  carry(left_.get(), right_.get(), 1000, 5);
  shutdown(sockets_[0], SHUT_WR);
  uint8_t byte;
  const iovec part{&byte, 1};
  EXPECT_EQ(right_->read(&part, 1), 0);
  const char last[] = "over";
  right_->try_write(last, sizeof last);
  char got[sizeof last];
  EXPECT_TRUE(read_all(left_.get(), reinterpret_cast<uint8_t*>(got), sizeof got));
  EXPECT_STREQ(got, last);
}

// What came before a broken record is given before the stream ends.
TEST_P(Streams, LoseNothingThatCameBeforeTheEnd) {
  open();
  uint8_t abc[] = "abc", records[64], got[64];
  iovec part{abc, 3};
  int pair[2];
  connect_pair(pair);
  std::string error;
  const auto in = RecordStream::open(pair[1], theirs(GetParam()), &error);
  for (int i = 0; i < 2; ++i) {
    part = {abc, 3};
    ASSERT_TRUE(left_->write(&part, 1));
  }
  ASSERT_EQ(recv(sockets_[1], records, 50, MSG_WAITALL), 50);
  records[49] ^= 1;
  ASSERT_EQ(send(pair[0], records, 50, 0), 50);
  while (!in->pending()) {  // both lie in its buffer before they are asked for
    uint8_t first;
    const iovec one{&first, 1};
    ASSERT_EQ(in->read(&one, 1), 1);
    EXPECT_EQ(first, 'a');
  }
  const iovec room{got, sizeof got};
  EXPECT_EQ(in->read(&room, 1), 2);
  for (int i = 0; i < 2; ++i) {
    errno = 0;
    EXPECT_EQ(in->read(&room, 1), -1);
    EXPECT_EQ(errno, EBADMSG);
  }
  for (const int s : pair) ::close(s);
}

// Whoever asks whether there is something does not wait in the middle of a record then.
TEST_P(Streams, SayThatTheyAreReadableWhenARecordHasCome) {
  open();
  uint8_t abc[] = "abc", records[50], got[8];
  for (int i = 0; i < 2; ++i) {
    iovec part{abc, 3};
    ASSERT_TRUE(left_->write(&part, 1));
  }
  ASSERT_EQ(recv(sockets_[1], records, sizeof records, MSG_WAITALL), 50);
  for (const size_t cut : {1, 4, 5, 6, 24, 26, 29, 30, 49}) {  // 25 bytes each
    int pair[2];
    connect_pair(pair);
    std::string error;
    const auto in = RecordStream::open(pair[1], theirs(GetParam()), &error);
    const iovec room{got, 3};
    ASSERT_EQ(send(pair[0], records, cut, 0), static_cast<ssize_t>(cut));
    EXPECT_EQ(in->wait_readable(cut < 25 ? 20 : 60'000), cut > 25) << cut;
    if (cut > 25) {  // and the rest lies in its buffer
      EXPECT_EQ(in->read(&room, 1), 3);
    }
    EXPECT_FALSE(in->readable()) << cut;
    EXPECT_FALSE(in->pending()) << cut;
    ASSERT_EQ(send(pair[0], records + cut, 50 - cut, 0), static_cast<ssize_t>(50 - cut));
    EXPECT_TRUE(in->wait_readable(60'000)) << cut;
    EXPECT_EQ(in->read(&room, 1), 3);
    if (cut < 25) {
      EXPECT_TRUE(in->readable());
      EXPECT_EQ(in->read(&room, 1), 3);
    }
    EXPECT_FALSE(in->readable());
    ASSERT_EQ(send(pair[0], records, cut, 0), static_cast<ssize_t>(cut));
    shutdown(pair[0], SHUT_WR);
    EXPECT_TRUE(in->wait_readable(60'000)) << "its end, in the middle of a record";
    EXPECT_LE(in->read(&room, 1), 0);
    for (const int s : pair) ::close(s);
  }
}

// Who waits for one does not do so forever where the socket has no room for all of it.
TEST_P(Streams, WaitForRecordsForWhichThereIsNoRoom) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  constexpr int kLittle = 4608;
  ASSERT_EQ(setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &kLittle, sizeof kLittle), 0);
  std::string error;
  const auto out = RecordStream::open(pair[0], ours(GetParam()), &error);
  const auto in = RecordStream::open(pair[1], theirs(GetParam()), &error);
  Bytes all = random_bytes(200'000, 11), got(all.size());
  std::thread writer([&] {
    iovec part{all.data(), all.size()};
    EXPECT_TRUE(out->write(&part, 1));
  });
  for (size_t came = 0; came < all.size();) {
    ASSERT_TRUE(in->wait_readable(60'000));
    const iovec room{got.data() + came, got.size() - came};
    const ssize_t one = in->read(&room, 1);
    ASSERT_GT(one, 0);
    came += static_cast<size_t>(one);
  }
  writer.join();
  EXPECT_EQ(got, all);
  for (const int s : pair) ::close(s);
}

TEST_P(Streams, TakeNothingThatWasTouched) {
  // A connection of its own for each byte of a record: its header, its body, its tag.
  for (size_t place = 0; place < 5 + 3 + 1 + 16; ++place) {
    int pair[2];
    connect_pair(pair);
    std::string error;
    const auto out = RecordStream::open(sockets_[0], ours(GetParam()), &error);
    const auto in = RecordStream::open(pair[1], theirs(GetParam()), &error);
    uint8_t abc[] = "abc";
    iovec part{abc, 3};
    ASSERT_TRUE(out->write(&part, 1));
    uint8_t record[64];
    ASSERT_EQ(recv(sockets_[1], record, sizeof record, 0), 25);
    record[place] ^= 0x40;
    ASSERT_EQ(send(pair[0], record, 25, 0), 25);
    shutdown(pair[0], SHUT_WR);
    uint8_t got[8];
    const iovec room{got, sizeof got};
    EXPECT_LE(in->read(&room, 1), 0) << place;
    for (const int s : pair) ::close(s);
  }
}

TEST_P(Streams, TakeNoRecordTwice) {
  open();
  uint8_t abc[] = "abc", record[64], got[8];
  iovec part{abc, 3};
  int pair[2];
  connect_pair(pair);
  std::string error;
  const auto in = RecordStream::open(pair[1], theirs(GetParam()), &error);
  ASSERT_TRUE(left_->write(&part, 1));
  ASSERT_EQ(recv(sockets_[1], record, sizeof record, 0), 25);
  for (int i = 0; i < 2; ++i) ASSERT_EQ(send(pair[0], record, 25, 0), 25);
  const iovec room{got, 3};
  EXPECT_EQ(in->read(&room, 1), 3);
  EXPECT_LE(in->read(&room, 1), 0);
  for (const int s : pair) ::close(s);
}

TEST_P(Streams, EndAtWhateverIsNoRecord) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    int pair[2];
    connect_pair(pair);
    std::string error;
    const auto in = RecordStream::open(pair[1], theirs(GetParam()), &error);
    Bytes noise = random_bytes(1 + seed * 7, seed);
    if (seed % 2) {  // the beginning of a record, and then something else
      const uint8_t header[] = {23, 3, 3, static_cast<uint8_t>(seed % 70), 0};
      std::memcpy(noise.data(), header, std::min(noise.size(), sizeof header));
    }
    ASSERT_GT(send(pair[0], noise.data(), noise.size(), 0), 0);
    shutdown(pair[0], SHUT_WR);
    uint8_t got[64];
    const iovec room{got, sizeof got};
    EXPECT_LE(in->read(&room, 1), 0);
    for (const int s : pair) ::close(s);
  }
}

TEST_P(Streams, OfTheKernelAreTheSame) {
  std::string error;
  auto kernel = KernelStream::open(sockets_[1], theirs(GetParam()), &error, /*also_old=*/true);
  if (!kernel) GTEST_SKIP() << "this kernel has no TLS " << error;
  right_ = std::move(kernel);
  left_ = RecordStream::open(sockets_[0], ours(GetParam()), &error, 1 << 20);
  std::thread other([&] { carry(right_.get(), left_.get(), 9'000'001, 6); });
  carry(left_.get(), right_.get(), 8'000'003, 7);
  other.join();
}

TEST_P(Streams, OfTheKernelRenewTheirKeys) {
  std::string error;
  auto kernel = KernelStream::open(sockets_[1], theirs(GetParam()), &error);
  if (!kernel) GTEST_SKIP() << "this kernel has no TLS that renews keys " << error;
  right_ = std::move(kernel);
  left_ = RecordStream::open(sockets_[0], ours(GetParam()), &error, 20);
  carry(left_.get(), right_.get(), 3'000'003, 8);
}

INSTANTIATE_TEST_SUITE_P(Suites, Streams, ::testing::Values(Suite::kAes128, Suite::kAes256),
                         [](const auto& info) {
                           return info.param == Suite::kAes128 ? "Aes128" : "Aes256";
                         });

TEST(Notices, AreReadToTheirEnd) {
  const uint8_t both[] = {24, 0, 0, 1, 1}, bad[] = {24, 0, 0, 1, 2}, cut[] = {24, 0, 0, 1},
                ticket[] = {4, 0, 0, 2, 9, 9}, more[] = {24, 0, 0, 1, 0, 4, 0, 0, 0},
                finished[] = {20, 0, 0, 1, 0};
  EXPECT_EQ(read_notice(kKeyUpdate, sizeof kKeyUpdate), Notice::kRenew);
  EXPECT_EQ(read_notice(both, sizeof both), Notice::kRenewBoth);
  EXPECT_EQ(read_notice(ticket, sizeof ticket), Notice::kNothing);
  for (const auto& [p, n] : {std::pair{bad, sizeof bad},
                             {cut, sizeof cut},
                             {more, sizeof more},
                             {finished, sizeof finished}})
    EXPECT_EQ(read_notice(p, n), Notice::kBad);
}

TEST(Secrets, AreOfTheirSuitesLength) {
  Traffic t;
  EXPECT_TRUE(parse_secret(std::string(64, 'a'), Suite::kAes128, &t));
  EXPECT_EQ(t.secret[31], 0xaa);
  EXPECT_FALSE(parse_secret(std::string(64, 'a'), Suite::kAes256, &t));
  EXPECT_FALSE(parse_secret(std::string(96, 'g'), Suite::kAes256, &t));
  EXPECT_FALSE(parse_secret("", Suite::kAes128, &t));
}

}  // namespace
}  // namespace sluice::tls
