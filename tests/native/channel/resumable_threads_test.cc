// SPDX-License-Identifier: Apache-2.0
// Resumable streams that several threads use at once, with little room for what is kept, plain and
// under TLS, while their connections are cut: each thread's messages arrive whole, once and in
// order, and memory that was lent is its owner's when it has been settled.
#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "tests/native/channel/resumable_rig.h"
#include "tls/record_stream.h"

namespace sluice::channel {
namespace {

using namespace resumable;

constexpr uint32_t kWriters = 3, kWord = 99;

std::unique_ptr<Connection> under_tls(int socket, bool client) {
  tls::Session session;
  for (size_t i = 0; i < tls::kMostSecretBytes; ++i) {
    session.in.secret[i] = static_cast<uint8_t>(client ? i : 2 * i + 1);
    session.out.secret[i] = static_cast<uint8_t>(client ? 2 * i + 1 : i);
  }
  std::string error;
  auto stream = tls::RecordStream::open(socket, session, &error);
  return std::make_unique<Connection>(socket, std::move(stream));
}

struct Head {
  uint32_t writer, number, bytes;
};

// A message's bytes: which thread's, and which of its messages.
char byte_of(const Head& head, size_t i) {
  return byte_at((uint64_t{head.writer} << 40) + (uint64_t{head.number} << 20) + i);
}

// So many messages of one thread: copied, lent, lent and held; large and small.
void write_all(ResumableStream* stream, uint32_t writer, uint32_t messages, size_t largest) {
  std::mt19937 random(writer);
  for (uint32_t number = 0; number < messages; ++number) {
    const unsigned kind = random() % 8;
    const size_t most = kind == 0 ? largest : kind < 3 ? 60'000 : 300;
    Head head{writer, number, static_cast<uint32_t>(random() % most)};
    auto data = std::make_shared<std::vector<char>>(head.bytes);
    for (size_t i = 0; i < head.bytes; ++i) (*data)[i] = byte_of(head, i);
    iovec parts[2] = {{&head, sizeof head}, {data->data(), data->size()}};
    const unsigned how = random() % 3;
    const bool sent = how == 0 ? stream->write(parts, 2)
                               : stream->write_lent(parts, 2, how == 1 ? data : nullptr);
    ASSERT_TRUE(sent && (how != 2 || stream->settle()));
    if (how != 1) use_again(data);
  }
}

// All messages of all threads of the other side; now and then only what is there.
void read_all(ResumableStream* stream, uint32_t messages, const std::atomic<int>& writing) {
  std::mt19937 random(42);
  std::vector<char> come;
  std::array<uint32_t, kWriters> next{};
  uint64_t whole = 0;
  const auto is_done = [&] { return whole == uint64_t{kWriters} * messages; };
  while (!is_done() || writing > 0) {
    const size_t had = come.size(), most = random() % 4 ? 200'000 : 1 + random() % 50;
    come.resize(had + most);
    const iovec parts[2] = {{come.data() + had, most / 2},
                            {come.data() + had + most / 2, most - most / 2}};
    const bool waits = !is_done() && random() % 8 > 0;
    const ssize_t got = waits ? stream->read(parts, 2) : stream->read_present(parts, 2);
    ASSERT_GE(got, waits ? 1 : 0);
    if (got == 0) sleep_ns(1'000'000);
    come.resize(had + static_cast<size_t>(got));
    size_t at = 0;
    for (Head head; come.size() - at >= sizeof head; at += sizeof head + head.bytes) {
      std::memcpy(&head, come.data() + at, sizeof head);
      if (come.size() - at < sizeof head + head.bytes) break;
      if (head.writer == kWord) continue;
      ASSERT_LT(head.writer, kWriters);
      ASSERT_EQ(head.number, next[head.writer]++) << "of " << head.writer;
      const char* data = come.data() + at + sizeof head;
      for (size_t i = 0; i < head.bytes; ++i)
        ASSERT_EQ(data[i], byte_of(head, i)) << head.writer << " " << head.number << " " << i;
      ++whole;
    }
    come.erase(come.begin(), come.begin() + static_cast<ptrdiff_t>(at));
  }
}

// Whoever looks every now and then, and says words that may get lost.
void look_and_say(ResumableStream* stream, const std::atomic<int>& writing) {
  for (uint32_t number = 0; writing > 0; ++number) {
    EXPECT_FALSE(stream->look(10'000));
    const Head word{kWord, number, 0};
    stream->try_write(&word, sizeof word);
    sleep_ns(2'000'000);
  }
}

struct Case {
  const char* name;
  size_t cut_within;
  uint32_t subflows;
  Opens opens;
  uint32_t messages;
  size_t largest;
};

class ResumableThreads : public testing::TestWithParam<Case> {};

TEST_P(ResumableThreads, MessagesArriveOnceAndInOrder) {
  const Case& with = GetParam();
  std::string error;
  if (with.opens == under_tls && !tls::OpenSsl::get(&error)) GTEST_SKIP() << error;
  ResumableStream::Terms terms{60 * kSecond, 60 * kSecond};
  terms.most_kept = 100'000;
  terms.most_lent = 700'000;
  terms.hear_after = 50'000;
  terms.silent_ns = 60 * kSecond;  // so that whoever looks reads as well
  Rig rig(terms, with.subflows, with.opens);
  rig.cut_after(with.cut_within, 11);
  std::atomic<int> writing{2 * kWriters};
  std::vector<std::thread> threads;
  for (ResumableStream* stream : {rig.client.get(), rig.server.get()}) {
    for (uint32_t writer = 0; writer < kWriters; ++writer)
      threads.emplace_back([&, stream, writer] {
        write_all(stream, writer, with.messages, with.largest);
        --writing;
      });
    threads.emplace_back([&, stream] {
      read_all(stream, with.messages, writing);
      if (!HasFatalFailure()) return;
      rig.client->end();  // so that nobody waits for what is not read
      rig.server->end();
    });
    threads.emplace_back([&, stream] { look_and_say(stream, writing); });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_GT(rig.connections, 10);
}

INSTANTIATE_TEST_SUITE_P(Cut, ResumableThreads,
                         testing::Values(Case{"Soon", 2'000, 0, plainly, 25, 10'000},
                                         Case{"SoonUnderTls", 8'000, 0, under_tls, 30, 20'000},
                                         Case{"UnderTls", 100'000, 0, under_tls, 80, 400'000},
                                         Case{"WithSubflows", 400'000, 2, plainly, 100, 900'000},
                                         Case{"WithSubflowsUnderTls", 400'000, 2, under_tls, 80,
                                              900'000}),
                         [](const auto& info) { return info.param.name; });

// One who stands still in the middle of a record says no more than one who says nothing, whether
// somebody reads or nobody does; and one who comes back and then does so is not waited for.
class InMidRecord : public testing::TestWithParam<bool> {};

TEST_P(InMidRecord, SilenceUnderTlsIsFound) {
  std::string error;
  if (!tls::OpenSsl::get(&error)) GTEST_SKIP() << error;
  const Ends ends = pair(), written = pair();
  ResumableStream::Terms terms{60 * kSecond, 60 * kSecond};
  terms.silent_ns = kSecond / 10;
  ResumableStream stream(under_tls(ends.a, true), terms);
  const auto other = under_tls(written.a, false);
  wire::StreamRecord word{};
  iovec part{&word, sizeof word};
  ASSERT_TRUE(other->stream->write(&part, 1));
  std::array<char, sizeof word + 20> record;
  ASSERT_GT(recv(written.b, record.data(), record.size(), 0), 20);
  ASSERT_EQ(send(ends.b, record.data(), 20, 0), 20);
  std::thread reader;
  if (GetParam()) {
    reader = std::thread([&] {
      char byte;
      const iovec room{&byte, 1};
      EXPECT_EQ(stream.read(&room, 1), 0);
    });
  }
  while (stream.broken_since() == 0) {
    EXPECT_FALSE(stream.look(10'000));
    sleep_ns(10'000'000);
  }
  stream.end();
  if (reader.joinable()) reader.join();
  for (const int s : {ends.b, written.b}) close(s);
}
// All of it leaves the socket with the first read, and nobody is told of it again: who waits for
// the socket would wait for ever.
TEST(ResumableStream, WhatTlsHasTakenInIsPendingUntilItIsRead) {
  std::string error;
  if (!tls::OpenSsl::get(&error)) GTEST_SKIP() << error;
  const Ends ends = pair();
  const ResumableStream::Terms terms{kSecond, kSecond};
  ResumableStream stream(under_tls(ends.a, true), terms), other(under_tls(ends.b, false), terms);
  std::vector<char> said(150'000, 's'), heard(said.size());
  iovec whole{said.data(), said.size()};
  ASSERT_TRUE(other.write(&whole, 1));
  EXPECT_FALSE(stream.pending());
  size_t got = 0, silent = 0;
  while (got < heard.size()) {
    const iovec rest{heard.data() + got, std::min<size_t>(heard.size() - got, 30'000)};
    const ssize_t n = stream.read(&rest, 1);
    ASSERT_GT(n, 0);
    got += static_cast<size_t>(n);
    pollfd p{ends.a, POLLIN, 0};
    if (got == heard.size() || poll(&p, 1, 0) > 0) continue;
    ++silent;
    EXPECT_TRUE(stream.pending()) << "behind " << got << " bytes";
    EXPECT_TRUE(stream.readable());
  }
  EXPECT_GT(silent, 0u) << "the socket told of all of it";
  EXPECT_FALSE(stream.pending());
  EXPECT_EQ(heard, said);
  other.end();
  stream.end();
}

INSTANTIATE_TEST_SUITE_P(IsRead, InMidRecord, testing::Bool());

}  // namespace
}  // namespace sluice::channel
