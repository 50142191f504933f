// SPDX-License-Identifier: Apache-2.0
// The arguments of sluice-watch, which libcuda starts in a guest.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <string>

namespace sluice::client {
namespace {

struct Ended {
  int status;
  std::string said;
};

Ended watch(const std::string& arguments) {
  FILE* p = popen((SLUICE_WATCH_PROGRAM " " + arguments + " 2>&1").c_str(), "r");
  Ended ended{-1, ""};
  if (!p) return ended;
  for (int c = 0; (c = std::fgetc(p)) != EOF;) ended.said += static_cast<char>(c);
  const int status = pclose(p);
  if (WIFEXITED(status)) ended.status = WEXITSTATUS(status);
  return ended;
}

// A slot that is no number is not the first one, which is somebody else's.
TEST(Watch, TakesNumbersOnly) {
  for (const char* slot : {"abc", "''", "' 1'", "-1", "1x", "65536", "99999999999999999999"}) {
    const Ended ended = watch("/nonexistent " + std::string(slot) + " 1 2");
    EXPECT_EQ(ended.status, 2) << slot;
    EXPECT_NE(ended.said.find("SLOT is \""), std::string::npos) << ended.said;
    EXPECT_NE(ended.said.find("a number from 0 to 65535 is wanted"), std::string::npos);
  }
  EXPECT_EQ(
      watch("/nonexistent 1 4294967296 2").said,
      "sluice-watch: GENERATION is \"4294967296\"; a number from 0 to 4294967295 is wanted\n");
  EXPECT_EQ(watch("/nonexistent 1 1 self").said,
            "sluice-watch: PID is \"self\"; a number from 0 to 2147483647 is wanted\n");
  EXPECT_EQ(watch("/nonexistent 1 1 1").status, 1) << "there is no such region";
}

}  // namespace
}  // namespace sluice::client
