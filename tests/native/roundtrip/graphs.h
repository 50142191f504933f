// SPDX-License-Identifier: Apache-2.0
// What tests of captures and of graphs share: streams to capture on, and what the driver was given.
#pragma once

#include <utility>
#include <vector>

#include "tests/native/roundtrip/loopback_session.h"

namespace sluice::test {

inline constexpr auto kGlobal = CU_STREAM_CAPTURE_MODE_GLOBAL;
inline constexpr auto kThreadLocal = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
inline constexpr auto kRelaxed = CU_STREAM_CAPTURE_MODE_RELAXED;

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

}  // namespace sluice::test
