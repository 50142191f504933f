// SPDX-License-Identifier: Apache-2.0
// Streams, events, callbacks and stream memory operations: what runs before what, and what waits.
#include <atomic>
#include <chrono>
#include <ctime>
#include <thread>

#include "../native/channel/no_threads.h"
#include "gpu.h"

namespace sluice::softgpu_test {
namespace {

using namespace std::chrono_literals;

class Streams : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    ASSERT_EQ(CUDA_SUCCESS, cuMemHostAlloc(reinterpret_cast<void**>(&flag_), 4096, 0));
    flag_[0] = 0;
    flag_[1] = 0;
  }
  CUdeviceptr address(int index) { return reinterpret_cast<CUdeviceptr>(&flag_[index]); }
  // Holds the stream until open() is called.
  void close(CUstream stream, int index = 0) {
    ASSERT_EQ(CUDA_SUCCESS,
              cuStreamWaitValue32_v2(stream, address(index), 1, CU_STREAM_WAIT_VALUE_EQ));
  }
  void open(int index = 0) { __atomic_store_n(&flag_[index], 1u, __ATOMIC_SEQ_CST); }
  CUstream stream(unsigned flags) {
    CUstream made = nullptr;
    EXPECT_EQ(CUDA_SUCCESS, cuStreamCreate(&made, flags));
    return made;
  }
  uint32_t* flag_ = nullptr;
};

TEST_F(Streams, AWaitingStreamDelaysNoOther) {
  CUstream held = stream(CU_STREAM_NON_BLOCKING), free = stream(CU_STREAM_NON_BLOCKING);
  close(held);
  CHECK_CU(cuStreamWriteValue32_v2(free, address(1), 7, 0));
  CHECK_CU(cuStreamSynchronize(free));
  EXPECT_EQ(7u, flag_[1]);
  EXPECT_EQ(CUDA_ERROR_NOT_READY, cuStreamQuery(held));
  open();
  CHECK_CU(cuStreamSynchronize(held));
  EXPECT_EQ(CUDA_SUCCESS, cuStreamQuery(held));
}

// At the process's limit of threads: who waits for the work does it, and so does the stream's end.
TEST_F(Streams, DoWithoutThreadsWhereThereAreNone) {
  uint32_t* const words = flag_;
  {
    const test::NoThreads none;
    CUstream waited = stream(CU_STREAM_NON_BLOCKING), ended = stream(CU_STREAM_NON_BLOCKING);
    CHECK_CU(cuStreamWriteValue32_v2(waited, address(1), 7, 0));
    CHECK_CU(cuStreamSynchronize(waited));
    EXPECT_EQ(7u, words[1]);
    CHECK_CU(cuStreamWriteValue32_v2(ended, address(2), 8, 0));
    CHECK_CU(cuStreamDestroy_v2(ended));
    CHECK_CU(cuCtxSynchronize());
    EXPECT_EQ(8u, words[2]);
  }
  CUstream later = stream(CU_STREAM_NON_BLOCKING);
  CHECK_CU(cuStreamWriteValue32_v2(later, address(3), 9, 0));
  CHECK_CU(cuStreamSynchronize(later));
  EXPECT_EQ(9u, words[3]);
}

TEST_F(Streams, TheLegacyStreamWaitsForBlockingStreamsAndHoldsThemUp) {
  CUstream blocking = stream(CU_STREAM_DEFAULT), free = stream(CU_STREAM_NON_BLOCKING);
  close(blocking);
  CHECK_CU(cuMemsetD32Async(address(1), 5, 1, nullptr));
  CHECK_CU(cuMemsetD32Async(address(2), 6, 1, blocking));
  CHECK_CU(cuMemsetD32Async(address(3), 7, 1, free));
  CHECK_CU(cuStreamSynchronize(free));
  EXPECT_EQ(7u, flag_[3]);
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(0u, flag_[1]);
  open();
  CHECK_CU(cuStreamSynchronize(nullptr));
  EXPECT_EQ(5u, flag_[1]);
  CHECK_CU(cuStreamSynchronize(blocking));
  EXPECT_EQ(6u, flag_[2]);

  flag_[0] = flag_[1] = 0;
  close(nullptr);
  CHECK_CU(cuMemsetD32Async(address(1), 8, 1, blocking));
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(0u, flag_[1]);
  open();
  CHECK_CU(cuStreamSynchronize(blocking));
  EXPECT_EQ(8u, flag_[1]);
}

TEST_F(Streams, EventsOrderStreamsAndTellTheTime) {
  CUstream a = stream(CU_STREAM_NON_BLOCKING), b = stream(CU_STREAM_NON_BLOCKING);
  CUevent start = nullptr, end = nullptr;
  CHECK_CU(cuEventCreate(&start, CU_EVENT_DEFAULT));
  CHECK_CU(cuEventCreate(&end, CU_EVENT_DEFAULT));
  EXPECT_EQ(CUDA_SUCCESS, cuEventQuery(start));  // never recorded
  CHECK_CU(cuEventRecord(start, a));
  CHECK_CU(cuEventSynchronize(start));
  close(a);
  CHECK_CU(cuEventRecord(end, a));
  CHECK_CU(cuStreamWaitEvent(b, end, 0));
  CHECK_CU(cuMemsetD32Async(address(1), 3, 1, b));
  EXPECT_EQ(CUDA_ERROR_NOT_READY, cuEventQuery(end));
  float ms = 0;
  EXPECT_EQ(CUDA_ERROR_NOT_READY, cuEventElapsedTime_v2(&ms, start, end));
  std::this_thread::sleep_for(30ms);
  EXPECT_EQ(0u, flag_[1]);
  open();
  CHECK_CU(cuStreamSynchronize(b));
  EXPECT_EQ(3u, flag_[1]);
  CHECK_CU(cuEventSynchronize(end));
  CHECK_CU(cuEventElapsedTime_v2(&ms, start, end));
  EXPECT_GE(ms, 25.0f);
  EXPECT_LT(ms, 60000.0f);
  CHECK_CU(cuEventDestroy_v2(start));
  EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE, cuEventQuery(start));
}

TEST_F(Streams, HostFunctionsRunInOrderAndMayNotCallCuda) {
  struct State {
    uint32_t* flag;
    uint32_t seen = 0;
    CUresult inner = CUDA_SUCCESS;
  } state{flag_};
  CUstream s = stream(CU_STREAM_NON_BLOCKING);
  CHECK_CU(cuMemsetD32Async(address(1), 11, 1, s));
  CHECK_CU(cuLaunchHostFunc(
      s,
      [](void* data) {
        auto* st = static_cast<State*>(data);
        st->seen = st->flag[1];
        CUdeviceptr p = 0;
        st->inner = cuMemAlloc_v2(&p, 16);
        st->flag[1] = 12;
      },
      &state));
  uint32_t after = 0;
  CHECK_CU(cuMemcpyDtoHAsync_v2(&after, address(1), 4, s));
  CHECK_CU(cuStreamSynchronize(s));
  EXPECT_EQ(11u, state.seen);
  EXPECT_EQ(12u, after);
  EXPECT_EQ(CUDA_ERROR_NOT_PERMITTED, state.inner);
}

TEST_F(Streams, EveryConditionOfAWait) {
  CUstream s = stream(CU_STREAM_NON_BLOCKING);
  struct Case {
    unsigned flags;
    uint32_t value, never, then;
  } cases[] = {
      {CU_STREAM_WAIT_VALUE_GEQ, 5, 4, 6},
      {CU_STREAM_WAIT_VALUE_GEQ, 5, 0xfffffff0, 5},  // cyclic: far ahead is behind
      {CU_STREAM_WAIT_VALUE_EQ, 5, 6, 5},
      {CU_STREAM_WAIT_VALUE_AND, 6, 9, 2},
      {CU_STREAM_WAIT_VALUE_NOR, 0xf0, 0x0f | 0xffffff00, 0x0e | 0xffffff00},
  };
  for (const Case& c : cases) {
    __atomic_store_n(&flag_[0], c.never, __ATOMIC_SEQ_CST);
    CHECK_CU(cuStreamWaitValue32_v2(s, address(0), c.value, c.flags));
    std::this_thread::sleep_for(5ms);
    EXPECT_EQ(CUDA_ERROR_NOT_READY, cuStreamQuery(s)) << c.flags << " " << c.never;
    __atomic_store_n(&flag_[0], c.then, __ATOMIC_SEQ_CST);
    CHECK_CU(cuStreamSynchronize(s));
  }
  CUstreamBatchMemOpParams batch[2] = {};
  batch[0].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
  batch[0].writeValue.address = address(4);
  batch[0].writeValue.value64 = 1ull << 40;
  batch[1].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
  batch[1].waitValue.address = address(4);
  batch[1].waitValue.value64 = 1ull << 40;
  batch[1].waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
  CHECK_CU(cuStreamBatchMemOp_v2(s, 2, batch, 0));
  CHECK_CU(cuStreamSynchronize(s));
}

TEST_F(Streams, FreeWaitsForRunningKernels) {
  CUfunction f =
      function(load(one_kernel("WAIT: ld.volatile.global.u32 %r1, [%out]; setp.eq.u32 %p1, %r1, 0;"
                               "@%p1 bra WAIT; st.global.u32 [%in], %r1;")),
               "f");
  CUdeviceptr p = 0;
  CHECK_CU(cuMemAlloc_v2(&p, 64));
  CHECK_CU(launch(f, 1, 1, 0, nullptr, address(0), p));
  auto start = std::chrono::steady_clock::now();
  std::thread opener([this] {
    std::this_thread::sleep_for(30ms);
    open();
  });
  CHECK_CU(cuMemFree_v2(p));
  EXPECT_GE(std::chrono::steady_clock::now() - start, 25ms);
  opener.join();
  CHECK_CU(cuCtxSynchronize());
}

TEST_F(Streams, PageableSourcesMayBeReusedAtOnce) {
  CUstream s = stream(CU_STREAM_NON_BLOCKING);
  close(s);
  uint32_t source = 21;
  CHECK_CU(cuMemcpyHtoDAsync_v2(address(1), &source, 4, s));
  source = 99;
  open();
  CHECK_CU(cuStreamSynchronize(s));
  EXPECT_EQ(21u, flag_[1]);
}

TEST_F(Streams, PriorityFlagsAndOwnerAreRemembered) {
  int least = 1, greatest = 1;
  CHECK_CU(cuCtxGetStreamPriorityRange(&least, &greatest));
  EXPECT_LT(greatest, least);
  CUstream s = nullptr;
  CHECK_CU(cuStreamCreateWithPriority(&s, CU_STREAM_NON_BLOCKING, greatest - 10));
  int priority = 0;
  unsigned flags = 0;
  CUcontext context = nullptr;
  CHECK_CU(cuStreamGetPriority(s, &priority));
  CHECK_CU(cuStreamGetFlags(s, &flags));
  CHECK_CU(cuStreamGetCtx(s, &context));
  EXPECT_EQ(greatest, priority);
  EXPECT_EQ(1u, flags);
  EXPECT_EQ(context_, context);
  CHECK_CU(cuStreamDestroy_v2(s));
  EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE, cuStreamQuery(s));
}

TEST_F(Streams, IdleStreamsCostNoProcessorTime) {
  CUfunction f = function(load(one_kernel("st.global.u32 [%out], %r_tid;")), "f");
  for (int i = 0; i < 8; ++i) {
    CHECK_CU(launch(f, 8, 32, 0, stream(CU_STREAM_NON_BLOCKING), address(1), address(1)));
  }
  CHECK_CU(cuCtxSynchronize());
  std::clock_t before = std::clock();
  std::this_thread::sleep_for(200ms);
  EXPECT_LT(static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC, 0.005);
}

TEST_F(Streams, KernelsThatSleepCostNoProcessorTime) {
  CUfunction f = function(load(one_kernel("mov.u32 %r1, 300; mov.u32 %r2, 1000000;"
                                          "NAP: nanosleep.u32 %r2; sub.u32 %r1, %r1, 1;"
                                          "setp.ne.u32 %p1, %r1, 0; @%p1 bra NAP;")),
                          "f");
  const auto since = std::chrono::steady_clock::now();
  const std::clock_t before = std::clock();
  CHECK_CU(launch(f, 4, 64, 0, nullptr, address(0), address(1)));
  CHECK_CU(cuCtxSynchronize());
  const std::chrono::duration<double> slept = std::chrono::steady_clock::now() - since;
  EXPECT_GE(slept, 150ms);  // each nap is as long as it says, or half of it
  EXPECT_LT(static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC, slept.count() / 2);
}

// More blocks than the host has processors: the last is what all wait for.
TEST_F(Streams, BlocksThatSleepLetOthersBegin) {
  CUfunction f =
      function(load(one_kernel("mov.u32 %r1, %ctaid.x; setp.eq.u32 %p1, %r1, 23; @%p1 bra LAST;"
                               "mov.u32 %r2, 1000000; NAP: nanosleep.u32 %r2;"
                               "ld.volatile.global.u32 %r1, [%out]; setp.eq.u32 %p1, %r1, 0;"
                               "@%p1 bra NAP; ret; LAST: mov.u32 %r1, 1;"
                               "st.volatile.global.u32 [%out], %r1;")),
               "f");
  CHECK_CU(launch(f, 24, 1, 0, nullptr, address(0), address(1)));
  CHECK_CU(cuCtxSynchronize());
  EXPECT_EQ(1u, flag_[0]);
}

}  // namespace
}  // namespace sluice::softgpu_test
