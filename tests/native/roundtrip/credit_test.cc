// SPDX-License-Identifier: Apache-2.0
// A session of a job backs no memory that it has not asked for, and what it gives back is the
// job's.
#include <gtest/gtest.h>

#include <cstring>

#include "tests/native/roundtrip/worker_rig.h"
#include "tests/native/worker/ledger_page.h"
#include "worker/library/charge.h"
#include "worker/session.h"

namespace sluice::test {
namespace {

using Kind = worker::GrantLedger::Kind;
constexpr uint64_t kLimit = 256ull << 20;

class Credit : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string error;
    const int page = make_ledger_page();
    other = worker::GrantLedger::open(dup(page), 1, &error);
    rig.session().ledger = worker::GrantLedger::open(page, 0, &error);
    ASSERT_TRUE(other && rig.session().ledger) << error;
    for (auto& v : rig.session().vgpus) {
      v->memory = worker::VgpuMemory(kLimit, 0);
      v->grant_index = 5 - v->index;  // the grant's order is not the session's
    }
  }
  template <class T>
  bool send(uint16_t function, bool answered, const T& body) {
    const auto lane = answered ? uint16_t{0} : wire::kNoLane;
    const wire::FrameHeader header{sizeof header + sizeof body, function, lane, 1, 1};
    return rig.dispatch(header, std::as_bytes(std::span(&body, 1)), &answer);
  }
  // The status of the answer; what the job has left in `left`.
  uint32_t ask(uint64_t bytes) {
    EXPECT_TRUE(send(wire::kMemoryCredit, true, wire::MemoryCredit{0, 0, bytes}));
    wire::MemoryCreditReply reply{};
    EXPECT_EQ(answer.body.size(), sizeof reply);
    std::memcpy(&reply, answer.body.data(), std::min(answer.body.size(), sizeof reply));
    left = reply.free_bytes;
    return answer.status;
  }
  uint64_t at() { return rig.session().vgpus[0]->window_begin + kSlab; }

  WorkerRig rig;
  std::unique_ptr<worker::GrantLedger> other;
  Answer answer;
  uint64_t left = 0;
};

TEST_F(Credit, IsSpentByBackingAndGoesBackWithTheMemory) {
  EXPECT_EQ(ask(0), CUDA_SUCCESS);
  EXPECT_EQ(left, kLimit);
  EXPECT_EQ(ask(3 * kSlab), CUDA_SUCCESS);
  EXPECT_EQ(left, kLimit - 3 * kSlab);
  EXPECT_TRUE(send(wire::kMemoryMap, false, wire::MemoryMap{0, 0, at(), 2 * kSlab}));
  EXPECT_EQ(other->used(Kind::kMemory, 5), 3 * kSlab);
  EXPECT_TRUE(send(wire::kMemoryUnmap, false, wire::MemoryMap{0, 0, at(), 2 * kSlab}));
  EXPECT_EQ(other->used(Kind::kMemory, 5), kSlab);
  EXPECT_TRUE(send(wire::kMemoryMap, false, wire::MemoryMap{0, 0, at(), kSlab}));
}

TEST_F(Credit, OfOthersIsRefusedToThisOne) {
  ASSERT_TRUE(other->take(Kind::kMemory, 5, kLimit - kSlab, kLimit));
  EXPECT_EQ(ask(2 * kSlab), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(left, kSlab);
  EXPECT_EQ(ask(~uint64_t{0}), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(ask(kSlab), CUDA_SUCCESS);
  other->give(Kind::kMemory, 5, kLimit - kSlab);
  EXPECT_EQ(ask(kLimit - kSlab), CUDA_SUCCESS);
}

TEST_F(Credit, MemoryWithoutItEndsTheSession) {
  EXPECT_EQ(ask(kSlab), CUDA_SUCCESS);
  EXPECT_FALSE(send(wire::kMemoryMap, false, wire::MemoryMap{0, 0, at(), 2 * kSlab}));
  EXPECT_NE(rig.session().reason().find("more than the vGPU's memory"), std::string::npos);
}

TEST_F(Credit, AllocationsWithoutAddressesNeedItToo) {
  const uint64_t id = 24ull << 40 | 1ull << 24 | 1;
  EXPECT_EQ(ask(kSlab), CUDA_SUCCESS);
  const wire::AllocationCreate tooMuch{id, 2 * kSlab, 0, 0};
  EXPECT_FALSE(send(wire::kAllocationCreate, false, tooMuch));
}

TEST_F(Credit, LibrariesTakeOfTheJobsAndNotOfTheClients) {
  using worker::Metered;
  auto& v = *rig.session().vgpus[0];
  ASSERT_EQ(ask(kSlab), CUDA_SUCCESS);
  ASSERT_TRUE(worker::take_for_library(rig.session(), v, Metered::kDevice, 10 * kSlab));
  EXPECT_EQ(other->used(Kind::kMemory, 5), 11 * kSlab);
  EXPECT_TRUE(send(wire::kMemoryMap, false, wire::MemoryMap{0, 0, at(), kSlab}));
  EXPECT_FALSE(worker::take_for_library(rig.session(), v, Metered::kDevice, kLimit - 10 * kSlab));
  ASSERT_TRUE(worker::take_for_library(rig.session(), v, Metered::kCode, kSlab));
  EXPECT_EQ(other->used(Kind::kCode, 5), kSlab);
  worker::give_for_library(rig.session(), v, Metered::kDevice, 10 * kSlab);
  worker::give_for_library(rig.session(), v, Metered::kCode, kSlab);
  EXPECT_EQ(other->used(Kind::kMemory, 5), kSlab);
  EXPECT_EQ(other->used(Kind::kCode, 5), 0u);
}

TEST_F(Credit, OneThatIsNoJobsHasAllOfItsVgpu) {
  rig.session().ledger.reset();
  rig.session().vgpus[0]->memory = worker::VgpuMemory(kLimit, kLimit);
  EXPECT_EQ(ask(kSlab), CUDA_ERROR_OUT_OF_MEMORY) << "there is no more to be had";
}

}  // namespace
}  // namespace sluice::test
