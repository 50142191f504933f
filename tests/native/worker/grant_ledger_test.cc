// SPDX-License-Identifier: Apache-2.0
// The ledger of a job between processes: never more than the limit, also when one is killed at any
// moment, and nothing is refused that there is room for.
#include "worker/grant_ledger.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <ctime>
#include <functional>
#include <vector>

#include "tests/native/worker/ledger_page.h"

namespace sluice::worker {
namespace {

using Kind = GrantLedger::Kind;
constexpr uint64_t kSlab = 2 << 20, kLimit = 100 * kSlab;

std::unique_ptr<GrantLedger> member(int page, uint32_t slot) {
  std::string error;
  auto ledger = GrantLedger::open(dup(page), slot, &error);
  EXPECT_TRUE(ledger) << error;
  return ledger;
}

pid_t in_child(const std::function<int()>& work) {
  const pid_t pid = fork();
  if (pid == 0) _exit(work());
  return pid;
}

int status_of(pid_t pid) {
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(GrantLedger, SharesOneLimitByVgpuAndKind) {
  const int page = test::make_ledger_page();
  const auto one = member(page, 0), other = member(page, GrantLedger::kSlots - 1);
  EXPECT_TRUE(one->take(Kind::kMemory, 0, 60 * kSlab, kLimit));
  EXPECT_FALSE(other->take(Kind::kMemory, 0, 41 * kSlab, kLimit));
  EXPECT_TRUE(other->take(Kind::kMemory, 0, 40 * kSlab, kLimit));
  EXPECT_FALSE(one->take(Kind::kMemory, 0, 1, kLimit));
  EXPECT_EQ(one->used(Kind::kMemory, 0), kLimit);
  EXPECT_TRUE(one->take(Kind::kMemory, 63, kLimit, kLimit)) << "another vGPU";
  EXPECT_TRUE(one->take(Kind::kCode, 0, kLimit, kLimit)) << "another kind";
  one->give(Kind::kMemory, 0, 60 * kSlab);
  EXPECT_EQ(other->used(Kind::kMemory, 0), 40 * kSlab);
  EXPECT_TRUE(other->take(Kind::kMemory, 0, 60 * kSlab, kLimit));
  close(page);
}

TEST(GrantLedger, TakesNothingForOneThatIsNone) {
  std::string error;
  EXPECT_FALSE(GrantLedger::open(test::make_ledger_page(1), 0, &error));
  EXPECT_NE(error, "");
  EXPECT_FALSE(GrantLedger::open(test::make_ledger_page(GrantLedger::kMagic, 8192), 0, &error));
  EXPECT_FALSE(GrantLedger::open(test::make_ledger_page(), GrantLedger::kSlots, &error));
  EXPECT_FALSE(GrantLedger::open(open("/dev/null", O_RDWR | O_CLOEXEC), 0, &error));
}

TEST(GrantLedger, WordsThatNoWorkerOfOursWritesRefuseRatherThanGive) {
  const int page = test::make_ledger_page();
  const auto one = member(page, 0), hostile = member(page, 1);
  hostile->give(Kind::kMemory, 0, 1);  // wraps around
  EXPECT_EQ(one->used(Kind::kMemory, 0), ~uint64_t{0});
  EXPECT_TRUE(one->take(Kind::kMemory, 1, kLimit, kLimit));
  EXPECT_FALSE(one->take(Kind::kMemory, 0, kSlab, kLimit));
  close(page);
}

TEST(GrantLedger, ProcessesThatRaceGetExactlyWhatThereIs) {
  constexpr int kProcesses = 6, kRounds = 30;
  for (int round = 0; round < kRounds; ++round) {
    const int page = test::make_ledger_page();
    std::vector<pid_t> children;
    for (uint32_t i = 0; i < kProcesses; ++i)
      children.push_back(in_child([&] {
        const auto mine = member(page, i);
        int got = 0;
        while (mine->take(Kind::kMemory, 0, kSlab, kLimit)) ++got;
        return got;
      }));
    int all = 0;
    for (const pid_t child : children) all += status_of(child);
    EXPECT_EQ(all, 100);
    EXPECT_EQ(member(page, kProcesses)->used(Kind::kMemory, 0), kLimit);
    close(page);
  }
}

TEST(GrantLedger, AProcessKilledAnywhereLeavesTheOthersAndItsOwnWord) {
  for (int round = 0; round < 40; ++round) {
    const int page = test::make_ledger_page();
    const pid_t child = in_child([&] {
      const auto mine = member(page, 1);
      for (;;) {
        mine->take(Kind::kMemory, 0, kSlab, kLimit);
        mine->give(Kind::kMemory, 0, kSlab);
      }
      return 0;
    });
    const auto mine = member(page, 0);
    const timespec pause{0, 100'000L * (round + 1)};
    nanosleep(&pause, nullptr);
    kill(child, SIGKILL);
    status_of(child);
    const uint64_t left = mine->used(Kind::kMemory, 0);
    ASSERT_TRUE(left == 0 || left == kSlab) << left;
    // As the server clears it.
    const uint64_t zero = 0;
    ASSERT_EQ(pwrite(page, &zero, sizeof zero, GrantLedger::kHeaderBytes + sizeof zero), 8);
    ASSERT_TRUE(mine->take(Kind::kMemory, 0, kLimit, kLimit)) << "the lock went with its holder";
    close(page);
  }
}

}  // namespace
}  // namespace sluice::worker
