// SPDX-License-Identifier: Apache-2.0
// Graphs with the host in them: host functions and copies of pageable memory, captured, launched
// many times, updated from a second capture; a graph in a graph; an event that a graph records.
#include <cstring>
#include <vector>

#include "check.h"

__global__ void scale(int* values, int n, int factor) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) values[i] *= factor;
}

constexpr int kCount = 5000;

struct Tally {
  int calls = 0;
  const int* from = nullptr;
  long long sum = 0;
};

// Sees what the copy before it brought, and changes what the copy behind it takes.
static void tally(void* data) {
  auto* t = static_cast<Tally*>(data);
  ++t->calls;
  t->sum = 0;
  for (int i = 0; i < kCount; ++i) t->sum += t->from[i];
}

int main() {
  bool right = true;
  std::vector<int> in(kCount), out(kCount);
  int* device = nullptr;
  REQUIRE(cudaMalloc(&device, kCount * sizeof(int)));
  cudaStream_t stream;
  REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  Tally first{0, out.data(), 0}, second{0, out.data(), 0};

  const auto capture = [&](int factor, Tally* t, bool host) {
    cudaGraph_t graph = nullptr;
    REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    REQUIRE(
        cudaMemcpyAsync(device, in.data(), kCount * sizeof(int), cudaMemcpyHostToDevice, stream));
    scale<<<(kCount + 127) / 128, 128, 0, stream>>>(device, kCount, factor);
    REQUIRE(
        cudaMemcpyAsync(out.data(), device, kCount * sizeof(int), cudaMemcpyDeviceToHost, stream));
    if (host) REQUIRE(cudaLaunchHostFunc(stream, tally, t));
    REQUIRE(cudaStreamEndCapture(stream, &graph));
    return graph;
  };

  // Pageable memory is read when the graph runs, not when it was captured.
  cudaGraph_t graph = capture(3, nullptr, false);
  cudaGraphExec_t exec;
  REQUIRE(cudaGraphInstantiate(&exec, graph, 0));
  REQUIRE(cudaGraphDestroy(graph));
  for (int run = 0; run < 4; ++run) {
    for (int i = 0; i < kCount; ++i) in[i] = run * 1000 + i;
    REQUIRE(cudaGraphLaunch(exec, stream));
    REQUIRE(cudaStreamSynchronize(stream));
    std::printf("run %d: %d to %d\n", run, out[0], out[kCount - 1]);
    right &= out[0] == 3000 * run && out[kCount - 1] == 3 * (1000 * run + kCount - 1);
  }
  REQUIRE(cudaGraphExecDestroy(exec));

  // Host functions, many runs without waiting in between.
  graph = capture(2, &first, true);
  REQUIRE(cudaGraphInstantiate(&exec, graph, 0));
  REQUIRE(cudaGraphDestroy(graph));
  for (int i = 0; i < kCount; ++i) in[i] = 1;
  for (int run = 0; run < 10; ++run) REQUIRE(cudaGraphLaunch(exec, stream));
  REQUIRE(cudaStreamSynchronize(stream));
  std::printf("host function: %d calls, sum %lld\n", first.calls, first.sum);
  right &= first.calls == 10 && first.sum == 2 * kCount;

  // The same executable graph with another capture's parameters.
  graph = capture(5, &second, true);
  cudaGraphExecUpdateResultInfo info;
  REQUIRE(cudaGraphExecUpdate(exec, graph, &info));
  REQUIRE(cudaGraphDestroy(graph));
  REQUIRE(cudaGraphLaunch(exec, stream));
  REQUIRE(cudaStreamSynchronize(stream));
  std::printf("updated: %d and %d calls, sum %lld\n", first.calls, second.calls, second.sum);
  right &= first.calls == 10 && second.calls == 1 && second.sum == 5 * kCount;
  REQUIRE(cudaGraphExecDestroy(exec));

  // By hand: a host node behind a child graph, and an event that the graph records.
  cudaGraph_t inner, outer;
  cudaGraphNode_t node, child, record;
  cudaEvent_t event;
  REQUIRE(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  REQUIRE(cudaGraphCreate(&inner, 0));
  REQUIRE(cudaGraphCreate(&outer, 0));
  cudaMemsetParams fill = {};
  fill.dst = device;
  fill.elementSize = 4;
  fill.value = 9;
  fill.width = kCount;
  fill.height = 1;
  REQUIRE(cudaGraphAddMemsetNode(&node, inner, nullptr, 0, &fill));
  REQUIRE(cudaGraphAddChildGraphNode(&child, outer, nullptr, 0, inner));
  cudaHostNodeParams call = {tally, &second};
  REQUIRE(cudaGraphAddHostNode(&node, outer, &child, 1, &call));
  REQUIRE(cudaGraphAddEventRecordNode(&record, outer, &node, 1, event));
  cudaGraphNodeType type;
  REQUIRE(cudaGraphNodeGetType(node, &type));
  right &= fact("a host node is one", type == cudaGraphNodeTypeHost);
  cudaHostNodeParams got = {};
  REQUIRE(cudaGraphHostNodeGetParams(node, &got));
  right &= fact("and knows its function", got.fn == tally && got.userData == &second);
  size_t nodes = 0;
  REQUIRE(cudaGraphGetNodes(outer, nullptr, &nodes));
  std::printf("nodes: %zu\n", nodes);
  REQUIRE(cudaGraphInstantiate(&exec, outer, 0));
  call.userData = &first;
  REQUIRE(cudaGraphExecHostNodeSetParams(exec, node, &call));
  REQUIRE(cudaGraphLaunch(exec, stream));
  REQUIRE(cudaEventSynchronize(event));
  REQUIRE(cudaStreamSynchronize(stream));
  REQUIRE(cudaMemcpy(out.data(), device, kCount * sizeof(int), cudaMemcpyDeviceToHost));
  std::printf("by hand: %d and %d calls, values %d and %d\n", first.calls, second.calls, out[0],
              out[kCount - 1]);
  right &= first.calls == 11 && second.calls == 1 && out[0] == 9 && out[kCount - 1] == 9;
  REQUIRE(cudaGraphExecDestroy(exec));
  REQUIRE(cudaGraphDestroy(outer));
  REQUIRE(cudaGraphDestroy(inner));
  REQUIRE(cudaStreamDestroy(stream));
  return right ? 0 : 1;
}
