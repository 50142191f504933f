// SPDX-License-Identifier: Apache-2.0
// What the server's message says that a session is.
#include "worker/session_plan.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <string>

#include "process/control.h"
#include "wire/protocol.h"

namespace sluice::worker {
namespace {

TEST(SessionPlan, IsWhatTheMessageSays) {
  const SessionPlan plan = read_plan({"session",
                                      {{"id", "1f"},
                                       {"grant", "g-1"},
                                       {"channel", "tcp"},
                                       {"grant_vgpus", "3"},
                                       {"windows", "5"},
                                       {"first_window", "3"},
                                       {"vgpus", "2"},
                                       {"vgpu.0.device", "GPU-a"},
                                       {"vgpu.0.memory_mib", "4096"},
                                       {"vgpu.0.compute_percent", "50"},
                                       {"vgpu.0.place", "2"},
                                       {"vgpu.1.device", "GPU-b"},
                                       {"vgpu.1.memory_mib", "1024"}},
                                      {}});
  EXPECT_EQ(plan.id, "1f");
  EXPECT_EQ(plan.grant, "g-1");
  EXPECT_EQ(plan.channel, "tcp");
  EXPECT_EQ(plan.grant_vgpus, 3u);
  EXPECT_EQ(plan.windows, 5u);
  EXPECT_EQ(plan.first_window, 3u);
  ASSERT_EQ(plan.vgpus.size(), 2u);
  EXPECT_EQ(plan.vgpus[0].device, "GPU-a");
  EXPECT_EQ(plan.vgpus[0].memory_mib, 4096u);
  EXPECT_EQ(plan.vgpus[0].compute_percent, 50u);
  EXPECT_EQ(plan.vgpus[0].grant_index, 2u);
  EXPECT_EQ(plan.vgpus[1].compute_percent, 100u) << "a whole GPU's, where nothing is said";
  EXPECT_EQ(plan.vgpus[1].grant_index, 1u) << "its own place";
}

TEST(SessionPlan, SaysTheClientsCudaVersion) {
  std::string request(2 * sizeof(wire::OpenSession), '0');
  request.replace(2 * offsetof(wire::OpenSession, cuda_version), 4, "3a2f");
  EXPECT_EQ(read_plan({"session", {{"vgpus", "1"}, {"request", request}}, {}}).cuda_version,
            12090u);
  EXPECT_EQ(read_plan({"session", {{"vgpus", "1"}}, {}}).cuda_version, 0u);
  EXPECT_EQ(read_plan({"session", {{"vgpus", "1"}, {"request", "3a2f"}}, {}}).cuda_version, 0u);
  request.replace(2 * offsetof(wire::OpenSession, cuda_version), 4, "zz2f");
  EXPECT_EQ(read_plan({"session", {{"vgpus", "1"}, {"request", request}}, {}}).cuda_version, 0u);
}

TEST(SessionPlan, MergesLaunchesWhereServerAndClientWantIt) {
  const auto merging = [](const std::string& server, uint8_t flags) {
    std::string request(2 * sizeof(wire::OpenSession), '0');
    static constexpr char kDigits[] = "0123456789abcdef";
    // The second byte of the flags, in which both bits are.
    request[2 * offsetof(wire::OpenSession, flags) + 2] = kDigits[flags >> 4];
    request[2 * offsetof(wire::OpenSession, flags) + 3] = kDigits[flags & 15];
    return read_plan(
               {"session", {{"vgpus", "1"}, {"request", request}, {"merge_launches", server}}, {}})
        .merging;
  };
  constexpr uint8_t kWanted = wire::kMergeLaunches >> 8, kAtOnce = wire::kMergeAtOnce >> 8;
  EXPECT_EQ(merging("auto", kWanted), Merging::kAuto);
  EXPECT_EQ(merging("auto", kWanted | kAtOnce), Merging::kForce);
  EXPECT_EQ(merging("auto", 0), Merging::kOff);
  EXPECT_EQ(merging("auto", kAtOnce), Merging::kOff);
  EXPECT_EQ(merging("off", kWanted), Merging::kOff);
  EXPECT_EQ(merging("", kWanted), Merging::kOff) << "an earlier server's";
}

TEST(SessionPlan, OfAnEarlierServerHasNoGrantOfOthers) {
  const SessionPlan plan = read_plan({"session", {{"vgpus", "1"}}, {}});
  EXPECT_EQ(plan.grant_vgpus, 0u);
  EXPECT_EQ(plan.windows, 0u) << "nor vGPUs of other nodes";
  ASSERT_EQ(plan.vgpus.size(), 1u);
  EXPECT_EQ(plan.vgpus[0].memory_mib, 0u);
}

}  // namespace
}  // namespace sluice::worker
