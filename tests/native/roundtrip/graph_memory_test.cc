// SPDX-License-Identifier: Apache-2.0
// Memory nodes from exported function to driver call: when memory is made, where it is mapped, and
// that nothing is taken from under a run that may not have ended.
#include <algorithm>

#include "tests/native/roundtrip/loopback_session.h"

namespace sluice::test {
namespace {

class GraphMemories : public RoundTrip {
 protected:
  struct Made {
    CUgraph graph = nullptr;
    CUgraphExec exec = nullptr;
    CUdeviceptr at = 0;
  };
  void SetUp() override {
    RoundTrip::SetUp();
    ASSERT_EQ(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    recording().clear();
  }
  void TearDown() override {
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    for (Made& one : made_) {
      if (one.exec) {
        EXPECT_EQ(cuGraphExecDestroy(one.exec), CUDA_SUCCESS);
      }
      EXPECT_EQ(cuGraphDestroy(one.graph), CUDA_SUCCESS);
    }
    EXPECT_EQ(cuStreamDestroy_v2(a), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamDestroy_v2(b), CUDA_SUCCESS);
    EXPECT_EQ(cuDeviceGraphMemTrim(0), CUDA_SUCCESS);
    EXPECT_EQ(used(), 0u);
    RoundTrip::TearDown();
  }
  CUresult add(CUgraph graph, size_t bytes, CUdeviceptr* at) {
    CUDA_MEM_ALLOC_NODE_PARAMS p{};
    p.bytesize = bytes;
    p.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    CUgraphNode node = nullptr;
    const CUresult e = cuGraphAddMemAllocNode(&node, graph, nullptr, 0, &p);
    *at = p.dptr;
    return e;
  }
  Made make(size_t bytes, bool freed, unsigned flags = 0) {
    Made one;
    EXPECT_EQ(cuGraphCreate(&one.graph, 0), CUDA_SUCCESS);
    EXPECT_EQ(add(one.graph, bytes, &one.at), CUDA_SUCCESS);
    CUgraphNode node = nullptr;
    if (freed) {
      EXPECT_EQ(cuGraphAddMemFreeNode(&node, one.graph, nullptr, 0, one.at), CUDA_SUCCESS);
    }
    EXPECT_EQ(cuGraphInstantiateWithFlags(&one.exec, one.graph, flags), CUDA_SUCCESS);
    made_.push_back(one);
    return one;
  }
  void launch(const Made& one, CUstream stream) {
    EXPECT_EQ(cuGraphLaunch(one.exec, stream), CUDA_SUCCESS);
  }
  size_t calls(const char* name) { return recording().calls_of(name).size(); }
  // Launches, and how much memory was made for it.
  size_t created_by(const Made& one, CUstream stream) {
    EXPECT_EQ(cuCtxGetFlags(&flags_), CUDA_SUCCESS);
    const size_t before = calls("cuMemCreate");
    launch(one, stream);
    // What is posted runs on the worker's thread: an answer means that it has.
    EXPECT_EQ(cuStreamQuery(world().stream), CUDA_SUCCESS);
    return calls("cuMemCreate") - before;
  }
  uint64_t used() {
    cuuint64_t value = 0;
    EXPECT_EQ(cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &value),
              CUDA_SUCCESS);
    return value;
  }
  void settle() { EXPECT_EQ(cuStreamQuery(world().stream), CUDA_SUCCESS); }
  void order(CUstream later, CUstream earlier) {
    CUevent event;
    ASSERT_EQ(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    ASSERT_EQ(cuEventRecord(event, earlier), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamWaitEvent(later, event, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuEventDestroy_v2(event), CUDA_SUCCESS);
  }
  CUstream a = nullptr, b = nullptr;
  std::vector<Made> made_;
  unsigned flags_ = 0;
};

TEST_F(GraphMemories, MemoryIsThereFromTheFirstLaunchOn) {
  const Made one = make(4 * kSlab, true);
  settle();
  EXPECT_EQ(calls("cuMemCreate"), 1u) << "the slab that stands behind all addresses";
  EXPECT_EQ(recording().only("cuMemCreate").at<size_t>(1), kSlab);
  EXPECT_EQ(calls("cuMemMap"), 4u);
  EXPECT_EQ(used(), 0u);
  recording().clear();
  launch(one, a);
  settle();
  EXPECT_EQ(recording().only("cuMemCreate").at<size_t>(1), 4 * kSlab);
  EXPECT_EQ(recording().only("cuMemMap").at<CUdeviceptr>(0), one.at);
  EXPECT_EQ(used(), 4 * kSlab);
  const auto& all = recording().calls;
  const auto place = [&](const char* name) {
    return std::find_if(all.begin(), all.end(),
                        [&](const Call& c) { return std::string_view(c.name) == name; });
  };
  EXPECT_LT(place("cuMemSetAccess"), place("cuGraphLaunch"));
  recording().clear();
  for (int i = 0; i < 5; ++i) launch(one, a);
  launch(one, b);  // runs of one executable graph follow one another
  settle();
  EXPECT_EQ(calls("cuMemMap") + calls("cuMemCreate") + calls("cuMemUnmap"), 0u);
  EXPECT_EQ(calls("cuGraphLaunch"), 6u);
}

TEST_F(GraphMemories, GraphsShareWhatTheirStreamsAreDoneWith) {
  const Made x = make(kSlab, true), y = make(kSlab, true), z = make(kSlab, true);
  EXPECT_NE(x.at, y.at);
  EXPECT_EQ(created_by(x, a), 1u);
  EXPECT_EQ(created_by(y, a), 0u) << "behind the first in its stream";
  EXPECT_EQ(created_by(z, b), 1u) << "perhaps beside the others";
  EXPECT_EQ(used(), 2 * kSlab);
  const Made w = make(kSlab, true), v = make(kSlab, true);
  order(b, a);
  launch(z, b);
  EXPECT_EQ(created_by(w, b), 0u);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  CUstream c;
  ASSERT_EQ(cuStreamCreate(&c, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  EXPECT_EQ(created_by(v, c), 0u) << "all has ended";
  EXPECT_EQ(cuStreamDestroy_v2(c), CUDA_SUCCESS);
}

TEST_F(GraphMemories, NothingIsTakenFromUnderARun) {
  const Made x = make(kSlab, true), y = make(kSlab, true);
  launch(x, a);
  launch(y, a);  // has the same memory now
  settle();
  recording().clear();
  launch(x, b);  // its run in `a` may not have ended
  settle();
  EXPECT_EQ(calls("cuMemUnmap"), 0u);
  EXPECT_EQ(calls("cuStreamWaitEvent"), 1u) << "so it waits for whoever has the memory";
}

TEST_F(GraphMemories, AStreamThatGoesTakesNothingWithIt) {
  const Made x = make(kSlab, true), y = make(kSlab, true);
  CUstream c;
  ASSERT_EQ(cuStreamCreate(&c, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  launch(x, c);
  EXPECT_EQ(cuStreamDestroy_v2(c), CUDA_SUCCESS);
  EXPECT_EQ(cuDeviceGraphMemTrim(0), CUDA_SUCCESS);
  EXPECT_EQ(used(), kSlab) << "the run may still be using it";
  EXPECT_EQ(created_by(y, b), 1u);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(cuDeviceGraphMemTrim(0), CUDA_SUCCESS);
  EXPECT_EQ(used(), 0u);
}

TEST_F(GraphMemories, WhatOutlivesARunIsHeldUntilTheLastOfItsSlabIsFreed) {
  Made one;
  CUdeviceptr second = 0;
  ASSERT_EQ(cuGraphCreate(&one.graph, 0), CUDA_SUCCESS);
  ASSERT_EQ(add(one.graph, 1000, &one.at), CUDA_SUCCESS);
  ASSERT_EQ(add(one.graph, 1000, &second), CUDA_SUCCESS);
  EXPECT_EQ(second, one.at + 1024);
  ASSERT_EQ(cuGraphInstantiateWithFlags(&one.exec, one.graph, 0), CUDA_SUCCESS);
  made_.push_back(one);
  const Made other = make(kSlab, true);
  EXPECT_EQ(cuMemFree_v2(one.at), CUDA_ERROR_INVALID_VALUE) << "before it is there";
  launch(one, a);
  EXPECT_EQ(cuGraphLaunch(one.exec, a), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(created_by(other, a), 1u);
  CUdeviceptr base = 0;
  size_t bytes = 0;
  EXPECT_EQ(cuMemGetAddressRange_v2(&base, &bytes, second + 5), CUDA_SUCCESS);
  EXPECT_EQ(base, second);
  EXPECT_EQ(cuMemFreeAsync(one.at, a), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeAsync(one.at, a), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGraphLaunch(one.exec, a), CUDA_ERROR_INVALID_VALUE) << "half of it is there";
  EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(cuDeviceGraphMemTrim(0), CUDA_SUCCESS);
  EXPECT_EQ(used(), kSlab);
  EXPECT_EQ(cuMemFree_v2(second), CUDA_SUCCESS);
  EXPECT_EQ(cuDeviceGraphMemTrim(0), CUDA_SUCCESS);
  EXPECT_EQ(used(), 0u);
  launch(one, a);
  EXPECT_EQ(cuMemFreeAsync(one.at, a), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeAsync(second, a), CUDA_SUCCESS);
}

TEST_F(GraphMemories, FreeingWithoutAnOrderPassesNothingOnThatARunMayUse) {
  const Made x = make(kSlab, false), y = make(kSlab, true);
  launch(x, a);
  EXPECT_EQ(cuMemFree_v2(x.at), CUDA_SUCCESS);
  EXPECT_EQ(created_by(y, b), 1u);
}

TEST_F(GraphMemories, AddressesOutliveGraphAndExecutableGraph) {
  Made one = make(kSlab, false);
  made_.clear();
  launch(one, a);
  EXPECT_EQ(cuGraphExecDestroy(one.exec), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphDestroy(one.graph), CUDA_SUCCESS);
  EXPECT_EQ(cuMemsetD8Async(one.at, 1, kSlab, a), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeAsync(one.at, a), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(a), CUDA_SUCCESS);
  EXPECT_EQ(cuDeviceGraphMemTrim(0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemsetD8Async(one.at, 1, kSlab, a), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(GraphMemories, MemoryRunsOutAtTheLaunch) {
  size_t available = 0, total = 0;
  const Made small = make(kSlab, true);
  ASSERT_EQ(cuMemGetInfo_v2(&available, &total), CUDA_SUCCESS);
  const size_t half = available / 2 / kSlab * kSlab;
  const Made x = make(half, true), y = make(half + kSlab, true);
  CUdeviceptr all = 0;
  ASSERT_EQ(cuMemAlloc_v2(&all, available - kSlab), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphLaunch(x.exec, a), CUDA_ERROR_OUT_OF_MEMORY);
  launch(small, a);
  EXPECT_EQ(cuMemFree_v2(all), CUDA_SUCCESS);
  launch(x, a);
  launch(y, a);  // has no room beside it: its own blocks, and what there is of the other's
  EXPECT_EQ(cuStreamSynchronize(a), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAlloc_v2(&all, available - kSlab), CUDA_SUCCESS) << "what graphs keep goes first";
  EXPECT_EQ(used(), 0u);
  EXPECT_EQ(cuMemFree_v2(all), CUDA_SUCCESS);
}

TEST_F(GraphMemories, ACaptureRecordsPlacesInItsOrder) {
  CUdeviceptr p = 0, plain = 0;
  CUgraph graph = nullptr;
  ASSERT_EQ(cuMemAllocAsync(&plain, 64, a), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamBeginCapture_v2(a, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAllocAsync(&p, 64, a), CUDA_SUCCESS);
  EXPECT_EQ(calls("cuGraphAddNode_v2"), 1u);
  EXPECT_EQ(calls("cuStreamUpdateCaptureDependencies_v2"), 1u);
  EXPECT_EQ(cuMemFreeAsync(plain, a), CUDA_ERROR_INVALID_VALUE) << "not of a graph";
  EXPECT_EQ(cuMemFreeAsync(p, a), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeAsync(p, a), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamEndCapture(a, &graph), CUDA_SUCCESS);
  EXPECT_EQ(calls("cuGraphAddNode_v2"), 2u);
  EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeAsync(plain, a), CUDA_SUCCESS);
}

TEST_F(GraphMemories, UpdatesTakeGraphsThatAllocateTheSame) {
  const Made x = make(kSlab, true);
  CUgraph same = nullptr, other = nullptr;
  CUdeviceptr at = 0;
  CUgraphNode node = nullptr;
  CUgraphExecUpdateResultInfo info;
  ASSERT_EQ(cuGraphCreate(&same, 0), CUDA_SUCCESS);
  ASSERT_EQ(add(same, kSlab, &at), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphAddMemFreeNode(&node, same, nullptr, 0, at), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphCreate(&other, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphExecUpdate_v2(x.exec, other, &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  EXPECT_EQ(cuGraphExecUpdate_v2(x.exec, same, &info), CUDA_SUCCESS);
  recording().clear();
  launch(x, a);
  settle();
  EXPECT_EQ(recording().only("cuMemMap").at<CUdeviceptr>(0), at);
  EXPECT_EQ(cuGraphDestroy(same), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphDestroy(other), CUDA_SUCCESS);
}

TEST_F(GraphMemories, ConditionsAndBodiesReachTheDriver) {
  CUgraph graph = nullptr;
  CUgraphNode node = nullptr, inside = nullptr;
  CUgraphConditionalHandle handle = 0;
  ASSERT_EQ(cuGraphCreate(&graph, 0), CUDA_SUCCESS);
  CUgraphNodeParams p{};
  p.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
  p.conditional.handle = Recording::kCondition;
  p.conditional.type = CU_GRAPH_COND_TYPE_SWITCH;
  p.conditional.size = 3;
  EXPECT_EQ(cuGraphAddNode(&node, graph, nullptr, 0, &p), CUDA_ERROR_INVALID_VALUE)
      << "nobody made it for this graph";
  ASSERT_EQ(cuGraphConditionalHandleCreate(&handle, graph, world().contexts[0], 1,
                                           CU_GRAPH_COND_ASSIGN_DEFAULT),
            CUDA_SUCCESS);
  EXPECT_EQ(handle, Recording::kCondition) << "the driver's own";
  ASSERT_EQ(cuGraphAddNode(&node, graph, nullptr, 0, &p), CUDA_SUCCESS);
  CUgraph bodies[3];
  std::copy_n(p.conditional.phGraph_out, 3, bodies);
  recording().clear();
  for (CUgraph body : bodies)
    EXPECT_EQ(cuGraphAddEmptyNode(&inside, body, nullptr, 0), CUDA_SUCCESS);
  const auto added = recording().calls_of("cuGraphAddNode_v2");
  ASSERT_EQ(added.size(), 3u);
  EXPECT_NE(added[0]->at<CUgraph>(1), added[1]->at<CUgraph>(1));
  EXPECT_EQ(cuGraphDestroy(bodies[0]), CUDA_ERROR_INVALID_VALUE);
  CUgraphExec exec = nullptr;
  EXPECT_EQ(cuGraphInstantiateWithFlags(&exec, bodies[0], 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphAddEmptyNode(&inside, bodies[1], nullptr, 0), CUDA_ERROR_INVALID_VALUE)
      << "bodies go with their graph";
}

}  // namespace
}  // namespace sluice::test
