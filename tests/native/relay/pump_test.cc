// SPDX-License-Identifier: Apache-2.0
// The relay's pump between a real slot and a socket: bytes come out as they went in, in both
// directions at once, whatever their number; every end of every part is told to the others, in
// order; and nothing that a client writes into its counters makes the relay read or write outside.
#include "relay/pump.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "channel/end_reason.h"
#include "channel/futex.h"
#include "tests/native/channel/shared_slot.h"

namespace sluice::test {
namespace {

using namespace std::chrono_literals;
using channel::SlotState;

std::byte pattern(uint64_t i) { return static_cast<std::byte>(i * 7 + (i >> 9)); }

// Its threads live as long as the process, as the relay's do; so it is never taken down.
struct Rig {
  explicit Rig(bool shares_futex = true, size_t slot_bytes = 4 << 20) : slot(slot_bytes) {
    int pair[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    node = pair[0];
    pump = new relay::Pump(watched.alias(), "node-a", [this](const process::End& why) {
      std::lock_guard lock(mutex);
      reason = why.reason;
      changed.notify_all();
    });
    pump->carry(std::make_unique<channel::PlainStream>(pair[1]), pair[1]);
    std::string error;
    const std::vector<std::byte> record(600, std::byte{1});
    EXPECT_TRUE(pump->open(record, &error)) << error;
    header = &watched.header();
    EXPECT_EQ(header->dialect.load(), static_cast<uint32_t>(channel::SlotDialect::kBytes));
    client = std::make_unique<channel::RegionStream>(watched.alias(), shares_futex, -1, -1);
    EXPECT_TRUE(pump->start());
    // In a guest the doorbell process turns the word that the client sets into a wake-up.
    if (!shares_futex) std::thread([this] { ring_for_guest(); }).detach();
  }
  void ring_for_guest() const {
    for (;;) {
      std::this_thread::sleep_for(1ms);
      if (!header->doorbell.exchange(0)) continue;
      header->wake.fetch_add(1);
      channel::futex_wake(header->wake);
    }
  }

  bool write(const std::vector<std::byte>& data) {
    iovec part{const_cast<std::byte*>(data.data()), data.size()};
    return client->write(&part, 1);
  }
  bool read(std::vector<std::byte>* data) {
    for (size_t at = 0; at < data->size();) {
      const iovec part{data->data() + at, data->size() - at};
      const ssize_t n = client->read(&part, 1);
      if (n <= 0) return false;
      at += static_cast<size_t>(n);
    }
    return true;
  }
  std::string ended() {
    std::unique_lock lock(mutex);
    changed.wait_for(lock, 20s, [this] { return !reason.empty(); });
    return reason;
  }
  SlotState state() const { return static_cast<SlotState>(header->state.load()); }
  void node_sends(const std::string& text) {
    EXPECT_EQ(send(node, text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  }

  SharedSlot slot;
  channel::MappedSlot watched = slot.map(true);
  channel::SlotHeader* header;
  int node;
  relay::Pump* pump;
  std::unique_ptr<channel::RegionStream> client;
  std::mutex mutex;
  std::condition_variable changed;
  std::string reason;
};

// Whoever looks for leaks finds them here.
Rig& made(Rig* rig) {
  static auto* all = new std::vector<Rig*>;
  all->push_back(rig);
  return *rig;
}

void echo(int node) {
  std::vector<char> buffer(100'000);
  for (ssize_t n; (n = recv(node, buffer.data(), buffer.size(), 0)) > 0;)
    for (ssize_t at = 0; at < n;) {
      const ssize_t sent = send(node, buffer.data() + at, static_cast<size_t>(n - at), 0);
      if (sent <= 0) return;
      at += sent;
    }
}

class Relayed : public ::testing::TestWithParam<bool> {};

TEST_P(Relayed, BytesComeOutAsTheyWentInManyTimesRoundTheRings) {
  auto& rig = made(new Rig(GetParam()));
  std::thread(echo, rig.node).detach();
  constexpr uint64_t kAll = 12 << 20;  // the rings have 256 KiB
  std::thread writer([&] {
    std::mt19937 random(20261);
    for (uint64_t at = 0; at < kAll;) {
      const size_t n =
          std::min<uint64_t>(kAll - at, random() % 4 ? 1 + random() % 900 : 1 + random() % 700'000);
      std::vector<std::byte> data(n);
      for (size_t i = 0; i < n; ++i) data[i] = pattern(at + i);
      ASSERT_TRUE(rig.write(data));
      at += n;
    }
  });
  std::mt19937 random(20262);
  uint64_t wrong = 0;
  for (uint64_t at = 0; at < kAll;) {
    std::vector<std::byte> data(std::min<uint64_t>(kAll - at, 1 + random() % 300'000));
    ASSERT_TRUE(rig.read(&data));
    for (size_t i = 0; i < data.size(); ++i) wrong += data[i] != pattern(at + i);
    at += data.size();
  }
  writer.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(rig.pump->bytes_in(), kAll);
  EXPECT_EQ(rig.pump->bytes_out(), kAll);
}

TEST_P(Relayed, SmallQuestionsAreAnsweredAfterLongPausesToo) {
  auto& rig = made(new Rig(GetParam()));
  std::thread(echo, rig.node).detach();
  std::vector<std::byte> data(24, std::byte{5});
  for (const auto pause : {0ms, 1ms, 30ms, 0ms, 250ms}) {
    std::this_thread::sleep_for(pause);
    ASSERT_TRUE(rig.write(data));
    std::vector<std::byte> back(data.size());
    ASSERT_TRUE(rig.read(&back));
    EXPECT_EQ(back, data);
  }
}

INSTANTIATE_TEST_SUITE_P(Futex, Relayed, ::testing::Bool(), [](const auto& with) {
  return std::string(with.param ? "of_one_host" : "of_a_guest");
});

TEST(Relay, WhatTheNodeSaysLastIsReadBeforeItsEnd) {
  auto& rig = made(new Rig);
  rig.node_sends("last words");
  shutdown(rig.node, SHUT_RDWR);
  std::vector<std::byte> words(10);
  ASSERT_TRUE(rig.read(&words));
  EXPECT_EQ(std::memcmp(words.data(), "last words", 10), 0);
  std::vector<std::byte> more(1);
  EXPECT_FALSE(rig.read(&more));
  std::string why;
  EXPECT_EQ(rig.client->last_words(&why), 999u);
  EXPECT_NE(why.find("the connection to node-a was lost"), std::string::npos) << why;
  EXPECT_EQ(rig.ended(), why);
  EXPECT_EQ(rig.state(), SlotState::kClosed) << "the client has seen it";
}

TEST(Relay, AClientThatClosesHasAllThatItSentCarriedFirst) {
  auto& rig = made(new Rig);
  ASSERT_TRUE(rig.write(std::vector<std::byte>(200'000, std::byte{3})));
  rig.client->finish();
  size_t got = 0;
  char buffer[4096];
  for (ssize_t n; (n = recv(rig.node, buffer, sizeof buffer, 0)) > 0;)
    got += static_cast<size_t>(n);
  EXPECT_EQ(got, 200'000u) << "and then the end";
  shutdown(rig.node, SHUT_RDWR);
  EXPECT_EQ(rig.ended(), "the client closed its session");
}

TEST(Relay, TheServersEndReachesAClientThatWaitsAndOneThatWrites) {
  auto& rig = made(new Rig);
  std::thread server([&] {
    std::this_thread::sleep_for(20ms);
    rig.pump->end({wire::EndCause::kGuestStopped, "the domain was destroyed"}, 802);
  });
  std::vector<std::byte> data(1);
  EXPECT_FALSE(rig.read(&data));
  EXPECT_FALSE(rig.write(data));
  EXPECT_TRUE(rig.client->readable());
  std::string why;
  EXPECT_EQ(rig.client->last_words(&why), 802u);
  EXPECT_EQ(why, "the domain was destroyed");
  server.join();
  EXPECT_EQ(rig.ended(), why);
}

TEST(Relay, AClientThatReadsNothingHoldsUpOnlyItself) {
  auto& rig = made(new Rig);
  std::thread([&] {
    const std::string much(1 << 20, 'x');
    for (int i = 0; i < 64; ++i)
      if (send(rig.node, much.data(), much.size(), MSG_NOSIGNAL) < 0) return;
  }).detach();
  while (rig.header->back_tail.load() < rig.watched.layout().ring_bytes)
    std::this_thread::sleep_for(1ms);
  rig.pump->end({wire::EndCause::kOperator, "it is to end"}, 802);
  EXPECT_EQ(rig.ended(), "it is to end");
}

struct Damage {
  const char* name;
  void (*what)(Rig&);
};

class Hostile : public ::testing::TestWithParam<Damage> {};

TEST_P(Hostile, CountersThatNoClientWritesEndTheSession) {
  auto& rig = made(new Rig);
  ASSERT_TRUE(rig.write(std::vector<std::byte>(1000, std::byte{1})));
  std::vector<char> taken(1000);
  ASSERT_EQ(recv(rig.node, taken.data(), taken.size(), MSG_WAITALL), 1000);
  GetParam().what(rig);
  rig.header->wake.fetch_add(1);
  channel::futex_wake(rig.header->wake);
  EXPECT_NE(rig.ended(), "");
  char byte;
  EXPECT_LE(recv(rig.node, &byte, 1, 0), 0) << "nothing more was carried";
}

INSTANTIATE_TEST_SUITE_P(
    Slot, Hostile,
    ::testing::Values(Damage{"more_than_the_ring_holds",
                             [](Rig& r) { r.header->tail = uint64_t{1} << 40; }},
                      Damage{"one_more_than_the_ring_holds",
                             [](Rig& r) { r.header->tail = 1001 + r.watched.layout().ring_bytes; }},
                      Damage{"fewer_than_before", [](Rig& r) { r.header->tail = 3; }},
                      Damage{"read_more_than_was_sent",
                             [](Rig& r) {
                               r.header->back_head = uint64_t{1} << 40;
                               const std::string much(r.watched.layout().ring_bytes * 2, 'x');
                               std::thread([&r, much] {
                                 send(r.node, much.data(), much.size(), MSG_NOSIGNAL);
                               }).detach();
                             }},
                      Damage{"a_state_that_there_is_not", [](Rig& r) { r.header->state = 4711; }}),
    [](const auto& with) { return with.param.name; });

}  // namespace
}  // namespace sluice::test
