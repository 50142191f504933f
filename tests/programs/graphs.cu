// SPDX-License-Identifier: Apache-2.0
// A graph captured from two streams and launched several times, one built node by node, an update
// of a kernel's parameters, and what is refused during capture.
#include "check.h"

__global__ void add(int* value, int amount) { *value += amount; }
__global__ void multiply(int* value, int factor) { *value *= factor; }

int main() {
  int *device = nullptr, *other = nullptr, *host = nullptr;
  REQUIRE(cudaMalloc(&device, sizeof(int)));
  REQUIRE(cudaMalloc(&other, sizeof(int)));
  REQUIRE(cudaMallocHost(&host, 2 * sizeof(int)));
  REQUIRE(cudaMemset(device, 0, sizeof(int)));
  REQUIRE(cudaMemset(other, 0, sizeof(int)));
  REQUIRE(cudaDeviceSynchronize());
  cudaStream_t stream, side;
  cudaEvent_t fork, join;
  REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  REQUIRE(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
  REQUIRE(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
  REQUIRE(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
  bool right = true;

  REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  add<<<1, 1, 0, stream>>>(device, 3);
  REQUIRE(cudaEventRecord(fork, stream));
  REQUIRE(cudaStreamWaitEvent(side, fork, 0));
  add<<<1, 1, 0, side>>>(other, 10);
  multiply<<<1, 1, 0, stream>>>(device, 2);
  REQUIRE(cudaEventRecord(join, side));
  REQUIRE(cudaStreamWaitEvent(stream, join, 0));
  REQUIRE(cudaMemcpyAsync(host, device, sizeof(int), cudaMemcpyDeviceToHost, stream));
  REQUIRE(cudaMemcpyAsync(host + 1, other, sizeof(int), cudaMemcpyDeviceToHost, stream));
  cudaStreamCaptureStatus status;
  REQUIRE(cudaStreamIsCapturing(side, &status));
  right &= fact("the side stream captures too", status == cudaStreamCaptureStatusActive);
  cudaGraph_t graph;
  REQUIRE(cudaStreamEndCapture(stream, &graph));
  size_t nodes = 0;
  REQUIRE(cudaGraphGetNodes(graph, nullptr, &nodes));
  std::printf("captured %zu nodes\n", nodes);
  cudaGraphExec_t exec;
  REQUIRE(cudaGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < 3; ++i) REQUIRE(cudaGraphLaunch(exec, stream));
  REQUIRE(cudaStreamSynchronize(stream));
  std::printf("values %d and %d\n", host[0], host[1]);
  right &= nodes == 5 && host[0] == 42 && host[1] == 30;

  cudaGraph_t built;
  cudaGraphNode_t clear, first, second, copy;
  REQUIRE(cudaGraphCreate(&built, 0));
  cudaMemsetParams fill = {};
  fill.dst = device;
  fill.elementSize = 4;
  fill.value = 7;
  fill.width = 1;
  fill.height = 1;
  REQUIRE(cudaGraphAddMemsetNode(&clear, built, nullptr, 0, &fill));
  int amount = 5, factor = 3;
  void* add_args[] = {&device, &amount};
  void* multiply_args[] = {&device, &factor};
  cudaKernelNodeParams kernel = {};
  kernel.func = reinterpret_cast<void*>(add);
  kernel.gridDim = 1;
  kernel.blockDim = 1;
  kernel.kernelParams = add_args;
  REQUIRE(cudaGraphAddKernelNode(&first, built, &clear, 1, &kernel));
  kernel.func = reinterpret_cast<void*>(multiply);
  kernel.kernelParams = multiply_args;
  REQUIRE(cudaGraphAddKernelNode(&second, built, &first, 1, &kernel));
  REQUIRE(cudaGraphAddMemcpyNode1D(&copy, built, &second, 1, host, device, sizeof(int),
                                   cudaMemcpyDeviceToHost));
  cudaGraphExec_t built_exec;
  REQUIRE(cudaGraphInstantiate(&built_exec, built, 0));
  REQUIRE(cudaGraphLaunch(built_exec, stream));
  REQUIRE(cudaStreamSynchronize(stream));
  std::printf("built: value %d\n", host[0]);
  right &= host[0] == 36;
  factor = 10;
  REQUIRE(cudaGraphExecKernelNodeSetParams(built_exec, second, &kernel));
  REQUIRE(cudaGraphLaunch(built_exec, stream));
  REQUIRE(cudaStreamSynchronize(stream));
  std::printf("changed: value %d\n", host[0]);
  right &= host[0] == 120;

  REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  void* memory = nullptr;
  right &= fact("allocation is refused during a global capture",
                cudaMalloc(&memory, 4) == cudaErrorStreamCaptureUnsupported);
  cudaGraph_t broken = nullptr;
  right &= fact("and breaks it",
                cudaStreamEndCapture(stream, &broken) == cudaErrorStreamCaptureInvalidated);
  cudaGetLastError();
  right &= fact("the device still works", cudaDeviceSynchronize() == cudaSuccess);
  REQUIRE(cudaGraphExecDestroy(exec));
  REQUIRE(cudaGraphExecDestroy(built_exec));
  REQUIRE(cudaGraphDestroy(graph));
  REQUIRE(cudaGraphDestroy(built));
  REQUIRE(cudaStreamDestroy(stream));
  REQUIRE(cudaStreamDestroy(side));
  return right ? 0 : 1;
}
