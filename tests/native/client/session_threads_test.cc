// SPDX-License-Identifier: Apache-2.0
// One session used by several threads, against the worker's real handlers: what is destroyed and
// made anew at once must reach the worker in that order.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "tests/native/roundtrip/loopback_session.h"

namespace sluice::test {
namespace {

class SessionThreads : public RoundTrip {
 protected:
  template <class F>
  static void on_threads(int count, F&& f) {
    std::vector<std::thread> threads;
    for (int t = 0; t < count; ++t)
      threads.emplace_back([&] {
        ASSERT_EQ(cuCtxSetCurrent(world().contexts[0]), CUDA_SUCCESS);
        f();
      });
    for (auto& t : threads) t.join();
  }
};

TEST_F(SessionThreads, EventsAndStreamsComeAndGoOnManyThreads) {
  recording().writing_down = false;
  on_threads(6, [] {
    for (int i = 0; i < 4000; ++i) {
      CUevent event = nullptr;
      CUstream stream = nullptr;
      ASSERT_EQ(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
      ASSERT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
      ASSERT_EQ(cuEventRecord(event, stream), CUDA_SUCCESS);
      ASSERT_EQ(cuStreamDestroy_v2(stream), CUDA_SUCCESS);
      ASSERT_EQ(cuEventDestroy_v2(event), CUDA_SUCCESS);
    }
  });
  recording().writing_down = true;
}

TEST_F(SessionThreads, ThreadsEndWithTheirOwnStreams) {
  recording().writing_down = false;
  for (int round = 0; round < 50; ++round)
    on_threads(4, [] {
      ASSERT_EQ(cuMemsetD8Async(world().memory, 0, 16, CU_STREAM_PER_THREAD), CUDA_SUCCESS);
    });
  recording().writing_down = true;
}

TEST_F(SessionThreads, AStreamThatTookADestroyedOnesPlaceDoesNotAnswerForIt) {
  // Only events tell of progress here, and they tell that everything before them on their stream is
  // done.
  ScopedAnswer writes(SLUICE_ON(cuStreamWriteValue64_v2),
                      [](CUstream, CUdeviceptr at, cuuint64_t value, unsigned) {
                        reinterpret_cast<std::atomic<uint64_t>*>(at)->store(value);
                        return CUDA_SUCCESS;
                      });
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  CUdeviceptr memory = 0;
  ASSERT_EQ(cuMemAlloc_v2(&memory, 4 << 20), CUDA_SUCCESS);
  CUstream first = nullptr, second = nullptr;
  CUevent event = nullptr;
  ASSERT_EQ(cuEventCreate(&event, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamCreate(&first, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD8Async(memory, 1, 4 << 20, first), CUDA_SUCCESS);  // takes for ever
  ASSERT_EQ(cuStreamDestroy_v2(first), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamCreate(&second, 0), CUDA_SUCCESS);
  EXPECT_EQ(id(first) & 0xffffff, id(second) & 0xffffff)
      << "the same place, or this test shows nothing";
  ASSERT_EQ(cuMemsetD8Async(world().memory, 1, 16, second), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(event, second), CUDA_SUCCESS);
  ASSERT_EQ(cuEventSynchronize(event), CUDA_SUCCESS);
  seen().clear();
  ASSERT_EQ(cuMemFree_v2(memory), CUDA_SUCCESS);
  EXPECT_EQ(std::count(seen().begin(), seen().end(), wire::kDeviceIdle), 1)
      << "freed under a running fill";
  ASSERT_EQ(cuStreamDestroy_v2(second), CUDA_SUCCESS);
  ASSERT_EQ(cuEventDestroy_v2(event), CUDA_SUCCESS);
}

TEST_F(SessionThreads, AChildOfForkHasNoSessionAndHarmsNone) {
  void* pinned = nullptr;
  ASSERT_EQ(cuMemHostAlloc(&pinned, 4096, 0), CUDA_SUCCESS);
  seen().clear();
  const pid_t child = fork();
  if (child == 0) {
    CUdeviceptr memory = 0;
    void* at = nullptr;
    int count = 0;
    CUstream stream = nullptr;
    const CUresult all[] = {cuInit(0),
                            cuMemAlloc_v2(&memory, 4096),
                            cuMemHostAlloc(&at, 4096, 0),
                            cuMemFree_v2(world().memory),
                            cuStreamCreate(&stream, 0),
                            cuStreamSynchronize(world().stream),
                            cuEventQuery(world().event),
                            cuDeviceGetCount(&count),
                            cuMemcpyHtoD_v2(world().memory, &count, sizeof count),
                            cuCtxSynchronize()};
    int wrong = 0;
    for (CUresult e : all) wrong += e != CUDA_ERROR_NOT_INITIALIZED;
    _exit(wrong);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "the child died by signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0) << "calls that did not say CUDA_ERROR_NOT_INITIALIZED";
  EXPECT_TRUE(seen().empty());
  EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS) << "the parent goes on";
  EXPECT_EQ(cuMemFreeHost(pinned), CUDA_SUCCESS);
}

// A device's own pools and those of the host's memory look at the same streams, each under a lock
// of its own.
TEST_F(SessionThreads, PoolsOfDeviceAndHostShareStreams) {
  recording().writing_down = false;
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location.type = CU_MEM_LOCATION_TYPE_HOST;
  CUmemoryPool pool = nullptr;
  ASSERT_EQ(cuMemPoolCreate(&pool, &props), CUDA_SUCCESS);
  CUstream streams[2];
  for (CUstream& stream : streams)
    ASSERT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  std::atomic<unsigned> next{0};
  on_threads(4, [&] {
    const unsigned own = next++;
    CUevent event = nullptr;
    ASSERT_EQ(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    for (unsigned i = 0; i < 300; ++i) {
      const CUstream mine = streams[(own + i) % 2], other = streams[(own + i + 1) % 2];
      CUdeviceptr pinned = 0, device = 0;
      ASSERT_EQ(cuMemAllocFromPoolAsync(&pinned, 64 + 4096 * (i % 7), pool, mine), CUDA_SUCCESS);
      ASSERT_EQ(cuMemAllocAsync(&device, 64 + 4096 * (i % 5), mine), CUDA_SUCCESS);
      *reinterpret_cast<unsigned*>(pinned) = own;
      ASSERT_EQ(cuMemcpyHtoDAsync_v2(device, reinterpret_cast<void*>(pinned), 64, mine),
                CUDA_SUCCESS);
      ASSERT_EQ(cuEventRecord(event, mine), CUDA_SUCCESS);
      ASSERT_EQ(cuStreamWaitEvent(other, event, 0), CUDA_SUCCESS);
      EXPECT_EQ(*reinterpret_cast<unsigned*>(pinned), own);
      ASSERT_EQ(cuMemFreeAsync(device, mine), CUDA_SUCCESS);
      ASSERT_EQ(cuMemFreeAsync(pinned, i % 3 ? mine : other), CUDA_SUCCESS);
      if (i % 16 == 0) {
        ASSERT_EQ(cuMemPoolTrimTo(pool, 0), CUDA_SUCCESS);
      }
      if (i % 32 == 0) {
        ASSERT_EQ(cuStreamSynchronize(mine), CUDA_SUCCESS);
      }
    }
    ASSERT_EQ(cuEventDestroy_v2(event), CUDA_SUCCESS);
  });
  for (const CUstream stream : streams) EXPECT_EQ(cuStreamDestroy_v2(stream), CUDA_SUCCESS);
  EXPECT_EQ(cuMemPoolDestroy(pool), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  recording().writing_down = true;
}

TEST_F(SessionThreads, SizesThatWrapAreTheCallersMistake) {
  const CUdeviceptr at = world().memory;
  EXPECT_EQ(cuMemsetD32_v2(at, 1, (size_t{1} << 62) + 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemsetD16_v2(at, 1, size_t{1} << 63), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemsetD2D8_v2(at, size_t{1} << 63, 1, 4, 3), CUDA_ERROR_INVALID_VALUE);
  CUDA_MEMCPY2D p{};
  p.srcMemoryType = p.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  p.srcDevice = p.dstDevice = at;
  p.WidthInBytes = 16, p.Height = 3;
  p.srcPitch = p.dstPitch = size_t{1} << 63;
  EXPECT_EQ(cuMemcpy2D_v2(&p), CUDA_ERROR_INVALID_VALUE);
  p.srcPitch = p.dstPitch = 16, p.Height = ~size_t{0};
  EXPECT_EQ(cuMemcpy2D_v2(&p), CUDA_ERROR_INVALID_VALUE);
}

}  // namespace
}  // namespace sluice::test
