// SPDX-License-Identifier: Apache-2.0
// How the worker reads a command's body: never beyond its end.
#include "worker/decoder.h"

#include <gtest/gtest.h>

#include <vector>

namespace sluice::worker {
namespace {

struct Fixed {
  uint64_t a;
  uint32_t b, c;
};

TEST(Decoder, ReadsPieceByPieceAndStopsAtTheEnd) {
  alignas(8) std::byte body[40];
  for (size_t i = 0; i < sizeof body; ++i) body[i] = static_cast<std::byte>(i);
  Decoder d(body);
  const Fixed& f = d.fixed<Fixed>();
  EXPECT_EQ(f.b, 0x0b0a0908u);
  EXPECT_EQ(d.bytes(0).size(), 0u);
  const auto piece = d.bytes(20);
  ASSERT_EQ(piece.size(), 20u);
  EXPECT_EQ(piece[0], std::byte{16});
  EXPECT_TRUE(d.ok());
  EXPECT_EQ(d.bytes(5).size(), 0u) << "four are left";
  EXPECT_FALSE(d.ok());
  d.bytes(4);
  EXPECT_FALSE(d.ok()) << "it stays so";
}

TEST(Decoder, ACutPieceReadsAsZero) {
  std::vector<std::byte> body(sizeof(Fixed) - 1, std::byte{0xff});
  Decoder d(body);
  EXPECT_EQ(d.fixed<Fixed>().a, 0u);
  EXPECT_FALSE(d.ok());
}

TEST(Decoder, HugeLengthsDoNotWrap) {
  alignas(8) std::byte body[16] = {};
  for (uint64_t n : {uint64_t{17}, ~uint64_t{0}, uint64_t{1} << 63, ~uint64_t{0} - 15}) {
    Decoder d(body);
    EXPECT_TRUE(d.bytes(n).empty());
    EXPECT_FALSE(d.ok()) << n;
  }
  Decoder none({});
  EXPECT_TRUE(none.ok());
  EXPECT_TRUE(none.bytes(0).empty());
  EXPECT_TRUE(none.ok());
  none.fixed<uint64_t>();
  EXPECT_FALSE(none.ok());
}

}  // namespace
}  // namespace sluice::worker
