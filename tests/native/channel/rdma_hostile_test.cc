// SPDX-License-Identifier: Apache-2.0
// What a hostile other side makes of bulk that goes straight, and how one that does nothing any
// more is got rid of: it ends its own session, and nothing else. Skipped without RDMA.
#include "tests/native/channel/rdma_hostile.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>
#include <thread>
#include <vector>

#include "tests/native/channel/rdma_pair.h"

namespace sluice::channel {
namespace {

// ---- a hostile other side

constexpr uint32_t kData = 0, kFinish = 8u << 28, kOffer = 13u << 28, kGrant = 14u << 28,
                   kPlaced = 15u << 28, kLast = 1u << 27;

#define NEEDS_HOSTILE_ABLE(hostile, victim)                                       \
  std::string error;                                                              \
  HostileEnd hostile(&error);                                                     \
  if (!(hostile).there()) GTEST_SKIP() << "no RDMA here: " << error;              \
  const auto victim = RdmaConnection::make(RdmaDevice::open({}, &error), &error); \
  ASSERT_TRUE(victim) << error;                                                   \
  (hostile).meet(*victim, 1)

TEST(HostileRdmaBulk, NonsenseEndsTheConnection) {
  const std::vector<std::vector<uint32_t>> all = {
      {kPlaced | 100},                                           // nothing was granted
      {kPlaced | kLast},                                         //
      {kOffer | 0},                                              //
      {kOffer | (17u << 20)},                                    // more than may be offered
      {kOffer | 4096, kOffer | 4096},                            // the first was not answered
      {kOffer | 4096, kData | 16},                               // bytes that would come before it
      {kOffer | 4096, kPlaced | 16},                             //
      {kGrant | 1},                                              // out of turn
      {kGrant | 64},                                             //
      {kGrant, kGrant | 1, kGrant | 2, kGrant | 3, kGrant | 4},  // too many
      {kFinish, kOffer | 4096},                                  // behind the end
      {1u << 28 | 16},                                           // no such kind
      {5u << 28},                                                //
  };
  for (size_t i = 0; i < all.size(); ++i) {
    NEEDS_HOSTILE_ABLE(hostile, victim);
    const wire::RdmaTerms& t = hostile.other();
    for (uint32_t said : all[i])
      EXPECT_EQ(
          hostile.attack(IBV_WR_RDMA_WRITE_WITH_IMM, t.area + kCreditPage, t.area_key, 16, said),
          IBV_WC_SUCCESS);
    victim->readable();
    EXPECT_TRUE(victim->broken()) << i;
    EXPECT_NE(victim->why(), "") << i;
    EXPECT_EQ(read_some(*victim), all[i][0] == kFinish ? 0 : -1) << i;
  }
}

// It is told a place and a key: with them it reaches that registration, and may fill the place
// once.
TEST(HostileRdmaBulk, AGrantIsForItsPlaceAndForOnce) {
  for (int way = 0; way < 4; ++way) {
    NEEDS_HOSTILE_ABLE(hostile, victim);
    const Owned place(64 << 10), other(64 << 10);
    ASSERT_TRUE(victim->grant(place.at(), 4096));
    const auto at = reinterpret_cast<uint64_t>(place.at());
    const uint32_t key = hostile.granted().key;
    ASSERT_EQ(hostile.granted().address, at);
    ASSERT_EQ(hostile.granted().bytes, 4096u);
    const auto placed = [&](uint64_t to, size_t n, uint32_t said) {
      return hostile.attack(IBV_WR_RDMA_WRITE_WITH_IMM, to, key, n, kPlaced | said);
    };
    switch (way) {
      case 0:  // more than was granted
        EXPECT_EQ(placed(at, 4096, 4096), IBV_WC_SUCCESS);
        EXPECT_EQ(placed(at + 4096, 16, 16), IBV_WC_SUCCESS);
        break;
      case 1:  // twice
        EXPECT_EQ(placed(at, 64, 64 | kLast), IBV_WC_SUCCESS);
        EXPECT_EQ(placed(at, 64, 64 | kLast), IBV_WC_SUCCESS);
        break;
      case 2:  // bytes of the ring inside of it
        EXPECT_EQ(placed(at, 64, 64), IBV_WC_SUCCESS);
        EXPECT_EQ(hostile.attack(IBV_WR_RDMA_WRITE_WITH_IMM, hostile.other().area + kCreditPage,
                                 hostile.other().area_key, 16, kData | 16),
                  IBV_WC_SUCCESS);
        break;
      case 3:  // other memory with the same key, and what lies behind: the adapter refuses
        EXPECT_EQ(placed(at + place.bytes() - 8, 16, 16), IBV_WC_REM_ACCESS_ERR);
        continue;
    }
    victim->readable();
    EXPECT_TRUE(victim->broken()) << way;
  }
}

TEST(HostileRdmaBulk, TheKeyOfAGrantReachesNoOtherMemory) {
  NEEDS_HOSTILE_ABLE(hostile, victim);
  const Owned place(64 << 10), other(64 << 10);
  ASSERT_TRUE(victim->grant(place.at(), 4096));
  EXPECT_EQ(hostile.attack(IBV_WR_RDMA_WRITE, reinterpret_cast<uint64_t>(other.at()),
                           hostile.granted().key, 64, 0),
            IBV_WC_REM_ACCESS_ERR);
}

// The end of the stream is the end of what may be written there.
TEST(HostileRdmaBulk, AfterTheEndOfTheStreamAGrantIsWorthNothing) {
  NEEDS_HOSTILE_ABLE(hostile, victim);
  const Owned place(64 << 10);
  ASSERT_TRUE(victim->grant(place.at(), 4096));
  const RdmaGrant grant = hostile.granted();
  int sockets[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
  RdmaStream stream(sockets[0], victim);
  stream.cut();
  hostile.memory()[0] = 77;
  EXPECT_NE(hostile.attack(IBV_WR_RDMA_WRITE, grant.address, grant.key, 64, 0), IBV_WC_SUCCESS);
  EXPECT_NE(place.at()[0], std::byte{77});
  for (int s : sockets) ::close(s);
}

// It grants memory that is not its own, or nowhere: its adapter refuses, and its session ends.
TEST(HostileRdmaBulk, AGrantThatIsALieEndsTheConnection) {
  NEEDS_HOSTILE_ABLE(hostile, victim);
  const wire::RdmaTerms& t = hostile.other();
  const RdmaGrant lie{0x1000, 0x1234, 1 << 20};
  std::memcpy(hostile.memory().data(), &lie, sizeof lie);
  EXPECT_EQ(hostile.attack(IBV_WR_RDMA_WRITE_WITH_IMM, t.area + RdmaMemory::grant_offset(0),
                           t.area_key, sizeof lie, kGrant),
            IBV_WC_SUCCESS);
  victim->readable();
  const Owned bulk(1 << 20, 15);
  write_kept(*victim, "", 0, bulk.at(), bulk.bytes());
  victim->flush();
  EXPECT_TRUE(victim->broken());
}

// ---- one that does nothing

// Another session's connection, on the same device.
bool carries() {
  RdmaPair pair;
  std::string error;
  if (!pair.open(&error)) return false;
  const auto sent = some_bytes(3 << 20, 16);
  std::vector<char> got(sent.size());
  std::thread writer([&] { write_all(*pair.ends[0], sent.data(), sent.size()); });
  const bool good = read_all(*pair.ends[1], got.data(), got.size()) && got == sent;
  writer.join();
  return good;
}

// It posts no receives; or it does, and never says that it has taken anything.
TEST(HostileRdma, OneThatTakesNothingHoldsUpItsOwnSessionUntilThatEnds) {
  for (int words : {0, 256}) {
    std::string error;
    HostileEnd hostile(&error);
    if (!hostile.there()) GTEST_SKIP() << "no RDMA here: " << error;
    auto victim = RdmaConnection::make(RdmaDevice::open({}, &error), &error);
    ASSERT_TRUE(victim) << error;
    hostile.meet(*victim, 1, words);
    int sockets[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
    victim->follow(sockets[0]);
    const Owned bulk(4 << 20, 17);
    std::atomic<bool> wrote{true}, back{false};
    std::thread writer([&] {
      wrote = write_kept(*victim, "", 0, bulk.at(), bulk.bytes());
      back = true;
    });
    EXPECT_TRUE(carries());
    EXPECT_FALSE(back) << "more was written than there is room for: " << victim->why();
    ::close(sockets[1]);  // its process ends
    writer.join();
    EXPECT_FALSE(wrote);
    victim->leave();
    ::close(sockets[0]);
  }
}

// Words of which none is nonsense, until no more come through; what was to come is still there.
TEST(HostileRdma, NoFloodRunsAQueueOver) {
  constexpr uint32_t kGreeting = 12u << 28;
  NEEDS_HOSTILE_ABLE(hostile, victim);
  const wire::RdmaTerms& t = hostile.other();
  ASSERT_EQ(hostile.attack(IBV_WR_RDMA_WRITE_WITH_IMM, t.area + kCreditPage, t.area_key, 8, 8),
            IBV_WC_SUCCESS);
  ibv_wc_status last = IBV_WC_SUCCESS;
  int went = 0;
  for (; went < 1000 && last == IBV_WC_SUCCESS; ++went)
    last = hostile.attack(IBV_WR_RDMA_WRITE_WITH_IMM, t.area, t.area_key, 0, kGreeting, false);
  EXPECT_EQ(last, IBV_WC_RNR_RETRY_EXC_ERR);
  EXPECT_LT(went, 400);
  EXPECT_EQ(read_some(*victim), 8);
  EXPECT_FALSE(victim->broken()) << victim->why();
}

// Whoever goes, in whatever state, leaves an adapter that others work with.
TEST(HostileRdma, EndsInEveryStateLeaveNothingBehind) {
  enum { kMade, kConnected, kGreeted, kGranted, kOffering, kWriting, kStates };
  for (int round = 0; round < 2; ++round)
    for (int state = 0; state < kStates; ++state) {
      NEEDS_RDMA(pair);
      const Owned bulk(4 << 20, 18);
      std::thread writer;
      if (state == kMade) {
        std::string error;
        ASSERT_TRUE(RdmaConnection::make(RdmaDevice::open({}, &error), &error)) << error;
        continue;
      }
      if (state >= kGreeted) {
        EXPECT_TRUE(pair.ends[0]->greet());
      }
      if (state == kGranted) {
        EXPECT_TRUE(pair.ends[1]->grant(bulk.at(), 1 << 20));
      }
      if (state == kOffering) pair.ends[0]->offer_parts();
      if (state >= kGranted)
        writer = std::thread([&] { write_kept(*pair.ends[0], "", 0, bulk.at(), bulk.bytes()); });
      sleep_ns(20'000'000);
      if (round % 2) pair.ends[1].reset();  // its own end, or only its process's socket
      shutdown(pair.sockets[1], SHUT_RDWR);
      if (writer.joinable()) writer.join();
    }
  EXPECT_TRUE(carries());
}

}  // namespace
}  // namespace sluice::channel
