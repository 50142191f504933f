// SPDX-License-Identifier: Apache-2.0
// A slot whose relays follow one another while a resumable stream runs through it: what arrives at
// either end is what was sent, once and in order, whichever side has lost the connection. Both ends
// are in this process, as is one relay after the other.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "channel/futex.h"
#include "channel/resumable_stream.h"
#include "relay/pump.h"
#include "tests/native/channel/shared_slot.h"

namespace sluice::test {
namespace {

using namespace std::chrono_literals;
using channel::RegionEnd;
using channel::RegionStream;
using channel::ResumableStream;
using Connection = ResumableStream::Connection;

constexpr int64_t kSecond = 1'000'000'000;

char byte_at(uint64_t place) { return static_cast<char>(place * 2654435761u >> 13); }

// Relays' threads may outlive a test, so what they use does, too.
struct Way {
  explicit Way(bool shares_futex)
      : end(std::make_shared<RegionEnd>(slot.map(true), shares_futex, -1, -1, channel::Bell())) {
    node_socket = connect(channel::kFirstLink);
    std::string error;
    const std::vector<std::byte> record(600, std::byte{1});
    EXPECT_TRUE(pump->open(record, &error)) << error;
    EXPECT_TRUE(pump->start());
    auto first = std::make_unique<RegionStream>(end, channel::kFirstLink);
    EXPECT_TRUE(first->begin());
    const ResumableStream::Terms terms{60 * kSecond, 60 * kSecond};
    client = new ResumableStream(std::make_unique<Connection>(-1, std::move(first)), terms);
    node = new ResumableStream(over(node_socket), terms);
    if (!shares_futex) std::thread([this] { ring_for_guest(); }).detach();
  }
  static std::unique_ptr<Connection> over(int socket) {
    return std::make_unique<Connection>(socket, std::make_unique<channel::PlainStream>(socket));
  }
  // The next relay, with its end of a new connection; returns the node's.
  int connect(uint32_t link) {
    int pair[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    pump = new relay::Pump(end->slot.alias(), "node-a", [](const process::End&) {});
    pump->carry(std::make_unique<channel::PlainStream>(pair[1]), pair[1]);
    lost = false;
    pump->outlive(link, [this] { lost = true; });
    return pair[0];
  }
  // What server, relay and client do after a break.
  void follow() {
    while (!lost) std::this_thread::sleep_for(1ms);
    const uint32_t link = ++link_;
    node_socket = connect(link);
    ASSERT_TRUE(pump->take_up());
    ASSERT_TRUE(pump->start());
    std::thread other([&] { node->resume(link - 1, over(node_socket)); });
    client->resume(link - 1,
                   std::make_unique<Connection>(-1, std::make_unique<RegionStream>(end, link)));
    other.join();
  }
  void ring_for_guest() const {
    for (auto& h = end->slot.header();; std::this_thread::sleep_for(1ms)) {
      if (!h.doorbell.exchange(0)) continue;
      h.wake.fetch_add(1);
      channel::futex_wake(h.wake);
    }
  }

  SharedSlot slot;
  std::shared_ptr<RegionEnd> end;
  relay::Pump* pump = nullptr;
  ResumableStream *client = nullptr, *node = nullptr;
  int node_socket = -1;
  std::atomic<bool> lost{false};

 private:
  uint32_t link_ = channel::kFirstLink;
};

Way& made(Way* way) {
  static auto* all = new std::vector<Way*>;
  all->push_back(way);
  return *way;
}

void send_all(ResumableStream* stream, uint64_t bytes) {
  std::vector<char> piece;
  for (uint64_t at = 0; at < bytes;) {
    piece.resize(std::min<uint64_t>(bytes - at, 1 + at * 31 % 90'000));
    for (char& c : piece) c = byte_at(at++);
    iovec part{piece.data(), piece.size()};
    ASSERT_TRUE(stream->write(&part, 1));
  }
}

uint64_t wrong_of(ResumableStream* stream, uint64_t bytes) {
  std::vector<char> piece(50'000);
  uint64_t wrong = 0;
  for (uint64_t at = 0; at < bytes;) {
    const iovec part{piece.data(), std::min<uint64_t>(piece.size(), bytes - at)};
    const ssize_t got = stream->read(&part, 1);
    if (got <= 0) return wrong + bytes - at;
    for (ssize_t i = 0; i < got; ++i) wrong += piece[static_cast<size_t>(i)] != byte_at(at++);
  }
  return wrong;
}

// As a client does that has heard nothing for long.
void give_up(Way& way) {
  auto& h = way.end->slot.header();
  h.link_taken.store(0);
  h.wake.fetch_add(1);
  channel::futex_wake(h.wake);
}

class Outliving : public ::testing::TestWithParam<bool> {};

TEST_P(Outliving, WhatArrivesIsWhatWasSentWhicheverEndLostTheConnection) {
  auto& way = made(new Way(GetParam()));
  constexpr uint64_t kAll = 6 << 20;
  constexpr int kBreaks = 12;
  std::thread forth([&] { send_all(way.client, kAll); });
  std::thread back([&] { send_all(way.node, kAll); });
  uint64_t wrong[2];
  std::thread at_client([&] { wrong[0] = wrong_of(way.client, kAll); });
  std::thread at_node([&] { wrong[1] = wrong_of(way.node, kAll); });
  for (int i = 0; i < kBreaks; ++i) {
    std::this_thread::sleep_for(5ms);
    if (i % 2 == 0)
      shutdown(way.node_socket, SHUT_RDWR);
    else
      give_up(way);
    way.follow();
  }
  forth.join();
  back.join();
  at_client.join();
  at_node.join();
  EXPECT_EQ(wrong[0], 0u);
  EXPECT_EQ(wrong[1], 0u);
  way.client->end();
  way.node->end();
}

TEST_P(Outliving, AnEndIsToldWhileThereIsNoConnection) {
  auto& way = made(new Way(GetParam()));
  shutdown(way.node_socket, SHUT_RDWR);
  while (!way.lost) std::this_thread::sleep_for(1ms);
  way.pump->end({wire::EndCause::kOperator, "an operator ended it"}, 802);
  EXPECT_TRUE(way.end->over());
  std::string why;
  EXPECT_EQ(way.end->last_words(&why), 802u);
  EXPECT_EQ(why, "an operator ended it");
}

INSTANTIATE_TEST_SUITE_P(Of, Outliving, ::testing::Values(true, false),
                         [](const auto& of) { return of.param ? "TheHost" : "AGuest"; });

}  // namespace
}  // namespace sluice::test
