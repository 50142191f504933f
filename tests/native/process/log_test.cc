// SPDX-License-Identifier: Apache-2.0
// A client can have the same line written without end, and fills no disk with it.
#include "process/log.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "process/log_budget.h"
#include "tests/native/process/child_log.h"

namespace sluice::process {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;
const LogBudget::Kind kOne{"a.cc", 1}, kOther{"a.cc", 2};

TEST(LogBudget, SomeLinesOfAKindAreWrittenAndTheOthersCounted) {
  LogBudget budget;
  uint64_t now = 100 * kSecond;
  for (uint32_t i = 0; i < LogBudget::kLines; ++i) EXPECT_TRUE(budget.take_line(kOne, "one", now));
  for (int i = 0; i < 12'345; ++i) EXPECT_FALSE(budget.take_line(kOne, "the same", now));
  EXPECT_TRUE(budget.take_line(kOther, "other", now)) << "another kind is not silenced by it";
  std::vector<LogBudget::LeftOut> lines, text;
  budget.settle(now + kSecond, false, &lines, &text);
  EXPECT_TRUE(lines.empty()) << "they still come";
  now += LogBudget::kWindowNs;
  EXPECT_TRUE(budget.take_line(kOne, "one", now));
  budget.settle(now, false, &lines, &text);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].count, 12'345u);
  EXPECT_EQ(lines[0].window, 10u);
  EXPECT_EQ(lines[0].last, "the same");
  lines.clear();
  budget.settle(now + LogBudget::kWindowNs, true, &lines, &text);
  EXPECT_TRUE(lines.empty()) << "it was told";
}

TEST(LogBudget, StandardErrorIsBoundedByItsBytes) {
  LogBudget budget;
  const uint64_t now = 100 * kSecond;
  EXPECT_EQ(budget.take_text(1000, now), 1000u);
  EXPECT_EQ(budget.take_text(LogBudget::kTextBytes, now), LogBudget::kTextBytes - 1000);
  EXPECT_EQ(budget.take_text(5, now), 0u);
  EXPECT_EQ(budget.take_text(5, now + LogBudget::kWindowNs), 5u);
  std::vector<LogBudget::LeftOut> lines, text;
  budget.settle(now + LogBudget::kWindowNs, false, &lines, &text);
  ASSERT_EQ(text.size(), 1u);
  EXPECT_EQ(text[0].count, 1005u);
}

TEST(LogBudget, AWholeLogHasABoundThatIsSaidOnce) {
  LogBudget budget;
  bool first = true;
  size_t written = 0;
  while (budget.take_bytes(1 << 20, &first)) written += 1 << 20;
  EXPECT_EQ(written, LogBudget::kMostBytes);
  EXPECT_TRUE(first);
  EXPECT_FALSE(budget.take_bytes(1, &first));
  EXPECT_FALSE(first);
}

TEST(Log, TheSameLineAMillionTimesIsALittleText) {
  const std::string text = log_of([] {
    for (int i = 0; i < 1'000'000; ++i) log_error("ArenaRegister failed: " + std::to_string(i));
    log_last("session ended");
  });
  EXPECT_LT(text.size(), 10'000u);
  EXPECT_NE(text.find("ArenaRegister failed: 0\n"), std::string::npos);
  EXPECT_NE(text.find("more like this were left out in "), std::string::npos) << text;
  EXPECT_NE(text.find("ArenaRegister failed: 999999\n"), std::string::npos) << "an example";
  EXPECT_EQ(text.substr(text.size() - 14), "session ended\n");
}

TEST(Log, ALineIsALineAndNotALongOne) {
  const std::string text =
      log_of([] { log_info("first\nINFO forged " + std::string(100'000, 'x')); });
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  EXPECT_LT(text.size(), 3000u);
}

}  // namespace
}  // namespace sluice::process
