// SPDX-License-Identifier: Apache-2.0
// Memory that graphs allocate and free: addresses and memory used again, allocations that outlive
// their graph, what frees them, capture, what is refused, and memory running out.
#include <vector>

#include "check.h"
#include "majors.h"

__global__ void fill(int* to, int count, int value) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) to[i] = value + i;
}
__global__ void twice(const int* from, int* to, int count) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) to[i] = 2 * from[i];
}

namespace {

constexpr int kCount = 1 << 10;
constexpr size_t kBytes = kCount * sizeof(int);
constexpr size_t kLarge = 64 << 20;

cudaStream_t g_stream;
int* g_host;  // pinned

cudaMemAllocNodeParams wanted(size_t bytes) {
  cudaMemAllocNodeParams params = {};
  params.bytesize = bytes;
  params.poolProps.allocType = cudaMemAllocationTypePinned;
  params.poolProps.location.type = cudaMemLocationTypeDevice;
  return params;
}

int* add_alloc(cudaGraph_t graph, const cudaGraphNode_t* after, size_t bytes,
               cudaGraphNode_t* node) {
  cudaMemAllocNodeParams params = wanted(bytes);
  REQUIRE(cudaGraphAddMemAllocNode(node, graph, after, after ? 1 : 0, &params));
  return static_cast<int*>(params.dptr);
}

void add_free(cudaGraph_t graph, const cudaGraphNode_t* after, void* pointer,
              cudaGraphNode_t* node) {
  REQUIRE(cudaGraphAddMemFreeNode(node, graph, after, after ? 1 : 0, pointer));
}

void add_fill(cudaGraph_t graph, const cudaGraphNode_t* after, int* to, int value,
              cudaGraphNode_t* node) {
  int count = kCount;
  void* arguments[] = {&to, &count, &value};
  cudaKernelNodeParams params = {};
  params.func = reinterpret_cast<void*>(fill);
  params.gridDim = dim3(kCount / 128, 1, 1);
  params.blockDim = dim3(128, 1, 1);
  params.kernelParams = arguments;
  REQUIRE(cudaGraphAddKernelNode(node, graph, after, after ? 1 : 0, &params));
}

cudaGraphExec_t instantiated(cudaGraph_t graph, unsigned long long flags = 0) {
  cudaGraphExec_t exec;
  REQUIRE(cudaGraphInstantiate(&exec, graph, flags));
  return exec;
}

bool refused(cudaError_t error) {
  cudaGetLastError();
  return error != cudaSuccess;
}

size_t footprint() {
  unsigned long long used = 0;
  REQUIRE(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrUsedMemCurrent, &used));
  return used;
}

void say_footprint(const char* when) {
  std::printf("footprint %s: %zu MiB\n", when, footprint() >> 20);
}

bool holds(const int* values, int value) {
  for (int i = 0; i < kCount; ++i)
    if (values[i] != value + i) return false;
  return true;
}

// alloc -> fill -> copy out -> free
cudaGraphExec_t closed_graph(size_t bytes, int value, int** pointer) {
  cudaGraph_t graph;
  cudaGraphNode_t alloc, kernel, copy, freed;
  REQUIRE(cudaGraphCreate(&graph, 0));
  *pointer = add_alloc(graph, nullptr, bytes, &alloc);
  add_fill(graph, &alloc, *pointer, value, &kernel);
  REQUIRE(cudaGraphAddMemcpyNode1D(&copy, graph, &kernel, 1, g_host, *pointer, kBytes,
                                   cudaMemcpyDeviceToHost));
  add_free(graph, &copy, *pointer, &freed);
  cudaGraphExec_t exec = instantiated(graph);
  REQUIRE(cudaGraphDestroy(graph));
  return exec;
}

void addresses() {
  cudaGraph_t graph;
  cudaGraphNode_t first, freed, behind, beside, last;
  REQUIRE(cudaGraphCreate(&graph, 0));
  int* a = add_alloc(graph, nullptr, kLarge, &first);
  add_free(graph, &first, a, &freed);
  int* b = add_alloc(graph, &freed, kLarge, &behind);
  int* c = add_alloc(graph, &first, kLarge, &beside);
  fact("an allocation behind a free has the same address", a == b);
  fact("one beside it has another", c != a);
  add_free(graph, &behind, b, &last);
  add_free(graph, &beside, c, &last);

  cudaGraphNodeType type;
  REQUIRE(cudaGraphNodeGetType(first, &type));
  bool right = type == cudaGraphNodeTypeMemAlloc;
  REQUIRE(cudaGraphNodeGetType(last, &type));
  right &= type == cudaGraphNodeTypeMemFree;
  cudaMemAllocNodeParams params;
  REQUIRE(cudaGraphMemAllocNodeGetParams(first, &params));
  right &= params.bytesize == kLarge && params.dptr == a;
  void* pointer = nullptr;
  REQUIRE(cudaGraphMemFreeNodeGetParams(last, &pointer));
  right &= pointer == c;
  fact("nodes say what they are", right);

  cudaGraph_t other;
  cudaGraphNode_t node;
  void* plain = nullptr;
  REQUIRE(cudaMalloc(&plain, 64));
  fact("it cannot be cloned", refused(cudaGraphClone(&other, graph)));
  REQUIRE(cudaGraphCreate(&other, 0));
  fact("it cannot be a child",
       refused(cudaGraphAddChildGraphNode(&node, other, nullptr, 0, graph)));
  fact("nodes stay", refused(cudaGraphDestroyNode(last)));
  fact("edges stay", refused(remove_graph_edge(graph, &first, &freed)));
  fact("nothing is freed twice", refused(cudaGraphAddMemFreeNode(&node, graph, nullptr, 0, c)));
  fact("nor by another graph", refused(cudaGraphAddMemFreeNode(&node, other, nullptr, 0, c)));
  fact("other memory is not freed",
       refused(cudaGraphAddMemFreeNode(&node, other, nullptr, 0, plain)));
  params = wanted(0);
  fact("nothing is not allocated",
       refused(cudaGraphAddMemAllocNode(&node, other, nullptr, 0, &params)));
  cudaGraphExec_t exec = instantiated(graph), second;
  fact("it is instantiated once at a time", refused(cudaGraphInstantiate(&second, graph, 0)));
  REQUIRE(cudaGraphExecDestroy(exec));
  REQUIRE(cudaGraphExecDestroy(instantiated(graph)));
  REQUIRE(cudaGraphDestroy(graph));
  REQUIRE(cudaGraphDestroy(other));
  REQUIRE(cudaFree(plain));
}

void memory_shared_by_graphs() {
  cudaGraphExec_t execs[4];
  int* pointers[4];
  for (int i = 0; i < 4; ++i) execs[i] = closed_graph(kLarge, 100 * i, &pointers[i]);
  bool differ = true;
  for (int i = 0; i < 4; ++i)
    for (int k = 0; k < i; ++k) differ &= pointers[i] != pointers[k];
  fact("graphs have addresses of their own", differ);
  say_footprint("before any launch");
  bool right = true;
  for (int round = 0; round < 2; ++round)
    for (int i = 0; i < 4; ++i) {
      REQUIRE(cudaGraphLaunch(execs[i], g_stream));
      if (i % 2) continue;  // some follow without a wait
      REQUIRE(cudaStreamSynchronize(g_stream));
      right &= holds(g_host, 100 * i);
    }
  REQUIRE(cudaStreamSynchronize(g_stream));
  fact("all found what they wrote", right && holds(g_host, 300));
  say_footprint("after eight launches in one stream");
  REQUIRE(cudaDeviceGraphMemTrim(0));
  say_footprint("trimmed");
  REQUIRE(cudaGraphLaunch(execs[1], g_stream));
  REQUIRE(cudaStreamSynchronize(g_stream));
  fact("a graph runs again after that", holds(g_host, 100));
  for (cudaGraphExec_t exec : execs) REQUIRE(cudaGraphExecDestroy(exec));
  REQUIRE(cudaDeviceGraphMemTrim(0));
  say_footprint("at the end");
}

bool reads(const int* from, int value) {
  REQUIRE(cudaMemcpyAsync(g_host, from, kBytes, cudaMemcpyDeviceToHost, g_stream));
  REQUIRE(cudaStreamSynchronize(g_stream));
  return holds(g_host, value);
}

void outliving() {
  cudaGraph_t graph, freeing;
  cudaGraphNode_t alloc, kernel, freed;
  REQUIRE(cudaGraphCreate(&graph, 0));
  int* kept = add_alloc(graph, nullptr, kLarge, &alloc);
  add_fill(graph, &alloc, kept, 7, &kernel);
  cudaGraphExec_t exec = instantiated(graph);
  REQUIRE(cudaGraphLaunch(exec, g_stream));
  fact("it can be used after the run", reads(kept, 7));
  fact("another run is refused", refused(cudaGraphLaunch(exec, g_stream)));
  REQUIRE(cudaDeviceGraphMemTrim(0));
  say_footprint("with an allocation left");
  REQUIRE(cudaFree(kept));
  fact("it is freed once", refused(cudaFree(kept)));
  say_footprint("when it is freed");
  REQUIRE(cudaDeviceGraphMemTrim(0));
  say_footprint("trimmed");

  REQUIRE(cudaGraphLaunch(exec, g_stream));
  twice<<<kCount / 128, 128, 0, g_stream>>>(kept, kept, kCount);
  REQUIRE(cudaMemcpyAsync(g_host, kept, kBytes, cudaMemcpyDeviceToHost, g_stream));
  REQUIRE(cudaFreeAsync(kept, g_stream));
  REQUIRE(cudaGraphLaunch(exec, g_stream));
  REQUIRE(cudaStreamSynchronize(g_stream));
  fact("freed in the stream, and made again", g_host[3] == 20 && reads(kept, 7));

  REQUIRE(cudaGraphCreate(&freeing, 0));
  add_free(freeing, nullptr, kept, &freed);
  cudaGraphExec_t ends = instantiated(freeing);
  REQUIRE(cudaGraphLaunch(ends, g_stream));
  fact("a graph that frees what is not there is refused", refused(cudaGraphLaunch(ends, g_stream)));
  REQUIRE(cudaGraphLaunch(exec, g_stream));
  fact("freed by another graph, and made again", reads(kept, 7));
  REQUIRE(cudaGraphLaunch(ends, g_stream));
  REQUIRE(cudaStreamSynchronize(g_stream));
  REQUIRE(cudaGraphExecDestroy(exec));

  exec = instantiated(graph, cudaGraphInstantiateFlagAutoFreeOnLaunch);
  for (int i = 0; i < 3; ++i) REQUIRE(cudaGraphLaunch(exec, g_stream));
  fact("freed by the next launch", reads(kept, 7));
  REQUIRE(cudaGraphExecDestroy(exec));
  REQUIRE(cudaGraphDestroy(graph));
  fact("what is left outlives its graph", reads(kept, 7));
  REQUIRE(cudaFreeAsync(kept, g_stream));
  REQUIRE(cudaStreamSynchronize(g_stream));
  REQUIRE(cudaGraphExecDestroy(ends));
  REQUIRE(cudaGraphDestroy(freeing));
  REQUIRE(cudaDeviceGraphMemTrim(0));
  say_footprint("at the end");
}

// Many small ones, by capture, over two streams.
void captured() {
  constexpr int kRounds = 20;
  cudaStream_t side;
  cudaEvent_t fork, join;
  REQUIRE(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
  REQUIRE(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
  REQUIRE(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
  int *a = nullptr, *b = nullptr, *result = nullptr;
  void* outside = nullptr;
  REQUIRE(cudaMallocAsync(&outside, 64, g_stream));
  REQUIRE(cudaStreamBeginCapture(g_stream, cudaStreamCaptureModeGlobal));
  REQUIRE(cudaMallocAsync(&result, kBytes, g_stream));
  std::vector<int*> seen;
  for (int i = 0; i < kRounds; ++i) {
    REQUIRE(cudaMallocAsync(&a, kBytes, g_stream));
    REQUIRE(cudaMallocAsync(&b, kBytes, g_stream));
    seen.push_back(a);
    REQUIRE(cudaEventRecord(fork, g_stream));
    REQUIRE(cudaStreamWaitEvent(side, fork, 0));
    fill<<<kCount / 128, 128, 0, side>>>(a, kCount, i);
    REQUIRE(cudaEventRecord(join, side));
    REQUIRE(cudaStreamWaitEvent(g_stream, join, 0));
    twice<<<kCount / 128, 128, 0, g_stream>>>(a, b, kCount);
    REQUIRE(cudaMemcpyAsync(result, b, kBytes, cudaMemcpyDeviceToDevice, g_stream));
    REQUIRE(cudaFreeAsync(a, g_stream));
    REQUIRE(cudaFreeAsync(b, g_stream));
  }
  REQUIRE(cudaMemcpyAsync(g_host, result, kBytes, cudaMemcpyDeviceToHost, g_stream));
  REQUIRE(cudaFreeAsync(result, g_stream));
  // What has joined may go before the end.
  REQUIRE(cudaEventDestroy(fork));
  REQUIRE(cudaEventDestroy(join));
  REQUIRE(cudaStreamDestroy(side));
  cudaGraph_t graph;
  REQUIRE(cudaStreamEndCapture(g_stream, &graph));
  size_t nodes = 0;
  REQUIRE(cudaGraphGetNodes(graph, nullptr, &nodes));
  std::printf("captured %zu nodes\n", nodes);
  bool same = true;
  for (int* one : seen) same &= one == seen[0];
  fact("each round has the same address", same);
  cudaGraphExec_t exec = instantiated(graph);
  bool right = true;
  for (int i = 0; i < 3; ++i) {
    g_host[5] = 0;
    REQUIRE(cudaGraphLaunch(exec, g_stream));
    REQUIRE(cudaStreamSynchronize(g_stream));
    right &= g_host[5] == 2 * (kRounds - 1 + 5);
  }
  fact("the result is right", right);
  REQUIRE(cudaFreeAsync(outside, g_stream));
  REQUIRE(cudaGraphExecDestroy(exec));
  REQUIRE(cudaGraphDestroy(graph));
  REQUIRE(cudaStreamSynchronize(g_stream));
  REQUIRE(cudaDeviceGraphMemTrim(0));
  say_footprint("at the end");
}

void out_of_memory() {
  size_t available = 0, total = 0;
  REQUIRE(cudaMemGetInfo(&available, &total));
  void* most = nullptr;
  REQUIRE(cudaMalloc(&most, available / 4 * 3));
  int* pointer;
  cudaGraphExec_t exec = closed_graph(available / 2, 11, &pointer);
  std::printf("a launch without memory: %s\n", cudaGetErrorName(cudaGraphLaunch(exec, g_stream)));
  cudaGetLastError();
  REQUIRE(cudaFree(most));
  REQUIRE(cudaGraphLaunch(exec, g_stream));
  REQUIRE(cudaStreamSynchronize(g_stream));
  fact("with memory it runs", holds(g_host, 11));
  REQUIRE(cudaGraphExecDestroy(exec));
  REQUIRE(cudaDeviceGraphMemTrim(0));
  say_footprint("at the end");
}

}  // namespace

int main() {
  REQUIRE(cudaMallocHost(&g_host, kBytes));
  REQUIRE(cudaStreamCreateWithFlags(&g_stream, cudaStreamNonBlocking));
  addresses();
  memory_shared_by_graphs();
  outliving();
  captured();
  out_of_memory();
  return 0;
}
