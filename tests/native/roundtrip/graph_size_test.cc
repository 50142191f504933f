// SPDX-License-Identifier: Apache-2.0
// Graphs inside of graphs are counted before they are copied: no few commands make millions of
// nodes, and none nest without an end.
#include "worker/graph_size.h"

#include "tests/native/roundtrip/graphs.h"

namespace sluice::test {
namespace {

class GraphSizes : public Graphs {
 protected:
  void SetUp() override {
    Graphs::SetUp();
    before_ = nodes();
  }
  void TearDown() override {
    for (CUgraph g : graphs_) EXPECT_EQ(cuGraphDestroy(g), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(nodes(), before_) << "what is gone does not count";
    Graphs::TearDown();
  }
  uint64_t nodes() { return worker_session().objects.graph_nodes; }
  uint64_t made() { return nodes() - before_; }
  CUgraph graph() {
    graphs_.push_back(make_graph());
    return graphs_.back();
  }
  CUgraph graph_of(int empty_nodes) {
    const CUgraph g = graph();
    CUgraphNode node = nullptr;
    for (int i = 0; i < empty_nodes; ++i)
      EXPECT_EQ(cuGraphAddEmptyNode(&node, g, nullptr, 0), CUDA_SUCCESS);
    return g;
  }
  static CUresult put(CUgraph into, CUgraph child, CUgraphNode* node = nullptr) {
    CUgraphNode made = nullptr;
    return cuGraphAddChildGraphNode(node ? node : &made, into, nullptr, 0, child);
  }
  size_t copies() {
    size_t n = 0;
    for (const Call* c : recording().calls_of("cuGraphAddNode_v2")) n += c != nullptr;
    return n;
  }

  std::vector<CUgraph> graphs_;

 private:
  uint64_t before_ = 0;
};

TEST_F(GraphSizes, ChildrenThatDoubleEnd) {
  CUgraph now = graph_of(1);
  CUresult e = CUDA_SUCCESS;
  int doubled = 0;
  for (; doubled < 40 && e == CUDA_SUCCESS; ++doubled) {
    const CUgraph next = graph();
    e = put(next, now);
    if (e == CUDA_SUCCESS) e = put(next, now);
    now = next;
  }
  EXPECT_EQ(e, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_LT(doubled, 20);
  EXPECT_LE(made(), worker::kMaxNodesOfSession);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS) << "the session lives on";
}

TEST_F(GraphSizes, OneThatIsPutIntoItselfEnds) {
  const CUgraph g = graph_of(1);
  CUresult e = CUDA_SUCCESS;
  int times = 0;
  for (; times < 40 && e == CUDA_SUCCESS; ++times) e = put(g, g);
  EXPECT_EQ(e, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_LT(times, 20);
  EXPECT_LE(made(), worker::kMaxNodesOfGraph);
}

TEST_F(GraphSizes, NestingEnds) {
  CUgraph now = graph_of(1);
  CUresult e = CUDA_SUCCESS;
  int deep = 0;
  for (; deep < 200 && e == CUDA_SUCCESS; ++deep) {
    const CUgraph next = graph();
    e = put(next, now);
    now = next;
  }
  EXPECT_EQ(e, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(deep - 1, static_cast<int>(wire::kMaxGraphDepth));
}

// The way round: a graph inside of a node takes another child, and so on inwards.
TEST_F(GraphSizes, NestingInwardsEnds) {
  const CUgraph leaf = graph_of(1);
  CUgraph now = graph();
  CUresult e = CUDA_SUCCESS;
  int deep = 0;
  for (; deep < 200 && e == CUDA_SUCCESS; ++deep) {
    CUgraphNode node = nullptr;
    e = put(now, leaf, &node);
    if (e == CUDA_SUCCESS) {
      ASSERT_EQ(cuGraphChildGraphNodeGetGraph(node, &now), CUDA_SUCCESS);
    }
  }
  EXPECT_EQ(e, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_LE(deep, static_cast<int>(wire::kMaxGraphDepth) + 1);
}

TEST_F(GraphSizes, WhatIsInsideCountsForAllAround) {
  const CUgraph leaf = graph_of(10), outer = graph();
  CUgraphNode node = nullptr;
  ASSERT_EQ(put(outer, leaf, &node), CUDA_SUCCESS);
  EXPECT_EQ(made(), 10u + 11u);
  CUgraph inside = nullptr;
  ASSERT_EQ(cuGraphChildGraphNodeGetGraph(node, &inside), CUDA_SUCCESS);
  ASSERT_EQ(put(inside, leaf), CUDA_SUCCESS);
  EXPECT_EQ(made(), 10u + 22u);
  CUgraph clone = nullptr;
  ASSERT_EQ(cuGraphClone(&clone, outer), CUDA_SUCCESS);
  graphs_.push_back(clone);
  EXPECT_EQ(made(), 10u + 44u);
  EXPECT_EQ(cuGraphDestroyNode(node), CUDA_SUCCESS);
  EXPECT_EQ(made(), 10u + 22u);
  CUgraphExec exec = nullptr;
  ASSERT_EQ(cuGraphInstantiateWithFlags(&exec, clone, 0), CUDA_SUCCESS);
  EXPECT_EQ(made(), 10u + 44u);
  EXPECT_EQ(cuGraphExecDestroy(exec), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(made(), 10u + 22u);
}

TEST_F(GraphSizes, OfASessionAllTogetherEnd) {
  auto& all = worker_session().objects.graph_nodes;
  const uint64_t now = all;
  const CUgraph g = graph_of(3);
  all = worker::kMaxNodesOfSession - 2;
  CUgraph clone = nullptr;
  EXPECT_EQ(cuGraphClone(&clone, g), CUDA_ERROR_OUT_OF_MEMORY);
  CUgraphExec exec = nullptr;
  EXPECT_EQ(cuGraphInstantiateWithFlags(&exec, g, 0), CUDA_ERROR_OUT_OF_MEMORY);
  CUgraphNode node = nullptr;
  EXPECT_EQ(cuGraphAddEmptyNode(&node, g, nullptr, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphAddEmptyNode(&node, g, nullptr, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphAddEmptyNode(&node, g, nullptr, 0), CUDA_ERROR_OUT_OF_MEMORY);
  all = now + 5;
}

// A launch into a capture makes a child, too.
TEST_F(GraphSizes, LaunchesIntoCapturesEnd) {
  const CUgraph g = graph_of(1);
  CUgraphExec exec = nullptr;
  ASSERT_EQ(cuGraphInstantiateWithFlags(&exec, g, 0), CUDA_SUCCESS);
  worker::GraphExecObject known;
  auto& s = worker_session();
  ASSERT_TRUE(s.objects.graph_execs.get(id(exec), &known));
  known.size = {worker::kMaxNodesOfGraph - 1, wire::kMaxGraphDepth - 1};
  s.objects.graph_execs.set(id(exec), known);
  s.objects.graph_nodes += known.size.nodes - 1;
  ASSERT_EQ(cuStreamBeginCapture_v2(side_, kRelaxed), CUDA_SUCCESS);
  ScopedAnswer yes(SLUICE_ON(cuStreamIsCapturing), [](CUstream, CUstreamCaptureStatus* status) {
    return *status = CU_STREAM_CAPTURE_STATUS_ACTIVE, CUDA_SUCCESS;
  });
  recording().clear();
  EXPECT_EQ(cuGraphLaunch(exec, side_), CUDA_SUCCESS);
  EXPECT_EQ(recording().calls_of("cuGraphLaunch").size(), 1u);
  EXPECT_EQ(cuGraphLaunch(exec, side_), CUDA_SUCCESS);
  EXPECT_EQ(recording().calls_of("cuGraphLaunch").size(), 1u) << "the graph would be too large";
  expect_poisoned(CUDA_ERROR_OUT_OF_MEMORY);
  CUgraph captured = nullptr;
  ASSERT_EQ(cuStreamEndCapture(side_, &captured), CUDA_SUCCESS);
  graphs_.push_back(captured);
  EXPECT_EQ(put(graph(), captured), CUDA_ERROR_OUT_OF_MEMORY) << "it lies too deep for that";
  EXPECT_EQ(cuGraphExecDestroy(exec), CUDA_SUCCESS);
}

}  // namespace
}  // namespace sluice::test
