// SPDX-License-Identifier: Apache-2.0
// Arguments of the processes that the server starts.
#include "process/options.h"

#include <gtest/gtest.h>

namespace sluice::process {
namespace {

// What is wrong with them; "" if nothing is.
std::string read_into(SessionProcess* process, std::vector<const char*> arguments) {
  std::string error;
  const std::vector<Option> known = options_of(process);
  std::vector<char*> given;
  for (const char* a : arguments) given.push_back(const_cast<char*>(a));
  return read_options(given, known, &error) ? "" : error;
}

TEST(Options, OfASession) {
  SessionProcess p;
  EXPECT_EQ(read_into(&p, {"--id", "w1", "--control", "5", "--uid", "4294967294", "--gid", "9",
                           "--cgroup", "/sys/fs/cgroup/x", "--sandbox", "off"}),
            "");
  EXPECT_EQ(p.id, "w1");
  EXPECT_EQ(p.control, 5);
  EXPECT_EQ(p.uid, 4294967294u);
  EXPECT_EQ(p.gid, 9u);
  EXPECT_EQ(p.cgroup, "/sys/fs/cgroup/x");
  EXPECT_FALSE(p.sandbox);
  EXPECT_EQ(read_into(&p, {"--sandbox", "on"}), "");
  EXPECT_TRUE(p.sandbox);
  EXPECT_EQ(read_into(&p, {}), "");
}

TEST(Options, WhatIsWrongIsNamed) {
  SessionProcess p;
  EXPECT_EQ(read_into(&p, {"--id", "w1", "--color", "red"}), "unknown option --color");
  EXPECT_EQ(read_into(&p, {"--id", "w1", "--control"}), "--control needs a value");
}

// What is no number is not 0: a worker whose account is 0 stays root.
TEST(Options, ANumberIsWholeAndInBounds) {
  const char* const accounts[] = {"abc", "",    "12x", " 12",        "+12",
                                  "-1",  "0x7", "1e3", "4294967295", "99999999999999999999"};
  for (const char* option : {"--uid", "--gid"})
    for (const char* value : accounts) {
      SessionProcess p;
      EXPECT_EQ(read_into(&p, {option, value}), std::string(option) + " is \"" + value +
                                                    "\"; a number from 0 to 4294967294 is wanted");
      EXPECT_EQ(p.uid + p.gid, 0u);
    }
  for (const char* value : {"socket", "", "5 ", "-1", "2147483648", "4294967301"}) {
    SessionProcess p;
    EXPECT_EQ(
        read_into(&p, {"--control", value}),
        std::string("--control is \"") + value + "\"; a number from 0 to 2147483647 is wanted");
    EXPECT_EQ(p.control, -1);
  }
}

TEST(Options, OneValueThatIsNoneIsEnough) {
  SessionProcess p;
  EXPECT_EQ(read_into(&p, {"--uid", "7", "--gid", "x", "--id", "w1"}),
            "--gid is \"x\"; a number from 0 to 4294967294 is wanted");
}

}  // namespace
}  // namespace sluice::process
