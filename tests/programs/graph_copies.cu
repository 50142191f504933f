// SPDX-License-Identifier: Apache-2.0
// Copy nodes with host memory: large pinned memory, pageable memory at odd places, boxes; read and
// written when the graph comes to the node; changed in executable graphs and by an update; behind
// and before host functions; two executable graphs of one graph, launched in two streams at once.
// `graph_copies [MIB]`: how much is large, 100 MiB.
#include <cstdlib>
#include <cstring>
#include <vector>

#include "check.h"
#include "majors.h"

constexpr size_t kSmall = (3 << 20) + 17;

static size_t large = 100 << 20;
static bool right = true;

static cudaStream_t make_stream() {
  cudaStream_t stream;
  REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

static void fill(void* at, size_t bytes, uint32_t seed) {
  auto* out = static_cast<unsigned char*>(at);
  for (size_t i = 0; i < bytes; i += 61) out[i] = static_cast<unsigned char>(seed + i / 61 * 7);
  out[bytes - 1] = static_cast<unsigned char>(seed);
}

static bool same(const void* a, const void* b, size_t bytes) {
  return std::memcmp(a, b, bytes) == 0;
}

static size_t nodes_of(cudaGraph_t graph) {
  size_t count = 0;
  REQUIRE(cudaGraphGetNodes(graph, nullptr, &count));
  return count;
}

// host -> device -> host, by hand; what the graph holds is told as it was given.
struct RoundTrip {
  cudaGraph_t graph = nullptr;
  cudaGraphNode_t in = nullptr, out = nullptr;
  cudaGraphExec_t exec = nullptr;
  RoundTrip(void* to, void* device, const void* from, size_t bytes) {
    REQUIRE(cudaGraphCreate(&graph, 0));
    REQUIRE(cudaGraphAddMemcpyNode1D(&in, graph, nullptr, 0, device, from, bytes,
                                     cudaMemcpyHostToDevice));
    REQUIRE(
        cudaGraphAddMemcpyNode1D(&out, graph, &in, 1, to, device, bytes, cudaMemcpyDeviceToHost));
    REQUIRE(cudaGraphInstantiate(&exec, graph, 0));
  }
  ~RoundTrip() {
    REQUIRE(cudaGraphExecDestroy(exec));
    REQUIRE(cudaGraphDestroy(graph));
  }
};

static void large_pinned(cudaStream_t stream) {
  char *in, *out, *device;
  REQUIRE(cudaMallocHost(&in, large));
  REQUIRE(cudaMallocHost(&out, large));
  REQUIRE(cudaMalloc(&device, large));
  std::memset(in, 1, large);
  {
    RoundTrip trip(out + 3, device, in + 1, large - 4);
    bool all = true;
    for (uint32_t run = 0; run < 2; ++run) {
      fill(in, large, run);
      REQUIRE(cudaGraphLaunch(trip.exec, stream));
      REQUIRE(cudaStreamSynchronize(stream));
      all &= same(out + 3, in + 1, large - 4);
    }
    right &= fact("large pinned copies, relaunched", all);
    cudaMemcpy3DParms params = {};
    REQUIRE(cudaGraphMemcpyNodeGetParams(trip.in, &params));
    right &= fact("a node tells where it copies from", params.srcPtr.ptr == in + 1);
    // Elsewhere in the same memory, in the executable graph.
    REQUIRE(cudaGraphExecMemcpyNodeSetParams1D(trip.exec, trip.in, device, in + large / 5,
                                               large / 2, cudaMemcpyHostToDevice));
    REQUIRE(cudaGraphExecMemcpyNodeSetParams1D(trip.exec, trip.out, out + large / 5 * 2, device,
                                               large / 2, cudaMemcpyDeviceToHost));
    REQUIRE(cudaGraphLaunch(trip.exec, stream));
    REQUIRE(cudaStreamSynchronize(stream));
    right &= fact("changed to other places", same(out + large / 5 * 2, in + large / 5, large / 2));
  }
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  const size_t rows = large / 10 * 9 >> 20;
  REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  REQUIRE(cudaMemcpyAsync(device, in, large, cudaMemcpyHostToDevice, stream));
  REQUIRE(
      cudaMemcpy2DAsync(out, 1 << 20, device, 1 << 20, 1000, rows, cudaMemcpyDeviceToHost, stream));
  REQUIRE(cudaStreamEndCapture(stream, &graph));
  std::printf("captured nodes of pinned memory: %zu\n", nodes_of(graph));
  REQUIRE(cudaGraphInstantiate(&exec, graph, 0));
  fill(in, large, 9);
  REQUIRE(cudaGraphLaunch(exec, stream));
  REQUIRE(cudaStreamSynchronize(stream));
  bool all = true;
  for (size_t row = 0; row < rows; ++row) all &= same(out + (row << 20), in + (row << 20), 1000);
  right &= fact("captured copies", all);
  REQUIRE(cudaGraphExecDestroy(exec));
  REQUIRE(cudaGraphDestroy(graph));
  REQUIRE(cudaFree(device));
  REQUIRE(cudaFreeHost(out));
  REQUIRE(cudaFreeHost(in));
}

static void pageable(cudaStream_t stream) {
  std::vector<char> in(kSmall + 5), out(kSmall + 9), other_in(kSmall), other_out(kSmall);
  char* device;
  REQUIRE(cudaMalloc(&device, kSmall));
  RoundTrip trip(out.data() + 9, device, in.data() + 5, kSmall);
  bool all = true;
  for (uint32_t run = 0; run < 4; ++run) {
    fill(in.data(), in.size(), 100 + run);
    REQUIRE(cudaGraphLaunch(trip.exec, stream));
    REQUIRE(cudaStreamSynchronize(stream));
    all &= same(out.data() + 9, in.data() + 5, kSmall);
  }
  right &= fact("pageable copies, relaunched", all);
  cudaGraphNodeType type;
  cudaMemcpy3DParms params = {};
  REQUIRE(cudaGraphNodeGetType(trip.out, &type));
  REQUIRE(cudaGraphMemcpyNodeGetParams(trip.out, &params));
  right &= fact("it is a node of a copy", type == cudaGraphNodeTypeMemcpy &&
                                              params.dstPtr.ptr == out.data() + 9 &&
                                              nodes_of(trip.graph) == 2);
  // Other memory in the executable graph; the graph itself keeps its own.
  fill(other_in.data(), kSmall, 7);
  REQUIRE(cudaGraphExecMemcpyNodeSetParams1D(trip.exec, trip.in, device, other_in.data(), kSmall,
                                             cudaMemcpyHostToDevice));
  REQUIRE(cudaGraphExecMemcpyNodeSetParams1D(trip.exec, trip.out, other_out.data(), device, kSmall,
                                             cudaMemcpyDeviceToHost));
  REQUIRE(cudaGraphLaunch(trip.exec, stream));
  REQUIRE(cudaStreamSynchronize(stream));
  right &= fact("changed to other memory", other_out == other_in);
  cudaGraphExecUpdateResultInfo info;
  REQUIRE(cudaGraphExecUpdate(trip.exec, trip.graph, &info));
  fill(in.data(), in.size(), 55);
  REQUIRE(cudaGraphLaunch(trip.exec, stream));
  REQUIRE(cudaStreamSynchronize(stream));
  right &= fact("and back by an update",
                same(out.data() + 9, in.data() + 5, kSmall) && other_out == other_in);
  // In the graph: from pageable to pinned memory and back again.
  char* pinned;
  REQUIRE(cudaMallocHost(&pinned, kSmall));
  for (char* from : {pinned, other_in.data()}) {
    fill(from, kSmall, from == pinned ? 3 : 4);
    REQUIRE(cudaGraphMemcpyNodeSetParams1D(trip.in, device, from, kSmall, cudaMemcpyHostToDevice));
    cudaGraphExec_t exec;
    REQUIRE(cudaGraphInstantiate(&exec, trip.graph, 0));
    REQUIRE(cudaGraphLaunch(exec, stream));
    REQUIRE(cudaStreamSynchronize(stream));
    right &= fact("changed in the graph", same(out.data() + 9, from, kSmall));
    REQUIRE(cudaGraphExecDestroy(exec));
  }
  size_t edges = 0;
  REQUIRE(count_graph_edges(trip.graph, &edges));
  std::printf("nodes %zu, edges %zu\n", nodes_of(trip.graph), edges);
  REQUIRE(cudaFreeHost(pinned));
  REQUIRE(cudaFree(device));
}

static void boxes(cudaStream_t stream) {
  constexpr size_t kWidth = 100, kRows = 30, kDepth = 5, kPitch = 131, kHeight = 33;
  std::vector<char> in(kPitch * kHeight * kDepth), out(in.size(), 0);
  cudaPitchedPtr device;
  REQUIRE(cudaMalloc3D(&device, make_cudaExtent(kWidth, kRows, kDepth)));
  cudaMemcpy3DParms to_device = {}, to_host = {};
  to_device.srcPtr = make_cudaPitchedPtr(in.data(), kPitch, kPitch, kHeight);
  to_device.srcPos = make_cudaPos(3, 2, 0);
  to_device.dstPtr = device;
  to_device.extent = make_cudaExtent(kWidth, kRows, kDepth);
  to_device.kind = cudaMemcpyHostToDevice;
  to_host.srcPtr = device;
  to_host.dstPtr = make_cudaPitchedPtr(out.data(), kPitch, kPitch, kHeight);
  to_host.dstPos = make_cudaPos(3, 2, 0);
  to_host.extent = to_device.extent;
  to_host.kind = cudaMemcpyDeviceToHost;
  for (const bool captured : {false, true}) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaGraphNode_t first, second;
    if (captured) {
      REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
      REQUIRE(cudaMemcpy3DAsync(&to_device, stream));
      REQUIRE(cudaMemcpy3DAsync(&to_host, stream));
      REQUIRE(cudaStreamEndCapture(stream, &graph));
    } else {
      REQUIRE(cudaGraphCreate(&graph, 0));
      REQUIRE(cudaGraphAddMemcpyNode(&first, graph, nullptr, 0, &to_device));
      REQUIRE(cudaGraphAddMemcpyNode(&second, graph, &first, 1, &to_host));
    }
    REQUIRE(cudaGraphInstantiate(&exec, graph, 0));
    fill(in.data(), in.size(), captured ? 21 : 22);
    std::memset(out.data(), 0, out.size());
    REQUIRE(cudaGraphLaunch(exec, stream));
    REQUIRE(cudaStreamSynchronize(stream));
    bool all = true;
    for (size_t z = 0; z < kDepth; ++z)
      for (size_t y = 0; y < kHeight; ++y)
        for (size_t x = 0; x < kPitch; ++x) {
          const size_t at = (z * kHeight + y) * kPitch + x;
          const bool inside = x >= 3 && x < 3 + kWidth && y >= 2 && y < 2 + kRows;
          all &= out[at] == (inside ? in[at] : 0);
        }
    right &= fact(captured ? "captured boxes" : "boxes", all && nodes_of(graph) == 2);
    REQUIRE(cudaGraphExecDestroy(exec));
    REQUIRE(cudaGraphDestroy(graph));
  }
  REQUIRE(cudaFree(device.ptr));
}

// A host function between two copies: it sees what the first brought, the second takes what it
// left. In pinned memory: of pageable memory a driver may take and give its copies at other times
// (580 on an H200 shows the function nothing of what the first node copied).
struct Step {
  int* values;
  int count, calls, sum;
};
static void step(void* data) {
  auto* s = static_cast<Step*>(data);
  ++s->calls;
  for (int i = 0; i < s->count; ++i) {
    s->sum += s->values[i];
    s->values[i] += 1;
  }
}

static void with_host_functions(cudaStream_t stream, cudaStream_t other) {
  constexpr int kCount = 1000;
  constexpr size_t kBytes = kCount * sizeof(int);
  int *values, *result, *twice, *device, *second_device;
  for (int** at : {&values, &result, &twice}) {
    REQUIRE(cudaMallocHost(at, kBytes));
    std::memset(*at, at == &values ? 0 : 0xff, kBytes);
  }
  REQUIRE(cudaMalloc(&device, kCount * sizeof(int)));
  REQUIRE(cudaMalloc(&second_device, kCount * sizeof(int)));
  REQUIRE(cudaMemset(device, 0, kCount * sizeof(int)));
  REQUIRE(cudaDeviceSynchronize());  // the streams do not wait for the memset by themselves
  Step s{values, kCount, 0, 0};
  cudaGraph_t graph, clone;
  cudaGraphNode_t fetch, host, store, last, between;
  REQUIRE(cudaGraphCreate(&graph, 0));
  REQUIRE(cudaGraphAddMemcpyNode1D(&fetch, graph, nullptr, 0, values, device, kBytes,
                                   cudaMemcpyDeviceToHost));
  cudaHostNodeParams call = {step, &s};
  REQUIRE(cudaGraphAddHostNode(&host, graph, &fetch, 1, &call));
  REQUIRE(cudaGraphAddMemcpyNode1D(&store, graph, &host, 1, device, values, kBytes,
                                   cudaMemcpyHostToDevice));
  REQUIRE(cudaGraphAddMemcpyNode1D(&last, graph, &store, 1, result, device, kBytes,
                                   cudaMemcpyDeviceToHost));
  REQUIRE(cudaGraphAddMemcpyNode1D(&between, graph, &last, 1, twice, result, kBytes,
                                   cudaMemcpyHostToHost));
  cudaGraphExec_t exec, exec2;
  REQUIRE(cudaGraphInstantiate(&exec, graph, 0));
  REQUIRE(cudaGraphClone(&clone, graph));
  REQUIRE(cudaGraphInstantiate(&exec2, clone, 0));
  for (int run = 0; run < 5; ++run) REQUIRE(cudaGraphLaunch(exec, stream));
  REQUIRE(cudaStreamSynchronize(stream));
  for (int run = 0; run < 5; ++run) REQUIRE(cudaGraphLaunch(exec2, stream));
  REQUIRE(cudaStreamSynchronize(stream));
  std::printf("host function: %d calls, sum %d, values %d and %d, copied %d\n", s.calls, s.sum,
              result[0], result[kCount - 1], twice[kCount / 2]);
  right &= s.calls == 10 && s.sum == 45 * kCount && result[0] == 10 && twice[kCount / 2] == 10;
  REQUIRE(cudaGraphExecDestroy(exec));
  REQUIRE(cudaGraphExecDestroy(exec2));
  REQUIRE(cudaGraphDestroy(clone));
  REQUIRE(cudaGraphDestroy(graph));
  for (int* at : {values, result, twice}) REQUIRE(cudaFreeHost(at));

  // Two executable graphs of one graph at the same time, in two streams; one has memory of its own.
  std::vector<int> in(kCount, 5), in2(kCount, 6), out(kCount), out2(kCount);
  RoundTrip trip(out.data(), device, in.data(), kBytes);
  REQUIRE(cudaGraphInstantiate(&exec, trip.graph, 0));
  REQUIRE(cudaGraphExecMemcpyNodeSetParams1D(exec, trip.in, second_device, in2.data(), kBytes,
                                             cudaMemcpyHostToDevice));
  REQUIRE(cudaGraphExecMemcpyNodeSetParams1D(exec, trip.out, out2.data(), second_device, kBytes,
                                             cudaMemcpyDeviceToHost));
  for (int run = 0; run < 20; ++run) {
    REQUIRE(cudaGraphLaunch(trip.exec, stream));
    REQUIRE(cudaGraphLaunch(exec, other));
  }
  REQUIRE(cudaStreamSynchronize(stream));
  REQUIRE(cudaStreamSynchronize(other));
  right &= fact("two at once", out == in && out2 == in2);
  REQUIRE(cudaGraphExecDestroy(exec));

  // As a child, twice; then without one of the two.
  cudaGraph_t outer;
  cudaGraphNode_t children[2];
  REQUIRE(cudaGraphCreate(&outer, 0));
  REQUIRE(cudaGraphAddChildGraphNode(&children[0], outer, nullptr, 0, trip.graph));
  REQUIRE(cudaGraphAddChildGraphNode(&children[1], outer, &children[0], 1, trip.graph));
  for (int i = 0; i < kCount; ++i) in[i] = i;
  for (int round = 0; round < 2; ++round) {
    REQUIRE(cudaGraphInstantiate(&exec, outer, 0));
    std::fill(out.begin(), out.end(), 0);
    REQUIRE(cudaGraphLaunch(exec, other));
    REQUIRE(cudaStreamSynchronize(other));
    right &= fact("as a child", out == in);
    REQUIRE(cudaGraphExecDestroy(exec));
    if (round == 0) REQUIRE(cudaGraphDestroyNode(children[0]));
  }
  REQUIRE(cudaGraphDestroy(outer));
  REQUIRE(cudaFree(second_device));
  REQUIRE(cudaFree(device));
}

int main(int argc, char** argv) {
  if (argc > 1) large = static_cast<size_t>(std::atoi(argv[1])) << 20;
  cudaStream_t stream = make_stream(), other = make_stream();
  large_pinned(stream);
  pageable(stream);
  boxes(stream);
  with_host_functions(stream, other);
  REQUIRE(cudaStreamDestroy(other));
  REQUIRE(cudaStreamDestroy(stream));
  REQUIRE(cudaDeviceSynchronize());
  return right ? 0 : 1;
}
