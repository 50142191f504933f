// SPDX-License-Identifier: Apache-2.0
// Whoever holds a gate, releases it or asks what passed it waits for nobody who waits for the GPU.
#include "worker/gate.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace sluice::worker {
namespace {

using namespace std::chrono_literals;

std::atomic<bool> g_waits{false}, g_done{false};

TEST(Gate, AnswersWhileALaunchWaitsForTheGpu) {
  Driver d;
  static uintptr_t next = 0;
  d.cuEventCreate = [](CUevent* e, unsigned) {
    *e = reinterpret_cast<CUevent>(++next);
    return CUDA_SUCCESS;
  };
  d.cuEventRecord = [](CUevent, CUstream) { return CUDA_SUCCESS; };
  d.cuEventQuery = [](CUevent) { return CUDA_ERROR_NOT_READY; };
  d.cuEventSynchronize = [](CUevent) {
    g_waits = true;
    while (!g_done) std::this_thread::sleep_for(1ms);
    return CUDA_SUCCESS;
  };
  d.cuEventElapsedTime_v2 = [](float* ms, CUevent, CUevent) {
    *ms = 1;
    return CUDA_SUCCESS;
  };
  Gate gate(d);
  std::thread leader([&] {
    while (!g_done) {
      gate.pass(nullptr, {}).issued();
    }
  });
  while (!g_waits) std::this_thread::sleep_for(1ms);
  std::atomic<bool> answered{false};
  std::thread control([&] {
    gate.hold();
    gate.release();
    EXPECT_GE(gate.gpu_busy_ms(), 0);
    answered = true;
  });
  for (int i = 0; i < 5000 && !answered; ++i) std::this_thread::sleep_for(1ms);
  EXPECT_TRUE(answered) << "the control thread waits for a kernel";
  g_done = true;
  leader.join();
  control.join();
}

}  // namespace
}  // namespace sluice::worker
