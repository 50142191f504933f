// SPDX-License-Identifier: Apache-2.0
// Stream capture: captures get nothing of Sluice's own, and what CUDA forbids meanwhile is refused
// before it is sent.
#include <algorithm>
#include <chrono>
#include <thread>

#include "tests/native/roundtrip/graphs.h"
#include "wire/graph_commands.h"

namespace sluice::test {
namespace {

// The worker captures in relaxed mode, whatever the application asked for.
TEST_F(Graphs, BeginIsSentAndForgottenAndRelaxed) {
  for (auto mode : {kGlobal, kThreadLocal, kRelaxed}) {
    recording().clear();
    EXPECT_EQ(captured(mode, [] {}), CUDA_SUCCESS);
    const Call& got = recording().only("cuStreamBeginCapture_v2");
    EXPECT_EQ(got.at<CUstream>(0), driver_of(world().stream));
    EXPECT_EQ(got.at<CUstreamCaptureMode>(1), kRelaxed);
    EXPECT_EQ(recording().calls_of("cuStreamEndCapture").size(), 1u);
    EXPECT_EQ(recording().calls_of("cuGraphDestroy").size(), 1u);
  }
}

// No mark, no measuring event, nothing but what the application did.
TEST_F(Graphs, NothingOfOurOwnGoesIntoACapture) {
  void* pinned = nullptr;
  ASSERT_EQ(cuMemHostAlloc(&pinned, 4096, 0), CUDA_SUCCESS);
  ScopedAnswer yes(SLUICE_ON(cuStreamIsCapturing), [&](CUstream s, CUstreamCaptureStatus* status) {
    *status =
        s == CU_STREAM_LEGACY ? CU_STREAM_CAPTURE_STATUS_NONE : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    return CUDA_SUCCESS;
  });
  EXPECT_EQ(
      captured(kGlobal,
               [&] {
                 recording().clear();
                 for (int i = 0; i < 200; ++i) ASSERT_EQ(launch(world().stream), CUDA_SUCCESS);
                 EXPECT_EQ(cuEventRecord(event_, world().stream), CUDA_SUCCESS);
                 EXPECT_EQ(cuStreamWaitEvent(side_, event_, 0), CUDA_SUCCESS);
                 EXPECT_EQ(cuMemcpyDtoHAsync_v2(pinned, world().memory, 64, side_), CUDA_SUCCESS);
                 EXPECT_EQ(cuMemsetD8Async(world().memory, 1, 64, side_), CUDA_SUCCESS);
                 for (const Call& c : recording().calls) {
                   const std::string name = c.name;
                   EXPECT_TRUE(name == "cuLaunchKernel" || name == "cuStreamIsCapturing" ||
                               name == "cuEventRecordWithFlags" || name == "cuStreamWaitEvent" ||
                               name == "cuMemcpyDtoHAsync_v2" || name == "cuMemsetD8Async")
                       << name;
                 }
                 EXPECT_EQ(recording().calls_of("cuLaunchKernel").size(), 200u);
               }),
      CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeHost(pinned), CUDA_SUCCESS);
}

TEST_F(Graphs, CapturedWorkIsNoWorkOfTheDevice) {
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  auto& d = *client::Session::get()->devices()[0];
  EXPECT_EQ(captured(kRelaxed, [&] { ASSERT_EQ(launch(world().stream), CUDA_SUCCESS); }),
            CUDA_SUCCESS);
  EXPECT_TRUE(client::Session::get()->work().idle(d));
  CUgraph graph = make_graph();
  CUgraphExec exec = nullptr;
  ASSERT_EQ(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphLaunch(exec, world().stream), CUDA_SUCCESS);
  EXPECT_FALSE(client::Session::get()->work().idle(d)) << "a run is work";
  EXPECT_EQ(recording().only("cuGraphLaunch").at<CUstream>(1), driver_of(world().stream));
  ASSERT_EQ(cuGraphExecDestroy(exec), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphExecDestroy(exec), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGraphLaunch(exec, world().stream), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphDestroy(graph), CUDA_ERROR_INVALID_VALUE);
}

// ---- what CUDA forbids

TEST_F(Graphs, UnsafeCallsByMode) {
  CUdeviceptr p = 0;
  const auto allocates = [&](CUresult wanted) {
    const CUresult e = cuMemAlloc_v2(&p, 512);
    EXPECT_EQ(e, wanted);
    if (e == CUDA_SUCCESS) {
      EXPECT_EQ(cuMemFree_v2(p), CUDA_SUCCESS);
    }
  };
  const CUresult refused = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  const CUresult broken = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  EXPECT_EQ(captured(kGlobal, [&] { allocates(refused); }), broken);
  EXPECT_EQ(captured(kThreadLocal, [&] { allocates(refused); }), broken);
  EXPECT_EQ(captured(kRelaxed, [&] { allocates(CUDA_SUCCESS); }), CUDA_SUCCESS);
  // From another thread: only a global capture minds, and only if that thread does too.
  const auto elsewhere = [&](CUresult wanted, CUstreamCaptureMode mode) {
    std::thread([&] {
      ASSERT_EQ(cuCtxSetCurrent(world().contexts[0]), CUDA_SUCCESS);
      ASSERT_EQ(cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
      allocates(wanted);
    }).join();
  };
  EXPECT_EQ(captured(kGlobal, [&] { elsewhere(refused, kGlobal); }), broken);
  EXPECT_EQ(captured(kGlobal, [&] { elsewhere(CUDA_SUCCESS, kThreadLocal); }), CUDA_SUCCESS);
  EXPECT_EQ(captured(kGlobal, [&] { elsewhere(CUDA_SUCCESS, kRelaxed); }), CUDA_SUCCESS);
  EXPECT_EQ(captured(kThreadLocal, [&] { elsewhere(CUDA_SUCCESS, kGlobal); }), CUDA_SUCCESS);
  // A thread that says that it knows what it does.
  CUstreamCaptureMode mode = kRelaxed;
  ASSERT_EQ(cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
  EXPECT_EQ(mode, kGlobal);
  EXPECT_EQ(captured(kGlobal, [&] { allocates(CUDA_SUCCESS); }), CUDA_SUCCESS);
  ASSERT_EQ(cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
  EXPECT_EQ(mode, kRelaxed);
}

TEST_F(Graphs, EveryUnsafeCallBreaksAGlobalCaptureUnsent) {
  void* pinned = nullptr;
  char pageable[64];
  CUmodule module = nullptr;
  ASSERT_EQ(cuEventRecord(event_, side_), CUDA_SUCCESS);
  const std::vector<std::pair<const char*, std::function<CUresult()>>> calls = {
      {"cuMemFree", [&] { return cuMemFree_v2(world().memory); }},
      {"cuMemHostAlloc", [&] { return cuMemHostAlloc(&pinned, 64, 0); }},
      {"cuMemHostRegister", [&] { return cuMemHostRegister_v2(pageable, 64, 0); }},
      {"cuEventQuery", [&] { return cuEventQuery(event_); }},
      {"cuEventSynchronize", [&] { return cuEventSynchronize(event_); }},
      {"cuStreamQuery", [&] { return cuStreamQuery(side_); }},
      {"cuStreamSynchronize", [&] { return cuStreamSynchronize(side_); }},
      {"cuStreamSynchronize, own", [&] { return cuStreamSynchronize(world().stream); }},
      {"cuStreamQuery, own", [&] { return cuStreamQuery(world().stream); }},
      {"cuCtxSynchronize", [&] { return cuCtxSynchronize(); }},
      {"cuMemcpyHtoD", [&] { return cuMemcpyHtoD_v2(world().memory, pageable, 64); }},
      {"cuModuleLoadData", [&] { return cuModuleLoadData(&module, ".version 8.0"); }},
  };
  for (const auto& [name, call] : calls) {
    const CUresult end = captured(kGlobal, [&, &call = call, name = name] {
      recording().clear();
      EXPECT_EQ(call(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) << name;
      EXPECT_TRUE(recording().calls.empty()) << name << " was sent";
      EXPECT_EQ(launch(world().stream), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED) << name;
      CUstreamCaptureStatus status;
      EXPECT_EQ(cuStreamIsCapturing(world().stream, &status), CUDA_SUCCESS);
      EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_INVALIDATED) << name;
    });
    EXPECT_EQ(end, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED) << name;
  }
}

TEST_F(Graphs, WholeContextsCannotBeWaitedForInAnyMode) {
  EXPECT_EQ(captured(kRelaxed,
                     [] { EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED); }),
            CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(Graphs, BeginAndEndInTheWrongPlace) {
  CUgraph graph = nullptr;
  EXPECT_EQ(cuStreamBeginCapture_v2(nullptr, kGlobal), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(cuStreamEndCapture(world().stream, &graph), CUDA_ERROR_ILLEGAL_STATE);
  EXPECT_EQ(captured(kGlobal,
                     [&] {
                       EXPECT_EQ(cuStreamBeginCapture_v2(world().stream, kGlobal),
                                 CUDA_ERROR_ILLEGAL_STATE);
                       ASSERT_EQ(cuEventRecord(event_, world().stream), CUDA_SUCCESS);
                       ASSERT_EQ(cuStreamWaitEvent(side_, event_, 0), CUDA_SUCCESS);
                       EXPECT_EQ(cuStreamEndCapture(side_, &graph),
                                 CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
                     }),
            CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  // Another thread ends it, and gets nothing.
  ASSERT_EQ(cuStreamBeginCapture_v2(world().stream, kGlobal), CUDA_SUCCESS);
  std::thread([&] {
    ASSERT_EQ(cuCtxSetCurrent(world().contexts[0]), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamEndCapture(world().stream, &graph), CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    EXPECT_EQ(graph, nullptr);
  }).join();
  EXPECT_EQ(cuStreamEndCapture(world().stream, &graph), CUDA_ERROR_ILLEGAL_STATE);
  ASSERT_EQ(cuStreamBeginCapture_v2(world().stream, kRelaxed), CUDA_SUCCESS);
  std::thread([&] {
    ASSERT_EQ(cuCtxSetCurrent(world().contexts[0]), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamEndCapture(world().stream, &graph), CUDA_SUCCESS);
  }).join();
  EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
}

TEST_F(Graphs, StreamsJoinByEvents) {
  EXPECT_EQ(captured(kGlobal,
                     [&] {
                       CUstreamCaptureStatus status;
                       cuuint64_t id = 0, side_id = 1;
                       ASSERT_EQ(cuEventRecord(event_, world().stream), CUDA_SUCCESS);
                       ASSERT_EQ(cuStreamWaitEvent(side_, event_, 0), CUDA_SUCCESS);
                       ASSERT_EQ(cuStreamGetCaptureInfo(world().stream, &status, &id),
                                 CUDA_SUCCESS);
                       ASSERT_EQ(cuStreamGetCaptureInfo(side_, &status, &side_id), CUDA_SUCCESS);
                       EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
                       EXPECT_EQ(id, side_id);
                       EXPECT_EQ(cuEventQuery(event_), CUDA_ERROR_CAPTURED_EVENT);
                     }),
            CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  // The event still names that capture, the streams do not.
  EXPECT_EQ(cuEventQuery(event_), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamWaitEvent(side_, event_, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(launch(side_), CUDA_SUCCESS);
  EXPECT_EQ(cuEventRecord(event_, side_), CUDA_SUCCESS);
  EXPECT_EQ(cuEventQuery(event_), CUDA_SUCCESS);
}

TEST_F(Graphs, DependenciesAcrossTheEdgeOfACapture) {
  ASSERT_EQ(cuEventRecord(event_, side_), CUDA_SUCCESS);
  EXPECT_EQ(captured(kGlobal,
                     [&] {
                       EXPECT_EQ(cuStreamWaitEvent(world().stream, event_, 0),
                                 CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
                     }),
            CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(captured(kGlobal,
                     [&] {
                       EXPECT_EQ(cuStreamWaitEvent(world().stream, event_, CU_EVENT_WAIT_EXTERNAL),
                                 CUDA_SUCCESS);
                     }),
            CUDA_SUCCESS);
  EXPECT_EQ(recording().calls_of("cuStreamWaitEvent").back()->at<unsigned>(2),
            unsigned{CU_EVENT_WAIT_EXTERNAL});
  // Two captures do not merge, and both are broken.
  ASSERT_EQ(cuStreamBeginCapture_v2(side_, kRelaxed), CUDA_SUCCESS);
  EXPECT_EQ(captured(kRelaxed,
                     [&] {
                       ASSERT_EQ(cuEventRecord(event_, world().stream), CUDA_SUCCESS);
                       EXPECT_EQ(cuStreamWaitEvent(side_, event_, 0),
                                 CUDA_ERROR_STREAM_CAPTURE_MERGE);
                     }),
            CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CUgraph graph = nullptr;
  EXPECT_EQ(cuStreamEndCapture(side_, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(Graphs, TheLegacyStreamAndBlockingStreamsThatCapture) {
  const CUresult implicit = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  EXPECT_EQ(captured(blocking_, kRelaxed, [&] { EXPECT_EQ(launch(nullptr), implicit); }),
            CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CUstreamCaptureStatus status;
  EXPECT_EQ(captured(blocking_, kRelaxed,
                     [&] { EXPECT_EQ(cuStreamIsCapturing(nullptr, &status), implicit); }),
            CUDA_SUCCESS)
      << "asking breaks nothing";
  EXPECT_EQ(captured(kRelaxed, [&] { EXPECT_EQ(launch(nullptr), CUDA_SUCCESS); }), CUDA_SUCCESS)
      << "a stream that does not block";
}

TEST_F(Graphs, EventsThatAGraphRecordsAreTheDriversToAnswer) {
  ASSERT_EQ(cuEventRecord(event_, side_), CUDA_SUCCESS);
  EXPECT_EQ(captured(kGlobal,
                     [&] {
                       EXPECT_EQ(
                           cuEventRecordWithFlags(event_, world().stream, CU_EVENT_RECORD_EXTERNAL),
                           CUDA_SUCCESS);
                     }),
            CUDA_SUCCESS);
  recording().clear();
  EXPECT_EQ(cuEventQuery(event_), CUDA_SUCCESS);
  EXPECT_EQ(recording().calls_of("cuEventQuery").size(), 1u);
}

// Freeing waits for the device, which a context that captures cannot be asked about as a whole.
TEST_F(Graphs, FreeingDuringARelaxedCapture) {
  CUdeviceptr p = 0;
  ASSERT_EQ(cuMemAlloc_v2(&p, 4 << 20), CUDA_SUCCESS);
  ASSERT_EQ(launch(side_), CUDA_SUCCESS);
  ScopedAnswer own(SLUICE_ON(cuStreamIsCapturing), [&, mine = driver_of(world().stream)](
                                                       CUstream s, CUstreamCaptureStatus* st) {
    *st = s == mine ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
  });
  EXPECT_EQ(captured(kRelaxed,
                     [&] {
                       recording().clear();
                       EXPECT_EQ(cuMemFree_v2(p), CUDA_SUCCESS);
                       EXPECT_TRUE(recording().calls_of("cuCtxSynchronize").empty());
                       const auto waits = recording().calls_of("cuStreamSynchronize");
                       const auto waited = [&](CUstream s) {
                         return std::any_of(waits.begin(), waits.end(),
                                            [&](const Call* c) { return c->at<CUstream>(0) == s; });
                       };
                       EXPECT_TRUE(waited(driver_of(side_)));
                       EXPECT_TRUE(waited(CU_STREAM_LEGACY));
                       EXPECT_FALSE(waited(driver_of(world().stream)));
                     }),
            CUDA_SUCCESS);
}

}  // namespace
}  // namespace sluice::test
