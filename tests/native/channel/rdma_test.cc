// SPDX-License-Identifier: Apache-2.0
// An RDMA connection as a stream of bytes, and what a hostile other side can do to it: nothing but
// end it. Skipped on machines without RDMA; `make test-rdma` runs it in a guest with soft RoCE.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "channel/futex.h"
#include "channel/rdma_opening.h"
#include "tests/native/channel/rdma_hostile.h"
#include "tests/native/channel/rdma_pair.h"
#include "wire/frame.h"

namespace sluice::channel {
namespace {

TEST(Rdma, WhatIsWrittenIsReadInAnySizes) {
  NEEDS_RDMA(pair);
  const auto sent = some_bytes(9 << 20, 1);  // more than the ring holds, several times
  std::thread writer([&] {
    size_t at = 0, n = 1;
    while (at < sent.size()) {
      n = std::min(n * 3 % 700'001 + 1, sent.size() - at);
      ASSERT_TRUE(write_all(*pair.ends[0], sent.data() + at, n));
      at += n;
    }
    pair.ends[0]->finish();
  });
  std::vector<char> got(sent.size() + 1);
  size_t at = 0, n = 7;
  for (;;) {
    n = n * 5 % 300'007 + 1;
    const iovec parts[2] = {{got.data() + at, std::min<size_t>(n / 3, got.size() - at)},
                            {got.data() + at + n / 3, n}};
    const ssize_t read =
        at + n / 3 + n <= got.size()
            ? pair.ends[1]->read(parts, 2)
            : pair.ends[1]->read(std::array<iovec, 1>{{{got.data() + at, got.size() - at}}}.data(),
                                 1);
    ASSERT_GE(read, 0);
    if (read == 0) break;
    at += static_cast<size_t>(read);
  }
  writer.join();
  EXPECT_EQ(at, sent.size());
  got.resize(at);
  EXPECT_TRUE(got == sent);
}

TEST(Rdma, BothDirectionsAtOnceAndManySmallPieces) {
  NEEDS_RDMA(pair);
  constexpr int kPieces = 5000;
  std::vector<std::thread> threads;
  for (int side = 0; side < 2; ++side) {
    threads.emplace_back([&, side] {
      for (int i = 0; i < kPieces; ++i) ASSERT_TRUE(write_all(*pair.ends[side], &i, sizeof i));
    });
    threads.emplace_back([&, side] {
      for (int i = 0, got = -1; i < kPieces; ++i) {
        ASSERT_TRUE(read_all(*pair.ends[side], &got, sizeof got));
        ASSERT_EQ(got, i);
      }
    });
  }
  for (auto& t : threads) t.join();
}

TEST(Rdma, AWriterWaitsForRoomAndASleeperIsWoken) {
  NEEDS_RDMA(pair);
  const auto sent = some_bytes(6 << 20, 2);
  std::thread writer([&] { ASSERT_TRUE(write_all(*pair.ends[0], sent.data(), sent.size())); });
  sleep_ns(300'000'000);  // it sleeps for lack of room, long behind its spinning
  std::vector<char> got(sent.size());
  ASSERT_TRUE(read_all(*pair.ends[1], got.data(), got.size()));
  writer.join();
  EXPECT_TRUE(got == sent);
  int word = 0;
  std::thread reader([&] { ASSERT_TRUE(read_all(*pair.ends[0], &word, sizeof word)); });
  sleep_ns(300'000'000);
  const int said = 42;
  ASSERT_TRUE(write_all(*pair.ends[1], &said, sizeof said));
  reader.join();
  EXPECT_EQ(word, 42);
}

TEST(Rdma, ADescriptorTellsWhoHasArmed) {
  NEEDS_RDMA(pair);
  pollfd p{pair.ends[0]->descriptor(), POLLIN, 0};
  pair.ends[0]->arm();
  EXPECT_FALSE(pair.ends[0]->readable());
  EXPECT_EQ(poll(&p, 1, 0), 0);
  const int said = 7;
  ASSERT_TRUE(write_all(*pair.ends[1], &said, sizeof said));
  EXPECT_EQ(poll(&p, 1, 10'000), 1);
  EXPECT_TRUE(pair.ends[0]->readable());
  int got = 0;
  ASSERT_TRUE(read_all(*pair.ends[0], &got, sizeof got));
  pair.ends[0]->arm();
  EXPECT_EQ(poll(&p, 1, 0), 0);
  // The end of the socket beside it tells, too.
  shutdown(pair.sockets[1], SHUT_RDWR);
  EXPECT_EQ(poll(&p, 1, 10'000), 1);
  const iovec part{&got, sizeof got};
  EXPECT_EQ(pair.ends[0]->read(&part, 1), 0);
}

TEST(Rdma, WhatCameBeforeTheSocketEndedIsStillToBeHad) {
  NEEDS_RDMA(pair);
  const auto sent = some_bytes(100'000, 3);
  ASSERT_TRUE(write_all(*pair.ends[0], sent.data(), sent.size()));
  ASSERT_TRUE(pair.ends[0]->flush());
  shutdown(pair.sockets[0], SHUT_RDWR);
  std::vector<char> got(sent.size());
  ASSERT_TRUE(read_all(*pair.ends[1], got.data(), got.size()));
  EXPECT_TRUE(got == sent);
  char more;
  const iovec part{&more, 1};
  EXPECT_EQ(pair.ends[1]->read(&part, 1), 0);
}

TEST(Rdma, AnEndThatIsDestroyedIsNoticed) {
  NEEDS_RDMA(pair);
  pair.ends[1].reset();
  const auto bytes = some_bytes(64 << 10, 4);
  while (write_all(*pair.ends[0], bytes.data(), bytes.size()))  // until the adapter gives up
    ;
  char more;
  const iovec part{&more, 1};
  EXPECT_EQ(pair.ends[0]->read(&part, 1), -1);
  EXPECT_NE(pair.ends[0]->why(), "");
}

// A child has neither the memory nor the queues, and leaves its parent's alone.
TEST(Rdma, AForkedChildDisturbsNothing) {
  NEEDS_RDMA(pair);
  const auto sent = some_bytes(3 << 20, 5);
  std::atomic<bool> good{false};
  std::thread reader([&] {
    std::vector<char> got(sent.size());
    good = read_all(*pair.ends[1], got.data(), got.size()) && got == sent;
  });
  ASSERT_TRUE(write_all(*pair.ends[0], sent.data(), 1 << 20));
  const pid_t child = fork();
  if (child == 0) {
    std::vector<char> touched(16 << 20, 1);
    pair.ends[0].reset();  // as its exit handlers might
    pair.ends[1].reset();
    _exit(touched[12345] == 1 ? 0 : 1);
  }
  ASSERT_TRUE(write_all(*pair.ends[0], sent.data() + (1 << 20), 1 << 20));
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  ASSERT_TRUE(write_all(*pair.ends[0], sent.data() + (2 << 20), 1 << 20));
  reader.join();
  EXPECT_TRUE(good);
}

// ---- a hostile other side

TEST(HostileRdma, ItWritesWhereItMayAndNowhereElse) {
  NEEDS_HOSTILE(hostile, victim);
  const wire::RdmaTerms& t = hostile.other();
  EXPECT_EQ(hostile.attack(IBV_WR_RDMA_WRITE, t.area + kCreditPage, t.area_key, 64, 0),
            IBV_WC_SUCCESS);
  // Before its beginning, and behind its end, where the stage lies.
  const uint64_t behind = t.area + kCreditPage + t.ring_bytes;
  EXPECT_EQ(hostile.attack(IBV_WR_RDMA_WRITE, behind - 32, t.area_key, 64, 0),
            IBV_WC_REM_ACCESS_ERR);
}

TEST(HostileRdma, ItCannotReadNotEvenWhatItMayWrite) {
  NEEDS_HOSTILE(hostile, victim);
  const wire::RdmaTerms& t = hostile.other();
  const ibv_wc_status status =
      hostile.attack(IBV_WR_RDMA_READ, t.area + kCreditPage, t.area_key, 64, 0);
  EXPECT_TRUE(status == IBV_WC_REM_ACCESS_ERR || status == IBV_WC_REM_INV_REQ_ERR) << status;
}

TEST(HostileRdma, ItReachesNoOtherSessionsMemory) {
  NEEDS_HOSTILE(hostile, victim);
  // Another session's, with everything about it known but that it is of another domain.
  const auto other = RdmaConnection::make(RdmaDevice::open({}, &error), &error);
  ASSERT_TRUE(other) << error;
  const wire::RdmaTerms t = other->terms();
  EXPECT_EQ(hostile.attack(IBV_WR_RDMA_WRITE, t.area, t.area_key, 64, 0), IBV_WC_REM_ACCESS_ERR);
}

TEST(HostileRdma, AWrongKeyReachesNothing) {
  NEEDS_HOSTILE(hostile, victim);
  const wire::RdmaTerms& t = hostile.other();
  EXPECT_EQ(hostile.attack(IBV_WR_RDMA_WRITE, t.area, t.area_key ^ 0x5500, 64, 0),
            IBV_WC_REM_ACCESS_ERR);
}

// What the other side says has come, without its having room for it, and so on: the connection ends
// with a reason, and nothing is read that was not written.
TEST(HostileRdma, NonsenseEndsTheConnection) {
  constexpr uint32_t kData = 0, kCredit = 1u << 30, kMost = (1u << 30) - 1;
  for (uint32_t said :
       {kData | 0, kData | kMost, kData | (3u << 20), kCredit | 1, kCredit | kMost}) {
    NEEDS_HOSTILE(hostile, victim);
    const wire::RdmaTerms& t = hostile.other();
    EXPECT_EQ(
        hostile.attack(IBV_WR_RDMA_WRITE_WITH_IMM, t.area + kCreditPage, t.area_key, 16, said),
        IBV_WC_SUCCESS);
    EXPECT_EQ(read_some(*victim), -1) << said;
    EXPECT_NE(victim->why(), "") << said;
    EXPECT_FALSE(write_all(*victim, "x", 1)) << said;
  }
}

TEST(HostileRdma, CreditForWhatWasNeverSentEndsTheConnection) {
  NEEDS_HOSTILE(hostile, victim);
  const wire::RdmaTerms& t = hostile.other();
  hostile.memory()[0] = 1;  // one byte, where none was sent
  EXPECT_EQ(hostile.attack(IBV_WR_RDMA_WRITE_WITH_IMM, t.area, t.area_key, 16, 1u << 30),
            IBV_WC_SUCCESS);
  EXPECT_EQ(read_some(*victim), -1);
  EXPECT_NE(victim->why(), "");
}

// Pieces wake a reader where their sender says so. One that never says it harms its own session:
// what came is there for whoever looks.
TEST(HostileRdma, ASleeperIsWokenForWhatIsWorthIt) {
  NEEDS_HOSTILE(hostile, victim);
  const wire::RdmaTerms& t = hostile.other();
  pollfd p{victim->descriptor(), POLLIN, 0};
  const auto write = [&](uint64_t at, bool solicited) {
    return hostile.attack(IBV_WR_RDMA_WRITE_WITH_IMM, t.area + kCreditPage + at, t.area_key, 8, 8,
                          solicited);
  };
  victim->arm();
  ASSERT_EQ(poll(&p, 1, 0), 0);
  EXPECT_EQ(write(0, false), IBV_WC_SUCCESS);
  EXPECT_EQ(poll(&p, 1, 200), 0);
  EXPECT_TRUE(victim->readable());
  victim->arm();
  EXPECT_EQ(write(8, true), IBV_WC_SUCCESS);
  EXPECT_EQ(poll(&p, 1, 10'000), 1);
  EXPECT_EQ(read_some(*victim), 16);
}

// More pieces than may be under way: the adapter lets it wait, and it is the one that gives up.
TEST(HostileRdma, AFloodIsHeldUpAtItsOwnEnd) {
  NEEDS_HOSTILE(hostile, victim);
  const wire::RdmaTerms& t = hostile.other();
  ibv_wc_status last = IBV_WC_SUCCESS;
  for (int i = 0; i < 1000 && last == IBV_WC_SUCCESS; ++i)
    last = hostile.attack(IBV_WR_RDMA_WRITE_WITH_IMM, t.area + kCreditPage, t.area_key, 1, 1);
  EXPECT_EQ(last, IBV_WC_RNR_RETRY_EXC_ERR);
}

TEST(HostileRdma, TermsThatMakeNoSenseAreRefused) {
  NEEDS_RDMA(pair);
  const wire::RdmaTerms good = pair.ends[0]->terms();
  ASSERT_TRUE(RdmaConnection::sound(good));
  const auto bad = [&](auto change) {
    wire::RdmaTerms t = good;
    change(t);
    return !RdmaConnection::sound(t);
  };
  EXPECT_TRUE(bad([](auto& t) { t.ring_bytes = 0; }));
  EXPECT_TRUE(bad([](auto& t) { t.ring_bytes = 4096; }));
  EXPECT_TRUE(bad([](auto& t) { t.ring_bytes = 3 << 20; }));
  EXPECT_TRUE(bad([](auto& t) { t.ring_bytes = 1u << 31; }));
  EXPECT_TRUE(bad([](auto& t) { t.receives = 0; }));
  EXPECT_TRUE(bad([](auto& t) { t.receives = ~0u; }));
  EXPECT_TRUE(bad([](auto& t) { t.path_mtu = 0; }));
  EXPECT_TRUE(bad([](auto& t) { t.path_mtu = 6; }));
  EXPECT_TRUE(bad([](auto& t) { t.queue_pair = 1u << 24; }));
  EXPECT_TRUE(bad([](auto& t) { t.first_packet = 1u << 24; }));
  EXPECT_TRUE(bad([](auto& t) { t.lid = 1u << 16; }));
}

// ---- without a device: what is read of what others wrote

TEST(RdmaOpening, AnOfferIsFoundBehindTheRecordAndNowhereElse) {
  std::vector<std::byte> reply(sizeof(wire::OpenReply) + sizeof(wire::SessionRecord));
  wire::SessionRecord record{};
  record.device_count = 2;
  record.device_bytes = sizeof(wire::DeviceRecord);
  std::memcpy(reply.data() + sizeof(wire::OpenReply), &record, sizeof record);
  reply.resize(reply.size() + 2 * sizeof(wire::DeviceRecord));
  wire::RdmaTerms offer{};
  EXPECT_FALSE(find_rdma_offer(reply, &offer));
  wire::RdmaTerms said = no_rdma("no port is up");
  said.header = {sizeof said, wire::kRdmaOffer, wire::kNoLane, 0, 0};
  const auto* bytes = reinterpret_cast<const std::byte*>(&said);
  reply.insert(reply.end(), bytes, bytes + sizeof said);
  ASSERT_TRUE(find_rdma_offer(reply, &offer));
  EXPECT_STREQ(offer.message, "no port is up");
  for (size_t n = 0; n < reply.size(); n += 97)
    EXPECT_FALSE(find_rdma_offer(std::span(reply).first(n), &offer)) << n;
  record.device_count = 1;  // then another's record stands where the offer would be
  std::memcpy(reply.data() + sizeof(wire::OpenReply), &record, sizeof record);
  EXPECT_FALSE(find_rdma_offer(reply, &offer));
  record.device_count = ~0u;
  std::memcpy(reply.data() + sizeof(wire::OpenReply), &record, sizeof record);
  EXPECT_FALSE(find_rdma_offer(reply, &offer));
}

// A relay's client shall not learn where the node's end is.
TEST(RdmaOpening, AnOfferIsTakenOutOfTheReplyAgain) {
  std::vector<std::byte> reply(sizeof(wire::OpenReply) + sizeof(wire::SessionRecord) +
                               sizeof(wire::DeviceRecord));
  wire::SessionRecord record{};
  record.device_count = 1;
  record.device_bytes = sizeof(wire::DeviceRecord);
  record.record_bytes = static_cast<uint32_t>(reply.size() - sizeof(wire::OpenReply));
  const auto put_record = [&] {
    std::memcpy(reply.data() + sizeof(wire::OpenReply), &record, sizeof record);
  };
  put_record();
  const std::vector<std::byte> before = reply;
  remove_rdma_offer(&reply);
  EXPECT_EQ(reply, before);
  wire::RdmaTerms said = no_rdma("");
  said.header = {sizeof said, wire::kRdmaOffer, wire::kNoLane, 0, 0};
  const auto* bytes = reinterpret_cast<const std::byte*>(&said);
  reply.insert(reply.end(), bytes, bytes + sizeof said);
  record.record_bytes += static_cast<uint32_t>(sizeof said);
  put_record();
  remove_rdma_offer(&reply);
  EXPECT_EQ(reply, before);
  reply.clear();
  remove_rdma_offer(&reply);
  EXPECT_TRUE(reply.empty());
}

TEST(RdmaOpening, ADeviceIsNamedWithItsPortAndItsGid) {
  RdmaChoice c;
  ASSERT_TRUE(read_rdma_choice("mlx5_0:2:3", &c));
  EXPECT_EQ(c.device, "mlx5_0");
  EXPECT_EQ(c.port, 2u);
  EXPECT_EQ(c.gid, 3);
  c = {};
  ASSERT_TRUE(read_rdma_choice("", &c));
  EXPECT_EQ(c.device, "");
  EXPECT_EQ(c.gid, -1);
  ASSERT_TRUE(read_rdma_choice("rxe0", &c));
  for (const char* bad : {"mlx5_0:", "mlx5_0:x", "mlx5_0:1:", "mlx5_0:256", "mlx5_0:1:256", "a/b",
                          "mlx5_0:1:2:3", "mlx5_0:-1"})
    EXPECT_FALSE(read_rdma_choice(bad, &c)) << bad;
}

}  // namespace
}  // namespace sluice::channel
