// SPDX-License-Identifier: Apache-2.0
// What kernel and copy nodes of a graph hold, and graph copies to and from the program's variables.
#include "check.h"

__device__ int table[4];
__global__ void scale(int* data, int factor, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) data[i] *= factor;
}

int main() {
  bool right = true;
  cudaStream_t stream;
  REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  int* pinned = nullptr;
  REQUIRE(cudaMallocHost(&pinned, 64 * sizeof(int)));
  // A graph: into the variable, a kernel on it, and out of it.
  void* place = nullptr;
  REQUIRE(cudaGetSymbolAddress(&place, table));
  for (int i = 0; i < 4; ++i) pinned[i] = i + 1;
  cudaGraph_t graph;
  cudaGraphNode_t in, middle, out;
  REQUIRE(cudaGraphCreate(&graph, 0));
  REQUIRE(cudaGraphAddMemcpyNodeToSymbol(&in, graph, nullptr, 0, table, pinned, 4 * sizeof(int), 0,
                                         cudaMemcpyHostToDevice));
  int factor = 10, n = 4;
  void* arguments[] = {&place, &factor, &n};
  cudaKernelNodeParams kernel = {};
  kernel.func = reinterpret_cast<void*>(scale);
  kernel.gridDim = dim3(1);
  kernel.blockDim = dim3(32);
  kernel.kernelParams = arguments;
  REQUIRE(cudaGraphAddKernelNode(&middle, graph, &in, 1, &kernel));
  REQUIRE(cudaGraphAddMemcpyNodeFromSymbol(&out, graph, &middle, 1, pinned + 8, table,
                                           2 * sizeof(int), 2 * sizeof(int),
                                           cudaMemcpyDeviceToHost));
  cudaKernelNodeParams told = {};
  REQUIRE(cudaGraphKernelNodeGetParams(middle, &told));
  right &= fact("the kernel node names the function of the program",
                told.func == reinterpret_cast<void*>(scale));
  std::printf("block of %u, factor %d\n", told.blockDim.x,
              *static_cast<int*>(told.kernelParams[1]));
  // What was told may be given back, with another number.
  int other = 100;
  void* changed[] = {told.kernelParams[0], &other, told.kernelParams[2]};
  told.kernelParams = changed;
  cudaMemcpy3DParms copy = {};
  REQUIRE(cudaGraphMemcpyNodeGetParams(out, &copy));
  right &= fact("the copy node's ends and extent", copy.dstPtr.ptr == pinned + 8 &&
                                                       copy.extent.width == 2 * sizeof(int) &&
                                                       copy.extent.height == 1);
  cudaGraphExec_t exec;
  REQUIRE(cudaGraphInstantiate(&exec, graph, 0));
  REQUIRE(cudaGraphLaunch(exec, stream));
  REQUIRE(cudaStreamSynchronize(stream));
  std::printf("variable times ten: %d %d\n", pinned[8], pinned[9]);
  right &= pinned[8] == 30 && pinned[9] == 40;
  REQUIRE(cudaGraphExecKernelNodeSetParams(exec, middle, &told));
  REQUIRE(cudaGraphExecMemcpyNodeSetParamsFromSymbol(exec, out, pinned + 8, table, 2 * sizeof(int),
                                                     0, cudaMemcpyDeviceToHost));
  REQUIRE(cudaGraphLaunch(exec, stream));
  REQUIRE(cudaStreamSynchronize(stream));
  std::printf("times a hundred: %d %d\n", pinned[8], pinned[9]);
  right &= pinned[8] == 100 && pinned[9] == 200;
  right &= fact("a variable has an end", cudaGraphAddMemcpyNodeToSymbol(
                                             &in, graph, nullptr, 0, table, pinned, 5 * sizeof(int),
                                             0, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);

  REQUIRE(cudaGraphExecDestroy(exec));
  REQUIRE(cudaGraphDestroy(graph));
  REQUIRE(cudaStreamDestroy(stream));
  REQUIRE(cudaFreeHost(pinned));
  return right ? 0 : 1;
}
