// SPDX-License-Identifier: Apache-2.0
// Conditional nodes: bodies filled by hand and by capture, values set by kernels and by default,
// one condition inside another, one in a capture, and what CUDA says such graphs cannot do.
#include "check.h"
#include "majors.h"

__global__ void set_from(const int* value, cudaGraphConditionalHandle handle) {
  cudaGraphSetConditional(handle, static_cast<unsigned>(*value));
}
__global__ void add(int* value, int amount) { *value += amount; }
// One round less to go; goes on while there are any.
__global__ void count_down(int* rounds, cudaGraphConditionalHandle handle) {
  cudaGraphSetConditional(handle, static_cast<unsigned>(--*rounds));
}
__global__ void set_if_even(const int* rounds, cudaGraphConditionalHandle handle) {
  cudaGraphSetConditional(handle, *rounds % 2 == 0 ? 1u : 0u);
}

namespace {

int* g_select;  // what the condition is set from
int* g_result;

cudaGraphNode_t add_kernel(cudaGraph_t graph, const cudaGraphNode_t* after, void* function,
                           void** arguments) {
  cudaGraphNodeParams params = {};
  params.type = cudaGraphNodeTypeKernel;
  params.kernel.func = function;
  params.kernel.gridDim = params.kernel.blockDim = dim3(1, 1, 1);
  params.kernel.kernelParams = arguments;
  cudaGraphNode_t node;
  REQUIRE(add_graph_node(&node, graph, after, after ? 1 : 0, &params));
  return node;
}

void add_amount(cudaGraph_t graph, int amount) {
  void* arguments[] = {&g_result, &amount};
  add_kernel(graph, nullptr, reinterpret_cast<void*>(add), arguments);
}

cudaGraphNodeParams condition(cudaGraphConditionalHandle handle, cudaGraphConditionalNodeType type,
                              unsigned size) {
  cudaGraphNodeParams params = {};
  params.type = cudaGraphNodeTypeConditional;
  params.conditional.handle = handle;
  params.conditional.type = type;
  params.conditional.size = size;
  return params;
}

void put(int* to, int value) {
  REQUIRE(cudaMemcpy(to, &value, sizeof value, cudaMemcpyHostToDevice));
}

int run(cudaGraphExec_t exec, int select) {
  int result = 0;
  put(g_select, select);
  put(g_result, 0);
  REQUIRE(cudaGraphLaunch(exec, nullptr));
  REQUIRE(cudaMemcpy(&result, g_result, sizeof result, cudaMemcpyDeviceToHost));
  return result;
}

// set_from -> condition of `size` bodies, of which body i adds 10 to the power of i.
void selected(const char* name, cudaGraphConditionalNodeType type, unsigned size, int runs) {
  cudaGraph_t graph;
  REQUIRE(cudaGraphCreate(&graph, 0));
  cudaGraphConditionalHandle handle;
  REQUIRE(cudaGraphConditionalHandleCreate(&handle, graph));
  void* arguments[] = {&g_select, &handle};
  cudaGraphNode_t first = add_kernel(graph, nullptr, reinterpret_cast<void*>(set_from), arguments);
  cudaGraphNodeParams params = condition(handle, type, size);
  cudaGraphNode_t node;
  REQUIRE(add_graph_node(&node, graph, &first, 1, &params));
  for (int i = 0, amount = 1; i < static_cast<int>(size); ++i, amount *= 10)
    add_amount(params.conditional.phGraph_out[i], amount);
  cudaGraphExec_t exec;
  REQUIRE(cudaGraphInstantiate(&exec, graph, 0));
  std::printf("%s:", name);
  for (int i = 0; i < runs; ++i) std::printf(" %d", run(exec, i));
  std::printf("\n");
  REQUIRE(cudaGraphExecDestroy(exec));
  REQUIRE(cudaGraphDestroy(graph));
}

// A loop by capture, with a condition inside and copies within; it runs at least once.
void loop() {
  cudaGraph_t graph;
  REQUIRE(cudaGraphCreate(&graph, 0));
  cudaGraphConditionalHandle handle, inner;
  REQUIRE(cudaGraphConditionalHandleCreate(&handle, graph, 1, cudaGraphCondAssignDefault));
  cudaGraphNodeParams params = condition(handle, cudaGraphCondTypeWhile, 1);
  cudaGraphNode_t node, inside, last;
  REQUIRE(add_graph_node(&node, graph, nullptr, 0, &params));
  cudaGraph_t body = params.conditional.phGraph_out[0];
  REQUIRE(cudaGraphConditionalHandleCreate(&inner, body));

  cudaStream_t stream;
  REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  REQUIRE(cudaStreamBeginCaptureToGraph(stream, body, nullptr, nullptr, 0,
                                        cudaStreamCaptureModeGlobal));
  add<<<1, 1, 0, stream>>>(g_result, 1);
  set_if_even<<<1, 1, 0, stream>>>(g_select, inner);
  REQUIRE(cudaStreamEndCapture(stream, nullptr));
  size_t count = 0;
  REQUIRE(cudaGraphGetNodes(body, nullptr, &count));
  cudaGraphNode_t nodes[2];
  REQUIRE(cudaGraphGetNodes(body, nodes, &count));
  cudaGraphNodeParams even = condition(inner, cudaGraphCondTypeIf, 1);
  size_t leaf = 0;  // the one that nothing depends on
  for (size_t i = 0, n = 0; i < count; ++i) {
    REQUIRE(count_dependent_nodes(nodes[i], &n));
    if (n == 0) leaf = i;
  }
  REQUIRE(add_graph_node(&inside, body, &nodes[leaf], 1, &even));
  add_amount(even.conditional.phGraph_out[0], 100);
  void* arguments[] = {&g_select, &handle};
  last = add_kernel(body, &inside, reinterpret_cast<void*>(count_down), arguments);
  (void)last;

  cudaGraphNodeType type;
  REQUIRE(cudaGraphNodeGetType(node, &type));
  fact("the node's type is conditional", type == cudaGraphNodeTypeConditional);
  cudaGraphExec_t exec, second;
  REQUIRE(cudaGraphInstantiate(&exec, graph, 0));
  std::printf("loop of 1: %d\n", run(exec, 1));
  std::printf("loop of 7: %d\n", run(exec, 7));

  cudaGraph_t other;
  fact("it cannot be cloned", cudaGraphClone(&other, graph) != cudaSuccess);
  REQUIRE(cudaGraphCreate(&other, 0));
  fact("it cannot be a child",
       cudaGraphAddChildGraphNode(&last, other, nullptr, 0, graph) != cudaSuccess);
  fact("it is instantiated once at a time", cudaGraphInstantiate(&second, graph, 0) != cudaSuccess);
  fact("a body cannot be destroyed", cudaGraphDestroy(body) != cudaSuccess);
  cudaGetLastError();
  REQUIRE(cudaGraphExecDestroy(exec));
  REQUIRE(cudaGraphInstantiate(&exec, graph, 0));
  std::printf("instantiated again: %d\n", run(exec, 2));
  REQUIRE(cudaGraphExecDestroy(exec));
  REQUIRE(cudaGraphDestroy(other));
  REQUIRE(cudaGraphDestroy(graph));
  REQUIRE(cudaStreamDestroy(stream));
}

// A condition put into a capture.
void captured(int* pinned) {
  cudaStream_t stream;
  REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  cudaStreamCaptureStatus status;
  cudaGraph_t graph;
  const cudaGraphNode_t* after;
  size_t count;
  REQUIRE(what_is_captured(stream, &status, &graph, &after, &count));
  cudaGraphConditionalHandle handle;
  REQUIRE(cudaGraphConditionalHandleCreate(&handle, graph));
  set_from<<<1, 1, 0, stream>>>(g_select, handle);
  REQUIRE(what_is_captured(stream, &status, &graph, &after, &count));
  cudaGraphNodeParams params = condition(handle, cudaGraphCondTypeIf, 1);
  cudaGraphNode_t node;
  REQUIRE(add_graph_node(&node, graph, after, count, &params));
  REQUIRE(capture_goes_on_after(stream, &node));
  add<<<1, 1, 0, stream>>>(g_result, 1000);
  REQUIRE(cudaStreamEndCapture(stream, &graph));
  cudaGraph_t body = params.conditional.phGraph_out[0];
  REQUIRE(cudaStreamBeginCaptureToGraph(stream, body, nullptr, nullptr, 0,
                                        cudaStreamCaptureModeGlobal));
  add<<<1, 1, 0, stream>>>(g_result, 1);
  REQUIRE(cudaMemcpyAsync(pinned, g_result, sizeof(int), cudaMemcpyDeviceToHost, stream));
  REQUIRE(cudaStreamEndCapture(stream, nullptr));
  cudaGraphExec_t exec;
  REQUIRE(cudaGraphInstantiate(&exec, graph, 0));
  for (int select = 0; select < 2; ++select) {
    *pinned = -1;
    const int result = run(exec, select);
    std::printf("captured, %d: %d, host memory %d\n", select, result, *pinned);
  }
  REQUIRE(cudaGraphExecDestroy(exec));
  REQUIRE(cudaGraphDestroy(graph));
  REQUIRE(cudaStreamDestroy(stream));
}

}  // namespace

int main() {
  int* pinned;
  REQUIRE(cudaMalloc(&g_select, sizeof(int)));
  REQUIRE(cudaMalloc(&g_result, sizeof(int)));
  REQUIRE(cudaMallocHost(&pinned, sizeof(int)));
  selected("if", cudaGraphCondTypeIf, 1, 3);
  selected("if and else", cudaGraphCondTypeIf, 2, 3);
  selected("switch", cudaGraphCondTypeSwitch, 4, 6);
  loop();
  captured(pinned);

  cudaGraph_t graph, other;
  cudaGraphNode_t node;
  REQUIRE(cudaGraphCreate(&graph, 0));
  REQUIRE(cudaGraphCreate(&other, 0));
  cudaGraphConditionalHandle handle;
  REQUIRE(cudaGraphConditionalHandleCreate(&handle, other));
  cudaGraphNodeParams params = condition(handle, cudaGraphCondTypeIf, 1);
  fact("another graph's value is refused",
       add_graph_node(&node, graph, nullptr, 0, &params) != cudaSuccess);
  params = condition(handle, cudaGraphCondTypeWhile, 2);
  fact("a loop has one body", add_graph_node(&node, other, nullptr, 0, &params) != cudaSuccess);
  params = condition(handle, cudaGraphCondTypeIf, 3);
  fact("a choice has two at most",
       add_graph_node(&node, other, nullptr, 0, &params) != cudaSuccess);
  REQUIRE(cudaGraphDestroy(graph));
  REQUIRE(cudaGraphDestroy(other));
  return 0;
}
