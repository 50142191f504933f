// SPDX-License-Identifier: Apache-2.0
// Graphs: what capture records and in which order it runs again, what is forbidden meanwhile, and
// graphs that are built, changed and nested by hand.
#include <atomic>
#include <thread>

#include "gpu.h"

namespace sluice::softgpu_test {
namespace {

class Graphs : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    CHECK_CU(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
    CHECK_CU(cuStreamCreate(&side_, CU_STREAM_NON_BLOCKING));
    CHECK_CU(cuEventCreate(&event_, CU_EVENT_DEFAULT));
  }
  size_t nodes(CUgraph graph) {
    size_t count = 0;
    EXPECT_EQ(CUDA_SUCCESS, cuGraphGetNodes(graph, nullptr, &count));
    return count;
  }
  void run(CUgraph graph, int times = 1) {
    CUgraphExec exec = nullptr;
    CHECK_CU(cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (int i = 0; i < times; ++i) CHECK_CU(cuGraphLaunch(exec, stream_));
    CHECK_CU(cuGraphExecDestroy(exec));  // runs under way go on
    CHECK_CU(cuStreamSynchronize(stream_));
  }
  CUgraphNode fill(CUgraph graph, const Buffer<uint32_t>& buffer, uint32_t value,
                   const std::vector<CUgraphNode>& after = {}) {
    const CUDA_MEMSET_NODE_PARAMS p{buffer.get(), 0, value, 4, 4, 1};
    CUgraphNode node = nullptr;
    EXPECT_EQ(CUDA_SUCCESS,
              cuGraphAddMemsetNode(&node, graph, after.data(), after.size(), &p, context_));
    return node;
  }
  CUstream stream_ = nullptr, side_ = nullptr;
  CUevent event_ = nullptr;
};

using Four = std::vector<uint32_t>;

TEST_F(Graphs, WhatIsCapturedHappensAtTheLaunchAndOnlyThen) {
  Buffer<uint32_t> a(4), b(4);
  CUgraph graph = nullptr;
  CHECK_CU(cuStreamBeginCapture_v2(stream_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  CHECK_CU(cuMemsetD32Async(a.get(), 5, 4, stream_));
  CHECK_CU(cuMemcpyDtoDAsync_v2(b.get(), a.get(), 16, stream_));
  CHECK_CU(cuStreamEndCapture(stream_, &graph));
  EXPECT_EQ(b.read(), Four(4, 0));
  EXPECT_EQ(nodes(graph), 2u);
  run(graph);
  EXPECT_EQ(b.read(), Four(4, 5));
  CHECK_CU(cuGraphDestroy(graph));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuGraphDestroy(graph));
}

TEST_F(Graphs, StreamsForkAndJoinByEvents) {
  Buffer<uint32_t> a(4);
  CUgraph graph = nullptr;
  CUstreamCaptureStatus status;
  CHECK_CU(cuStreamBeginCapture_v2(stream_, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CHECK_CU(cuMemsetD32Async(a.get(), 1, 4, stream_));
  CHECK_CU(cuEventRecord(event_, stream_));
  CHECK_CU(cuStreamWaitEvent(side_, event_, 0));
  CHECK_CU(cuStreamIsCapturing(side_, &status));
  EXPECT_EQ(CU_STREAM_CAPTURE_STATUS_ACTIVE, status);
  CHECK_CU(cuMemsetD32Async(a.get(), 2, 2, side_));
  CHECK_CU(cuEventRecord(event_, side_));
  CHECK_CU(cuStreamWaitEvent(stream_, event_, 0));
  CHECK_CU(cuMemsetD32Async(a.get(), 3, 1, stream_));
  CHECK_CU(cuStreamEndCapture(stream_, &graph));
  CHECK_CU(cuStreamIsCapturing(side_, &status));
  EXPECT_EQ(CU_STREAM_CAPTURE_STATUS_NONE, status);
  // The last comes after both: the one before it in its stream, and the one that it waited for.
  CUgraphNode all[3] = {};
  size_t count = 3, before = 0;
  CHECK_CU(cuGraphGetNodes(graph, all, &count));
  CHECK_CU(cuGraphNodeGetDependencies_v2(all[2], nullptr, nullptr, &before));
  EXPECT_EQ(before, 2u);
  run(graph);
  EXPECT_EQ(a.read(), (Four{3, 2, 1, 1}));
  CHECK_CU(cuGraphDestroy(graph));
}

TEST_F(Graphs, WorkLeftBehindByAJoinedStreamMakesNoGraph) {
  Buffer<uint32_t> a(4);
  CUgraph graph = nullptr;
  CHECK_CU(cuStreamBeginCapture_v2(stream_, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CHECK_CU(cuEventRecord(event_, stream_));
  CHECK_CU(cuStreamWaitEvent(side_, event_, 0));
  CHECK_CU(cuMemsetD32Async(a.get(), 1, 4, side_));
  EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, cuStreamEndCapture(stream_, &graph));
  EXPECT_EQ(nullptr, graph);
  CHECK_CU(cuMemsetD32Async(a.get(), 1, 4, side_));  // a stream like any other again
  CHECK_CU(cuStreamSynchronize(side_));
}

TEST_F(Graphs, AskingAStreamThatCapturesBreaksTheCapture) {
  for (const auto mode : {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED}) {
    CUgraph graph = nullptr;
    CHECK_CU(cuStreamBeginCapture_v2(stream_, mode));
    EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamQuery(stream_));
    EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream_, &graph));
  }
}

// What the worker relies on while a program captures.
TEST_F(Graphs, RelaxedCapturesLeaveTheRestAlone) {
  CUgraph graph = nullptr;
  CUdeviceptr p = 0;
  CUevent own = nullptr;
  CHECK_CU(cuEventCreate(&own, CU_EVENT_DEFAULT));
  CHECK_CU(cuStreamBeginCapture_v2(stream_, CU_STREAM_CAPTURE_MODE_RELAXED));
  CHECK_CU(cuMemAlloc_v2(&p, 64));
  CHECK_CU(cuEventRecord(own, side_));
  CHECK_CU(cuEventSynchronize(own));
  CHECK_CU(cuStreamSynchronize(side_));
  CHECK_CU(cuStreamSynchronize(nullptr));
  CHECK_CU(cuMemFree_v2(p));
  std::thread([&] {
    CHECK_CU(cuCtxSetCurrent(context_));
    CHECK_CU(cuStreamEndCapture(stream_, &graph));
  }).join();
  CHECK_CU(cuGraphDestroy(graph));
}

TEST_F(Graphs, PageableMemoryIsReadWhenTheNodeRuns) {
  Buffer<uint32_t> a(4);
  Four values{1, 2, 3, 4};
  CUgraph graph = nullptr;
  CHECK_CU(cuStreamBeginCapture_v2(stream_, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CHECK_CU(cuMemcpyHtoDAsync_v2(a.get(), values.data(), 16, stream_));
  CHECK_CU(cuStreamEndCapture(stream_, &graph));
  values = {5, 6, 7, 8};
  run(graph);
  EXPECT_EQ(a.read(), values);
  CHECK_CU(cuGraphDestroy(graph));
}

TEST_F(Graphs, HostFunctionsAndMemoryOperationsRunEachTime) {
  static std::atomic<int> calls;
  calls = 0;
  uint64_t* words = nullptr;
  CHECK_CU(cuMemHostAlloc(reinterpret_cast<void**>(&words), 4096, 0));
  words[0] = 0;
  CUgraph graph = nullptr;
  CUstreamBatchMemOpParams ops[2] = {};
  ops[0].operation = ops[1].operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
  ops[0].writeValue.address = reinterpret_cast<CUdeviceptr>(words);
  ops[0].writeValue.value64 = 7;
  ops[1].writeValue.address = reinterpret_cast<CUdeviceptr>(words + 1);
  ops[1].writeValue.value64 = 8;
  CHECK_CU(cuStreamBeginCapture_v2(stream_, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CHECK_CU(cuLaunchHostFunc(stream_, [](void*) { ++calls; }, nullptr));
  CHECK_CU(cuStreamBatchMemOp_v2(stream_, 2, ops, 0));
  CHECK_CU(cuStreamEndCapture(stream_, &graph));
  EXPECT_EQ(nodes(graph), 2u) << "a batch is one node";
  EXPECT_EQ(words[0], 0u);
  run(graph, 3);
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(words[0], 7u);
  EXPECT_EQ(words[1], 8u);
  CHECK_CU(cuGraphDestroy(graph));
}

TEST_F(Graphs, EdgesDecideTheOrder) {
  Buffer<uint32_t> a(4);
  CUgraph graph = nullptr;
  CHECK_CU(cuGraphCreate(&graph, 0));
  CUgraphNode last = fill(graph, a, 1), first = fill(graph, a, 2);
  CHECK_CU(cuGraphAddDependencies_v2(graph, &first, &last, nullptr, 1));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuGraphAddDependencies_v2(graph, &first, &last, nullptr, 1));
  run(graph);
  EXPECT_EQ(a.read(), Four(4, 1));
  CHECK_CU(cuGraphRemoveDependencies_v2(graph, &first, &last, nullptr, 1));
  CHECK_CU(cuGraphAddDependencies_v2(graph, &last, &first, nullptr, 1));
  run(graph);
  EXPECT_EQ(a.read(), Four(4, 2));
  CHECK_CU(cuGraphAddDependencies_v2(graph, &first, &last, nullptr, 1));
  CUgraphExec exec = nullptr;
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiateWithFlags(&exec, graph, 0)) << "a circle";
  CHECK_CU(cuGraphDestroy(graph));
}

TEST_F(Graphs, ExecutableGraphsChangeApartFromTheirGraph) {
  Buffer<uint32_t> a(4);
  CUgraph graph = nullptr, other = nullptr;
  CUgraphExec exec = nullptr;
  CHECK_CU(cuGraphCreate(&graph, 0));
  CUgraphNode node = fill(graph, a, 1);
  CHECK_CU(cuGraphInstantiateWithFlags(&exec, graph, 0));
  const CUDA_MEMSET_NODE_PARAMS changed{a.get(), 0, 9, 4, 2, 1};
  CHECK_CU(cuGraphExecMemsetNodeSetParams(exec, node, &changed, context_));
  CHECK_CU(cuGraphLaunch(exec, stream_));
  CHECK_CU(cuStreamSynchronize(stream_));
  EXPECT_EQ(a.read(), (Four{9, 9, 0, 0}));
  CUDA_MEMSET_NODE_PARAMS now{};
  CHECK_CU(cuGraphMemsetNodeGetParams(node, &now));
  EXPECT_EQ(now.value, 1u);
  CHECK_CU(cuGraphNodeSetEnabled(exec, node, 0));
  CHECK_CU(cuMemsetD32Async(a.get(), 4, 4, stream_));
  CHECK_CU(cuGraphLaunch(exec, stream_));
  CHECK_CU(cuStreamSynchronize(stream_));
  EXPECT_EQ(a.read(), Four(4, 4));
  // An update takes another graph of the same shape, and no other.
  CHECK_CU(cuGraphCreate(&other, 0));
  fill(other, a, 6);
  CUgraphExecUpdateResultInfo info{};
  CHECK_CU(cuGraphNodeSetEnabled(exec, node, 1));
  CHECK_CU(cuGraphExecUpdate_v2(exec, other, &info));
  CHECK_CU(cuGraphLaunch(exec, stream_));
  CHECK_CU(cuStreamSynchronize(stream_));
  EXPECT_EQ(a.read(), Four(4, 6));
  fill(other, a, 7);
  EXPECT_EQ(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate_v2(exec, other, &info));
  EXPECT_EQ(CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, info.result);
  CHECK_CU(cuGraphExecDestroy(exec));
  CHECK_CU(cuGraphDestroy(other));
  CHECK_CU(cuGraphDestroy(graph));
}

TEST_F(Graphs, ChildrenAreCopies) {
  Buffer<uint32_t> a(4);
  CUgraph inner = nullptr, outer = nullptr, seen = nullptr;
  CUgraphNode child = nullptr;
  CHECK_CU(cuGraphCreate(&inner, 0));
  CHECK_CU(cuGraphCreate(&outer, 0));
  fill(inner, a, 3);
  CHECK_CU(cuGraphAddChildGraphNode(&child, outer, nullptr, 0, inner));
  CHECK_CU(cuGraphDestroy(inner));
  CHECK_CU(cuGraphChildGraphNodeGetGraph(child, &seen));
  EXPECT_EQ(nodes(seen), 1u);
  run(outer);
  EXPECT_EQ(a.read(), Four(4, 3));
  CHECK_CU(cuGraphDestroy(outer));
}

TEST_F(Graphs, EventsAreRecordedAndWaitedForByNodes) {
  CUgraph graph = nullptr;
  CUgraphNode node = nullptr;
  CHECK_CU(cuGraphCreate(&graph, 0));
  CHECK_CU(cuGraphAddEventRecordNode(&node, graph, nullptr, 0, event_));
  uint32_t* flag = nullptr;
  CHECK_CU(cuMemHostAlloc(reinterpret_cast<void**>(&flag), 64, 0));
  *flag = 0;
  CHECK_CU(cuStreamWaitValue32_v2(stream_, reinterpret_cast<CUdeviceptr>(flag), 1,
                                  CU_STREAM_WAIT_VALUE_EQ));
  CUgraphExec exec = nullptr;
  CHECK_CU(cuGraphInstantiateWithFlags(&exec, graph, 0));
  CHECK_CU(cuGraphLaunch(exec, stream_));
  EXPECT_EQ(CUDA_ERROR_NOT_READY, cuEventQuery(event_));
  __atomic_store_n(flag, 1u, __ATOMIC_SEQ_CST);
  CHECK_CU(cuEventSynchronize(event_));
  CHECK_CU(cuGraphExecDestroy(exec));
  CHECK_CU(cuGraphDestroy(graph));
}

}  // namespace
}  // namespace sluice::softgpu_test
