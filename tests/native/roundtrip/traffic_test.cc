// SPDX-License-Identifier: Apache-2.0
// What the worker counts of copies with memory that client and worker share: each byte once, when
// the GPU is given the copy, and nothing of what travels in commands and answers or stays on the
// device.
#include <gtest/gtest.h>

#include "tests/native/roundtrip/loopback_session.h"

namespace sluice::test {
namespace {

class TrafficCount : public RoundTrip {
 protected:
  static constexpr size_t kSmall = 4096, kLarge = (6 << 20) + 123;
  using Ways = std::pair<uint64_t, uint64_t>;  // from the client, to it

  void SetUp() override {
    RoundTrip::SetUp();
    for (std::byte** at : {&pinned_, &other_}) {
      void* p = nullptr;
      ASSERT_EQ(cuMemHostAlloc(&p, kLarge, 0), CUDA_SUCCESS);
      *at = static_cast<std::byte*>(p);
    }
    pageable_.resize(kLarge);
    moved();
  }
  void TearDown() override {
    for (std::byte* at : {pinned_, other_}) EXPECT_EQ(cuMemFreeHost(at), CUDA_SUCCESS);
    RoundTrip::TearDown();
  }
  // Since the last look.
  Ways moved() {
    const Ways now{worker_session().figures.shared_in.load(),
                   worker_session().figures.shared_out.load()};
    const Ways since{now.first - seen_.first, now.second - seen_.second};
    seen_ = now;
    return since;
  }
  static CUdeviceptr address(const std::byte* host) { return reinterpret_cast<CUdeviceptr>(host); }
  CUdeviceptr device() { return world().memory; }
  CUstream stream() { return world().stream; }

  // Between pinned and device memory; a row of `bytes`.
  CUDA_MEMCPY3D to_device(size_t bytes, std::byte* from) {
    CUDA_MEMCPY3D c{};
    c.srcMemoryType = CU_MEMORYTYPE_HOST, c.srcHost = from;
    c.dstMemoryType = CU_MEMORYTYPE_DEVICE, c.dstDevice = device();
    c.WidthInBytes = bytes, c.Height = c.Depth = 1;
    return c;
  }
  CUDA_MEMCPY3D to_host(size_t bytes, std::byte* to) {
    CUDA_MEMCPY3D c{};
    c.dstMemoryType = CU_MEMORYTYPE_HOST, c.dstHost = to;
    c.srcMemoryType = CU_MEMORYTYPE_DEVICE, c.srcDevice = device();
    c.WidthInBytes = bytes, c.Height = c.Depth = 1;
    return c;
  }
  CUgraphNode add(CUgraph graph, const CUDA_MEMCPY3D& c) {
    CUgraphNode node = nullptr;
    EXPECT_EQ(cuGraphAddMemcpyNode(&node, graph, nullptr, 0, &c, world().contexts[0]),
              CUDA_SUCCESS);
    return node;
  }
  CUgraph make_graph() {
    CUgraph graph = nullptr;
    EXPECT_EQ(cuGraphCreate(&graph, 0), CUDA_SUCCESS);
    return graph;
  }
  CUgraphExec instantiate(CUgraph graph) {
    CUgraphExec exec = nullptr;
    EXPECT_EQ(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
    return exec;
  }
  Ways launched(CUgraphExec exec) {
    moved();
    EXPECT_EQ(cuGraphLaunch(exec, stream()), CUDA_SUCCESS);
    return moved();
  }

  std::byte *pinned_ = nullptr, *other_ = nullptr;
  std::vector<std::byte> pageable_;
  Ways seen_;
};

TEST_F(TrafficCount, CopiesOfPinnedMemoryEachWay) {
  for (size_t n : {size_t{1}, kSmall, kLarge}) {
    ASSERT_EQ(cuMemcpyHtoD_v2(device(), pinned_, n), CUDA_SUCCESS);
    EXPECT_EQ(moved(), Ways(n, 0)) << n;
    ASSERT_EQ(cuMemcpyHtoDAsync_v2(device(), pinned_, n, stream()), CUDA_SUCCESS);
    EXPECT_EQ(moved(), Ways(n, 0)) << n;
    ASSERT_EQ(cuMemcpyDtoH_v2(pinned_, device(), n), CUDA_SUCCESS);
    EXPECT_EQ(moved(), Ways(0, n)) << n;
    ASSERT_EQ(cuMemcpyDtoHAsync_v2(pinned_, device(), n, stream()), CUDA_SUCCESS);
    EXPECT_EQ(moved(), Ways(0, n)) << n;
  }
}

// Small ones are in the command or in the answer, whose bytes the endpoint counts.
TEST_F(TrafficCount, CopiesOfPageableMemoryCountWhatIsStaged) {
  ASSERT_EQ(cuMemcpyHtoD_v2(device(), pageable_.data(), kSmall), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyDtoH_v2(pageable_.data(), device(), kSmall), CUDA_SUCCESS);
  EXPECT_EQ(moved(), Ways(0, 0));
  ASSERT_EQ(cuMemcpyHtoD_v2(device(), pageable_.data(), kLarge), CUDA_SUCCESS);
  EXPECT_EQ(moved(), Ways(kLarge, 0));
  ASSERT_EQ(cuMemcpyDtoHAsync_v2(pageable_.data(), device(), kLarge, stream()), CUDA_SUCCESS);
  EXPECT_EQ(moved(), Ways(0, kLarge));
}

TEST_F(TrafficCount, BoxesCountWhatIsCopiedAndNotWhatLiesBetween) {
  CUDA_MEMCPY3D c = to_device(1000, pinned_);
  c.Height = 7, c.Depth = 3;
  c.srcPitch = 5000, c.srcHeight = 9, c.dstPitch = 1024, c.dstHeight = 8;
  ASSERT_EQ(cuMemcpy3DAsync_v2(&c, stream()), CUDA_SUCCESS);
  EXPECT_EQ(moved(), Ways(21000, 0));
  CUDA_MEMCPY2D p{};
  p.srcMemoryType = CU_MEMORYTYPE_DEVICE, p.srcDevice = device(), p.srcPitch = 4096;
  p.dstMemoryType = CU_MEMORYTYPE_UNIFIED, p.dstDevice = address(pinned_), p.dstPitch = 3000;
  p.WidthInBytes = 2000, p.Height = 11;
  ASSERT_EQ(cuMemcpy2D_v2(&p), CUDA_SUCCESS);
  EXPECT_EQ(moved(), Ways(0, 22000));
}

TEST_F(TrafficCount, BatchesCountTheirCopies) {
  CUdeviceptr to[] = {device(), address(pinned_), device() + kSmall};
  CUdeviceptr from[] = {address(pinned_), device(), device()};
  size_t sizes[] = {kSmall, 500, 300};
  CUmemcpyAttributes attributes{};
  attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  size_t first = 0;
  ASSERT_EQ(cuMemcpyBatchAsync_v2(to, from, sizes, 3, &attributes, &first, 1, stream()),
            CUDA_SUCCESS);
  EXPECT_EQ(moved(), Ways(kSmall, 500));
}

TEST_F(TrafficCount, OnTheDeviceOnlyPinnedMemoryCounts) {
  ASSERT_EQ(cuMemcpyDtoDAsync_v2(device() + kLarge / 8 * 8, device(), kSmall, stream()),
            CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD8Async(device(), 1, kSmall, stream()), CUDA_SUCCESS);
  EXPECT_EQ(moved(), Ways(0, 0));
  // By the address that the device has for it.
  ASSERT_EQ(cuMemcpyDtoDAsync_v2(device(), address(pinned_), kSmall, stream()), CUDA_SUCCESS);
  EXPECT_EQ(moved(), Ways(kSmall, 0));
  ASSERT_EQ(cuMemcpyDtoDAsync_v2(address(other_), address(pinned_), 700, stream()), CUDA_SUCCESS);
  EXPECT_EQ(moved(), Ways(700, 700));
  ASSERT_EQ(cuMemsetD2D32Async(address(pinned_), 512, 1, 100, 5, stream()), CUDA_SUCCESS);
  EXPECT_EQ(moved(), Ways(0, 2000));
}

TEST_F(TrafficCount, Arrays) {
  CUDA_ARRAY3D_DESCRIPTOR d{};
  d.Width = 64, d.Height = 32, d.Depth = 4, d.Format = CU_AD_FORMAT_FLOAT, d.NumChannels = 1;
  CUarray array = nullptr;
  ASSERT_EQ(cuArray3DCreate_v2(&array, &d), CUDA_SUCCESS);
  moved();
  CUDA_MEMCPY3D c = to_device(256, pinned_);
  c.dstMemoryType = CU_MEMORYTYPE_ARRAY, c.dstArray = array;
  c.Height = 32, c.Depth = 4, c.srcPitch = 512, c.srcHeight = 40;
  ASSERT_EQ(cuMemcpy3DAsync_v2(&c, stream()), CUDA_SUCCESS);
  EXPECT_EQ(moved(), Ways(256 * 32 * 4, 0));
  c = to_host(100, pinned_);
  c.srcMemoryType = CU_MEMORYTYPE_ARRAY, c.srcArray = array, c.Height = 3;
  ASSERT_EQ(cuMemcpy3D_v2(&c), CUDA_SUCCESS);
  EXPECT_EQ(moved(), Ways(0, 300));
  // Device memory at the other end, which pinned memory may be.
  c = to_host(100, nullptr);
  c.srcMemoryType = CU_MEMORYTYPE_ARRAY, c.srcArray = array, c.Height = 3;
  c.dstMemoryType = CU_MEMORYTYPE_DEVICE, c.dstDevice = device();
  ASSERT_EQ(cuMemcpy3DAsync_v2(&c, stream()), CUDA_SUCCESS);
  EXPECT_EQ(moved(), Ways(0, 0));
  c.dstDevice = address(pinned_);
  ASSERT_EQ(cuMemcpy3DAsync_v2(&c, stream()), CUDA_SUCCESS);
  EXPECT_EQ(moved(), Ways(0, 300));
  ASSERT_EQ(cuArrayDestroy(array), CUDA_SUCCESS);
}

TEST_F(TrafficCount, WhatTheDriverRefusedMovedNothing) {
  ScopedAnswer a(SLUICE_ON(cuMemcpyHtoDAsync_v2),
                 [](auto...) { return CUDA_ERROR_ILLEGAL_ADDRESS; });
  EXPECT_EQ(cuMemcpyHtoD_v2(device(), pinned_, kSmall), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(moved(), Ways(0, 0));
}

TEST_F(TrafficCount, ACapturedCopyMovesNothingYet) {
  ScopedAnswer a(SLUICE_ON(cuStreamIsCapturing), [&](CUstream s, CUstreamCaptureStatus* status) {
    *status =
        s == driver_of(stream()) ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
  });
  CUstream beside = nullptr;
  ASSERT_EQ(cuStreamCreate(&beside, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamBeginCapture_v2(stream(), CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyHtoDAsync_v2(device(), pinned_, kSmall, stream()), CUDA_SUCCESS);
  EXPECT_EQ(moved(), Ways(0, 0));
  ASSERT_EQ(cuMemcpyHtoDAsync_v2(device(), pinned_, 300, beside), CUDA_SUCCESS);
  EXPECT_EQ(moved(), Ways(300, 0)) << "on another stream it runs";
  CUgraph graph = nullptr;
  ASSERT_EQ(cuStreamEndCapture(stream(), &graph), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamDestroy_v2(beside), CUDA_SUCCESS);
}

TEST_F(TrafficCount, GraphsMoveWhatTheirNodesDoWithEachLaunch) {
  CUgraph graph = make_graph(), inside = make_graph();
  const CUgraphNode in = add(graph, to_device(kLarge, pinned_));
  const CUgraphNode out = add(graph, to_host(kSmall, pinned_));
  add(inside, to_host(50, pinned_));
  CUgraphNode child = nullptr, fill = nullptr;
  ASSERT_EQ(cuGraphAddChildGraphNode(&child, graph, nullptr, 0, inside), CUDA_SUCCESS);
  CUDA_MEMSET_NODE_PARAMS f{address(pinned_), 0, 7, 4, 100, 1};
  ASSERT_EQ(cuGraphAddMemsetNode(&fill, graph, nullptr, 0, &f, world().contexts[0]), CUDA_SUCCESS);
  EXPECT_EQ(moved(), Ways(0, 0));
  CUgraphExec exec = instantiate(graph);
  EXPECT_EQ(moved(), Ways(0, 0));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(launched(exec), Ways(kLarge, kSmall + 450));
  ASSERT_EQ(cuGraphUpload(exec, stream()), CUDA_SUCCESS);
  EXPECT_EQ(moved(), Ways(0, 0));

  ASSERT_EQ(cuGraphNodeSetEnabled(exec, out, 0), CUDA_SUCCESS);
  EXPECT_EQ(launched(exec), Ways(kLarge, 450));
  CUDA_MEMCPY3D c = to_device(600, other_);
  ASSERT_EQ(cuGraphExecMemcpyNodeSetParams(exec, in, &c, world().contexts[0]), CUDA_SUCCESS);
  EXPECT_EQ(launched(exec), Ways(600, 450));
  c = to_host(90, other_);
  ASSERT_EQ(cuGraphExecMemcpyNodeSetParams(exec, out, &c, world().contexts[0]), CUDA_SUCCESS);
  EXPECT_EQ(launched(exec), Ways(600, 450)) << "it is switched off";
  ASSERT_EQ(cuGraphNodeSetEnabled(exec, out, 1), CUDA_SUCCESS);
  EXPECT_EQ(launched(exec), Ways(600, 540));

  // As the graph is now, but for what the executable graph was told.
  c = to_device(5, pinned_);
  ASSERT_EQ(cuGraphMemcpyNodeSetParams(in, &c), CUDA_SUCCESS);
  EXPECT_EQ(launched(exec), Ways(600, 540));
  ASSERT_EQ(cuGraphNodeSetEnabled(exec, fill, 0), CUDA_SUCCESS);
  CUgraphExecUpdateResultInfo info{};
  ASSERT_EQ(cuGraphExecUpdate_v2(exec, graph, &info), CUDA_SUCCESS);
  EXPECT_EQ(launched(exec), Ways(5, kSmall + 50));
  ASSERT_EQ(cuGraphExecDestroy(exec), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphDestroy(inside), CUDA_SUCCESS);
}

// To the driver a child graph of two nodes.
TEST_F(TrafficCount, StagedCopiesInGraphs) {
  CUgraph graph = make_graph();
  add(graph, to_device(kSmall, pageable_.data()));
  CUgraphExec exec = instantiate(graph);
  EXPECT_EQ(launched(exec), Ways(kSmall, 0));
  EXPECT_EQ(launched(exec), Ways(kSmall, 0));
  ASSERT_EQ(cuGraphExecDestroy(exec), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
}

}  // namespace
}  // namespace sluice::test
