// SPDX-License-Identifier: Apache-2.0
// Variables of loaded code: a range is named only as far as one variable reaches, and goes with its
// code.
#include "worker/global_ranges.h"

#include <gtest/gtest.h>

namespace sluice::worker {
namespace {

TEST(GlobalRanges, AVariableReachesToItsEnd) {
  GlobalRanges globals;
  EXPECT_FALSE(globals.holds(0x1000, 1));
  globals.add(0x1000, 64, 1);
  globals.add(0x1040, 64, 2);
  EXPECT_TRUE(globals.holds(0x1000, 64));
  EXPECT_TRUE(globals.holds(0x103f, 1));
  EXPECT_TRUE(globals.holds(0x1040, 64));
  EXPECT_FALSE(globals.holds(0xfff, 1));
  EXPECT_FALSE(globals.holds(0x1000, 65)) << "into the next variable";
  EXPECT_FALSE(globals.holds(0x1080, 1));
  EXPECT_FALSE(globals.holds(0x1001, ~uint64_t{0})) << "around the end of all addresses";
}

TEST(GlobalRanges, GoWithTheirCode) {
  GlobalRanges globals;
  globals.add(0x1000, 64, 1);
  globals.add(0x2000, 64, 2);
  globals.add(0x3000, 64, 1);
  globals.drop_of(1);
  EXPECT_FALSE(globals.holds(0x1000, 1));
  EXPECT_TRUE(globals.holds(0x2000, 1));
  EXPECT_FALSE(globals.holds(0x3000, 1));
}

}  // namespace
}  // namespace sluice::worker
