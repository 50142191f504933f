// SPDX-License-Identifier: Apache-2.0
// The records of a client's work, by the software GPU's CUPTI: threads give the GPU work while
// others fetch, set and ask. Its own process: CUPTI belongs to a process.
#include "worker/profile/node_cupti.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <string>
#include <thread>
#include <vector>

namespace sluice::worker {
namespace {

constexpr uint32_t kThreads = 3, kEach = 400;

TEST(NodeCupti, EachCallsWorkIsItsOwnWhoeverFetchesMeanwhile) {
  std::string error;
  const std::unique_ptr<Driver> driver = Driver::load(SLUICE_SOFTGPU, &error);
  ASSERT_TRUE(driver) << error;
  ASSERT_EQ(driver->cuInit(0), CUDA_SUCCESS);
  CUcontext context = nullptr;
  ASSERT_EQ(driver->cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  const uint64_t fills = uint64_t{1} << cupti::kMemset;
  NodeCupti& node = NodeCupti::get();
  const wire::ProfileState state = node.set(*driver, fills);
  ASSERT_NE(state.version, 0u);
  ASSERT_EQ(state.activities, fills);

  std::map<uint32_t, uint64_t> bytes_of;  // by correlation
  std::atomic<bool> over{false};
  const auto fetch = [&](bool forced) {
    for (const wire::ProfileRecord& r : node.fetch(forced).records) {
      EXPECT_EQ(r.kind, static_cast<uint32_t>(cupti::kMemset));
      EXPECT_TRUE(bytes_of.try_emplace(r.correlation, r.bytes).second)
          << "the call " << r.correlation << " did one thing";
    }
  };
  std::thread fetcher([&] {
    while (!over) {
      fetch(false);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  std::thread other([&] {
    while (!over) {
      EXPECT_EQ(node.set(*driver, fills).activities, fills);
      EXPECT_NE(node.now(), 0u);
      std::this_thread::yield();
    }
  });
  std::vector<std::thread> callers;
  for (uint32_t t = 0; t < kThreads; ++t)
    callers.emplace_back([&, t] {
      driver->cuCtxSetCurrent(context);
      CUstream stream = nullptr;
      CUdeviceptr memory = 0;
      ASSERT_EQ(driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
      ASSERT_EQ(driver->cuMemAlloc_v2(&memory, 4 * kThreads * kEach + 4), CUDA_SUCCESS);
      for (uint32_t i = 0; i < kEach; ++i) {
        const uint32_t call = 1 + t * kEach + i;
        const NodeCupti::Noted noted(call);
        EXPECT_EQ(driver->cuMemsetD32Async(memory, i, call, stream), CUDA_SUCCESS);
      }
      EXPECT_EQ(driver->cuStreamSynchronize(stream), CUDA_SUCCESS);
    });
  for (std::thread& caller : callers) caller.join();
  over = true;
  fetcher.join();
  other.join();
  fetch(true);
  fetch(true);
  EXPECT_FALSE(bytes_of.empty());
  for (const auto& [call, bytes] : bytes_of) {
    EXPECT_GE(call, 1u);
    EXPECT_LE(call, kThreads * kEach);
    EXPECT_EQ(bytes, uint64_t{4} * call) << "another call's work";
  }
  EXPECT_EQ(node.set(*driver, 0).activities, 0u);
}

}  // namespace
}  // namespace sluice::worker
