// SPDX-License-Identifier: Apache-2.0
// Stream capture and graphs: what the application builds is what the driver receives, captures get
// nothing of Sluice's own, and what CUDA forbids meanwhile is refused before it is sent.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "tests/native/roundtrip/loopback_session.h"
#include "wire/graph_commands.h"

namespace sluice::test {
namespace {

constexpr auto kGlobal = CU_STREAM_CAPTURE_MODE_GLOBAL;
constexpr auto kThreadLocal = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
constexpr auto kRelaxed = CU_STREAM_CAPTURE_MODE_RELAXED;

class Graphs : public RoundTrip {
 protected:
  void SetUp() override {
    RoundTrip::SetUp();
    for (CUstream* s : {&side_, &other_})
      ASSERT_EQ(cuStreamCreate(s, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamCreate(&blocking_, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuEventCreate(&event_, 0), CUDA_SUCCESS);
    recording().clear();
    seen().clear();
  }
  void TearDown() override {
    for (CUstream s : {side_, other_, blocking_}) EXPECT_EQ(cuStreamDestroy_v2(s), CUDA_SUCCESS);
    EXPECT_EQ(cuEventDestroy_v2(event_), CUDA_SUCCESS);
    EXPECT_FALSE(client::Session::get()->captures.any());
    RoundTrip::TearDown();
  }
  CUresult launch(CUstream stream) {
    uint64_t a = 1, b = 2;
    uint32_t c = 3;
    void* params[] = {&a, &b, &c};
    return cuLaunchKernel(world().function, 1, 1, 1, 1, 1, 1, 0, stream, params, nullptr);
  }
  // Begins, lets `body` do something, and says what the end says.
  template <class F>
  CUresult captured(CUstream stream, CUstreamCaptureMode mode, F&& body) {
    EXPECT_EQ(cuStreamBeginCapture_v2(stream, mode), CUDA_SUCCESS);
    body();
    CUgraph graph = nullptr;
    const CUresult e = cuStreamEndCapture(stream, &graph);
    if (graph) {
      EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
    }
    EXPECT_EQ(graph == nullptr, e != CUDA_SUCCESS);
    return e;
  }
  template <class F>
  CUresult captured(CUstreamCaptureMode mode, F&& body) {
    return captured(world().stream, mode, std::forward<F>(body));
  }
  CUgraph make_graph() {
    CUgraph graph = nullptr;
    EXPECT_EQ(cuGraphCreate(&graph, 0), CUDA_SUCCESS);
    return graph;
  }
  CUgraphNodeParams last_node_params() { return params_; }
  // Keeps what the driver is given for a node.
  ScopedAnswer<CUresult(CUgraphNode*, CUgraph, const CUgraphNode*, const CUgraphEdgeData*, size_t,
                        CUgraphNodeParams*)>
  watch_nodes() {
    auto& slot = SLUICE_ON(cuGraphAddNode_v2);
    return {slot,
            [this, before = slot](CUgraphNode* n, CUgraph g, const CUgraphNode* after,
                                  const CUgraphEdgeData* d, size_t count, CUgraphNodeParams* p) {
              params_ = *p;
              if (p->type == CU_GRAPH_NODE_TYPE_KERNEL) {
                const auto* at = static_cast<const std::byte*>(p->kernel.extra[1]);
                kernel_params_.assign(at, at + *static_cast<size_t*>(p->kernel.extra[3]));
              }
              if (p->type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP)
                operations_.assign(p->memOp.paramArray, p->memOp.paramArray + p->memOp.count);
              after_.assign(after, after + count);
              return before(n, g, after, d, count, p);
            }};
  }

  CUstream side_ = nullptr, other_ = nullptr, blocking_ = nullptr;
  CUevent event_ = nullptr;
  CUgraphNodeParams params_{};
  std::vector<std::byte> kernel_params_;
  std::vector<CUstreamBatchMemOpParams> operations_;
  std::vector<CUgraphNode> after_;
};

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
  EXPECT_TRUE(client::Session::get()->idle(d));
  CUgraph graph = make_graph();
  CUgraphExec exec = nullptr;
  ASSERT_EQ(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphLaunch(exec, world().stream), CUDA_SUCCESS);
  EXPECT_FALSE(client::Session::get()->idle(d)) << "a run is work";
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

// ---- graphs by hand

TEST_F(Graphs, KernelNodes) {
  const auto watch = watch_nodes();
  CUgraph graph = make_graph();
  CUgraphNode first = nullptr, second = nullptr;
  ASSERT_EQ(cuGraphAddEmptyNode(&first, graph, nullptr, 0), CUDA_SUCCESS);
  for (const bool library : {false, true}) {
    uint64_t a = next(), b = next();
    auto c = static_cast<uint32_t>(next());
    void* params[] = {&a, &b, &c};
    CUDA_KERNEL_NODE_PARAMS k{};
    if (library)
      k.kern = world().kernel;
    else
      k.func = world().function;
    k.gridDimX = 2, k.gridDimY = 3, k.gridDimZ = 4;
    k.blockDimX = 5, k.blockDimY = 6, k.blockDimZ = 7;
    k.sharedMemBytes = 128;
    k.kernelParams = params;
    ASSERT_EQ(cuGraphAddKernelNode_v2(&second, graph, &first, 1, &k), CUDA_SUCCESS);
    const auto& got = params_.kernel;
    EXPECT_EQ(params_.type, CU_GRAPH_NODE_TYPE_KERNEL);
    EXPECT_EQ(got.kern, library ? driver_of(world().kernel) : nullptr);
    EXPECT_EQ(got.func, library ? nullptr : driver_of(world().function));
    EXPECT_EQ(std::vector({got.gridDimX, got.gridDimY, got.gridDimZ}), std::vector({2u, 3u, 4u}));
    EXPECT_EQ(std::vector({got.blockDimX, got.blockDimY, got.blockDimZ}),
              std::vector({5u, 6u, 7u}));
    EXPECT_EQ(got.sharedMemBytes, 128u);
    ASSERT_EQ(kernel_params_.size(), 20u);
    EXPECT_EQ(std::memcmp(kernel_params_.data(), &a, 8), 0);
    EXPECT_EQ(std::memcmp(kernel_params_.data() + 8, &b, 8), 0);
    EXPECT_EQ(std::memcmp(kernel_params_.data() + 16, &c, 4), 0);
    EXPECT_EQ(after_.size(), 1u);
    k.gridDimX = 0;
    EXPECT_EQ(cuGraphAddKernelNode_v2(&second, graph, &first, 1, &k), CUDA_ERROR_INVALID_VALUE);
  }
  EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphDestroyNode(first), CUDA_ERROR_INVALID_VALUE) << "it went with its graph";
}

TEST_F(Graphs, CopyAndFillNodes) {
  const auto watch = watch_nodes();
  void* pinned = nullptr;
  ASSERT_EQ(cuMemHostAlloc(&pinned, 1 << 20, 0), CUDA_SUCCESS);
  CUgraph graph = make_graph();
  CUgraphNode node = nullptr;
  CUDA_MEMCPY3D c{};
  c.srcMemoryType = CU_MEMORYTYPE_HOST;
  c.srcHost = pinned;
  c.srcXInBytes = 16, c.srcY = 2, c.srcPitch = 256;
  c.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  c.dstDevice = world().memory;
  c.dstPitch = 512, c.dstHeight = 8;
  c.WidthInBytes = 100, c.Height = 3, c.Depth = 2;
  c.srcHeight = 4;
  ASSERT_EQ(cuGraphAddMemcpyNode(&node, graph, nullptr, 0, &c, world().contexts[0]), CUDA_SUCCESS);
  const CUDA_MEMCPY3D& m = params_.memcpy.copyParams;
  EXPECT_EQ(m.srcMemoryType, CU_MEMORYTYPE_HOST);
  EXPECT_EQ(m.srcHost, static_cast<char*>(pinned) + 2 * 256 + 16);
  EXPECT_EQ(m.dstMemoryType, CU_MEMORYTYPE_DEVICE);
  EXPECT_EQ(m.dstDevice, world().memory);
  EXPECT_EQ(m.srcPitch, 256u);
  EXPECT_EQ(m.dstPitch, 512u);
  EXPECT_EQ(m.srcHeight, 4u);
  EXPECT_EQ(m.dstHeight, 8u);
  EXPECT_EQ(m.WidthInBytes, 100u);
  EXPECT_EQ(m.Height, 3u);
  EXPECT_EQ(m.Depth, 2u);
  c.dstDevice = world().memory + (uint64_t{4} << 40);
  EXPECT_EQ(cuGraphAddMemcpyNode(&node, graph, nullptr, 0, &c, world().contexts[0]),
            CUDA_ERROR_INVALID_VALUE);
  CUDA_MEMSET_NODE_PARAMS f{world().memory, 512, 7, 2, 100, 3};
  ASSERT_EQ(cuGraphAddMemsetNode(&node, graph, nullptr, 0, &f, world().contexts[0]), CUDA_SUCCESS);
  EXPECT_EQ(params_.memset.dst, world().memory);
  EXPECT_EQ(params_.memset.value, 7u);
  EXPECT_EQ(params_.memset.elementSize, 2u);
  EXPECT_EQ(params_.memset.width, 100u);
  EXPECT_EQ(params_.memset.height, 3u);
  f.elementSize = 3;
  EXPECT_EQ(cuGraphAddMemsetNode(&node, graph, nullptr, 0, &f, world().contexts[0]),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeHost(pinned), CUDA_SUCCESS);
}

// A host function is a word that the node writes, one that it waits for, and one that it takes
// back.
TEST_F(Graphs, HostNodesShakeHands) {
  const auto watch = watch_nodes();
  static int runs;
  runs = 0;
  CUgraph graph = make_graph();
  CUgraphNode node = nullptr;
  CUDA_HOST_NODE_PARAMS h{[](void* data) { runs += *static_cast<int*>(data); }, nullptr};
  int amount = 3;
  h.userData = &amount;
  ASSERT_EQ(cuGraphAddHostNode(&node, graph, nullptr, 0, &h), CUDA_SUCCESS);
  ASSERT_EQ(params_.type, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP);
  ASSERT_EQ(operations_.size(), 3u);
  auto* ready = reinterpret_cast<std::atomic<uint64_t>*>(operations_[0].writeValue.address);
  auto* done = reinterpret_cast<std::atomic<uint64_t>*>(operations_[1].waitValue.address);
  EXPECT_EQ(operations_[0].writeValue.value64, 1u);
  EXPECT_EQ(operations_[1].operation, CU_STREAM_MEM_OP_WAIT_VALUE_64);
  EXPECT_EQ(operations_[2].writeValue.address, operations_[1].waitValue.address);
  EXPECT_EQ(operations_[2].writeValue.value64, 0u);
  CUgraphExec exec = nullptr, second = nullptr;
  ASSERT_EQ(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
  // Two that run at once must not take each other's words: the graph gets others for the second.
  std::vector<CUdeviceptr> renewed;
  ScopedAnswer renew(SLUICE_ON(cuGraphBatchMemOpNodeSetParams),
                     [&](CUgraphNode, const CUDA_BATCH_MEM_OP_NODE_PARAMS* p) {
                       for (unsigned i = 0; i < p->count; ++i)
                         renewed.push_back(p->paramArray[i].waitValue.address);
                       return CUDA_SUCCESS;
                     });
  ScopedAnswer held(SLUICE_ON(cuGraphBatchMemOpNodeGetParams),
                    [&](CUgraphNode, CUDA_BATCH_MEM_OP_NODE_PARAMS* p) {
                      p->count = static_cast<unsigned>(operations_.size());
                      p->paramArray = operations_.data();
                      return CUDA_SUCCESS;
                    });
  ASSERT_EQ(cuGraphInstantiateWithFlags(&second, graph, 0), CUDA_SUCCESS);
  ASSERT_EQ(renewed.size(), 3u);
  EXPECT_NE(renewed[0], operations_[0].writeValue.address);
  EXPECT_EQ(renewed[1], renewed[0] + 8);
  EXPECT_EQ(renewed[2], renewed[0] + 8);
  ASSERT_EQ(cuGraphExecDestroy(second), CUDA_SUCCESS);
  for (int run = 1; run <= 5; ++run) {
    ASSERT_EQ(cuGraphLaunch(exec, world().stream), CUDA_SUCCESS);
    EXPECT_EQ(done->load(), 0u);
    ready->store(1);  // what the node does
    while (done->load() == 0) std::this_thread::yield();
    EXPECT_EQ(runs, 3 * run);
    EXPECT_EQ(ready->load(), 0u);
    done->store(0);
  }
  ASSERT_EQ(cuGraphExecDestroy(exec), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphInstantiateWithFlags(&second, graph, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphExecDestroy(second), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
}

// What a graph holds on to ends with the last graph that was made of it.
TEST_F(Graphs, UserObjectsEndWithTheLastGraph) {
  static std::atomic<int> ended;
  ended = 0;
  CUuserObject object = nullptr;
  ASSERT_EQ(cuUserObjectCreate(
                &object, nullptr, [](void*) { ++ended; }, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC),
            CUDA_SUCCESS);
  CUgraph graph = make_graph();
  ASSERT_EQ(cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphRetainUserObject(graph, object, 2, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphReleaseUserObject(graph, object, 4), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuGraphReleaseUserObject(graph, object, 1), CUDA_SUCCESS);
  CUgraphExec exec = nullptr;
  ASSERT_EQ(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(ended, 0);
  ASSERT_EQ(cuGraphExecDestroy(exec), CUDA_SUCCESS);
  for (int i = 0; i < 2000 && ended == 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(ended, 1);
  EXPECT_EQ(cuUserObjectRetain(object, 1), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Graphs, NodesAreTheirGraphsAlone) {
  CUgraph one = make_graph(), two = make_graph();
  CUgraphNode a = nullptr, b = nullptr;
  ASSERT_EQ(cuGraphAddEmptyNode(&a, one, nullptr, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphAddEmptyNode(&b, two, &a, 1), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuGraphAddEmptyNode(&b, two, nullptr, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphAddDependencies_v2(one, &a, &b, nullptr, 1), CUDA_ERROR_INVALID_VALUE);
  CUgraphNode again = nullptr;
  size_t count = 1;
  ASSERT_EQ(cuGraphGetNodes(one, &again, &count), CUDA_SUCCESS);
  EXPECT_EQ(again, a) << "a node has one handle";
  EXPECT_EQ(count, 1u);
  CUgraphNodeType type;
  ASSERT_EQ(cuGraphNodeGetType(a, &type), CUDA_SUCCESS);
  EXPECT_EQ(type, CU_GRAPH_NODE_TYPE_EMPTY);
  ASSERT_EQ(cuGraphDestroyNode(a), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphNodeGetType(a, &type), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGraphDestroy(one), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphDestroy(two), CUDA_SUCCESS);
}

}  // namespace
}  // namespace sluice::test
