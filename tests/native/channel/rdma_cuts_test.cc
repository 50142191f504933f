// SPDX-License-Identifier: Apache-2.0
// A session's two streams whose RDMA connections are cut with any piece: frames of all sizes, and
// bulk between memory of Sluice's own that is granted, offered, or goes through the ring. What
// arrives is what was sent, once and in order; memory that was given back is not sent again.
#include "tests/native/channel/rdma_cuts.h"

#include <cstdlib>
#include <deque>

namespace sluice::channel {
namespace {

using namespace resumable;

constexpr size_t kMost = 3 << 19, kShift = 60'000, kPlace = 2 << 20;
constexpr uint64_t kPatienceNs = 12'000'000'000;
constexpr uint32_t kEnd = 0xffffffff;

struct Head {
  uint32_t bytes, number;
};

// What both sides know: a frame's content by its number.
struct Content {
  const Owned pattern{kMost + kShift, 11};
  const std::byte* of(uint32_t number) const { return pattern.at(number * 997u % kShift); }
};

int wanted_breaks() {
  const char* said = std::getenv("SLUICE_TEST_BREAKS");
  return said ? std::atoi(said) : 60;
}

class RdmaCut : public testing::TestWithParam<uint64_t> {
 protected:
  // Frames until enough was cut; then says how many there were.
  void send(RdmaCuts* cuts, int side, int breaks) {
    ResumableStream& stream = *cuts->streams[side];
    std::mt19937 random(static_cast<unsigned>(side) + 100);
    const Owned own(kMost);
    const uint64_t until = now_ns() + kPatienceNs;
    for (Head head{0, 0};; ++head.number) {
      const bool enough = cuts->over_rdma > breaks || now_ns() > until || cuts->failed;
      const unsigned kind = random() % 6;
      const size_t most = kind == 0 ? kMost : kind < 3 ? 60'000 : 300;
      head.bytes = enough ? kEnd : static_cast<uint32_t>(1 + random() % most);
      const std::byte* body = content_.of(head.number);
      iovec parts[2] = {{&head, sizeof head},
                        {const_cast<std::byte*>(body), enough ? 0 : head.bytes}};
      if (!enough && random() % 2 == 0) {  // its memory is the caller's again
        std::memcpy(own.at(), body, head.bytes);
        parts[1].iov_base = own.at();
        ASSERT_TRUE(stream.write_lent(parts, 2, {}));
        ASSERT_TRUE(stream.settle());
        std::memset(own.at(), 0x5a, head.bytes);
      } else {  // kept for as long as it is needed
        ASSERT_TRUE(stream.write_lent(parts, 2, std::shared_ptr<const void>(body, [](auto*) {})));
      }
      if (enough) break;
    }
    ASSERT_TRUE(stream.settle());
  }

  static void read_exactly(ResumableStream& stream, void* to, size_t bytes) {
    for (size_t have = 0; have < bytes;) {
      const iovec part{static_cast<std::byte*>(to) + have, bytes - have};
      const ssize_t got = stream.read(&part, 1);
      ASSERT_GT(got, 0);
      have += static_cast<size_t>(got);
    }
  }

  // As a worker does, of which places are granted ahead, or as a client, to which parts are
  // offered.
  void receive(RdmaCuts* cuts, int side) {
    ResumableStream& stream = *cuts->streams[side];
    const Owned elsewhere(kMost), memory(3 * kPlace);
    struct Place {
      std::byte* at;
      std::weak_ptr<RdmaConnection> granted_by;
    };
    std::deque<Place> places;
    for (size_t i = 0; i < 3; ++i) places.push_back({memory.at(i * kPlace), {}});
    for (uint32_t number = 0;; ++number) {
      if (const auto end = side == 1 ? cuts->end(side) : nullptr)
        for (size_t i = 0; i < 2; ++i)
          if (places[i].granted_by.lock() != end && end->grant(places[i].at, kPlace))
            places[i].granted_by = end;
      Head head{};
      ASSERT_NO_FATAL_FAILURE(read_exactly(stream, &head, sizeof head));
      ASSERT_EQ(head.number, number) << "nothing is lost, and nothing comes twice";
      if (head.bytes == kEnd) return;
      ASSERT_LE(head.bytes, kMost);
      std::byte* to = elsewhere.at();
      if (std::byte* const placed = side == 1 ? stream.await_placed(head.bytes) : nullptr)
        for (auto place = places.begin(); place != places.end(); ++place)
          if (place->at == placed) {
            to = placed;
            places.push_back({placed, {}});
            places.erase(place);
            break;
          }
      ASSERT_NO_FATAL_FAILURE(read_exactly(stream, to, head.bytes));
      const std::byte* const wanted = content_.of(number);
      const auto [got, first] = std::mismatch(to, to + head.bytes, wanted);
      size_t wrong = 0, given_back = 0;
      for (size_t i = 0; got != to + head.bytes && i < head.bytes; ++i) {
        wrong += to[i] != wanted[i];
        given_back += to[i] != wanted[i] && to[i] == std::byte{0x5a};
      }
      ASSERT_EQ(wrong, 0u) << given_back << " of them from memory that was given back, from byte "
                           << first - wanted << " on; frame " << number << " of " << head.bytes
                           << " bytes to side " << side
                           << (to == elsewhere.at() ? "" : ", in its place");
    }
  }

  const Content content_;
};

TEST_P(RdmaCut, WhatArrivesIsWhatWasSent) {
  const int breaks = wanted_breaks() / 3;
  RdmaCuts cuts(GetParam(), 7);
  { NEEDS_RDMA(pair); }
  cuts.start();
  std::atomic<int> sending{2};
  std::vector<std::thread> threads;
  for (int side : {0, 1}) {
    threads.emplace_back([&, side] {
      send(&cuts, side, breaks);
      --sending;
    });
    threads.emplace_back([&, side] {
      receive(&cuts, side);
      if (!HasFatalFailure()) listen(cuts.streams[side].get(), sending);
    });
  }
  for (std::thread& t : threads) t.join();
  cuts.stop();
  EXPECT_EQ(cuts.error, "");
  std::cout << cuts.over_rdma << " RDMA connections of at most " << GetParam() << " pieces, "
            << cuts.left_early << " left before their end, " << cuts.placed
            << " bytes straight to their place\n";
  EXPECT_GT(cuts.over_rdma, 3);
}
INSTANTIATE_TEST_SUITE_P(After, RdmaCut, testing::Values(6, 40, 250));

}  // namespace
}  // namespace sluice::channel
