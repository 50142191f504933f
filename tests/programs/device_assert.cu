// SPDX-License-Identifier: Apache-2.0
// An assertion in a kernel that fails: the error is sticky, and its text is on standard error.
#include <cuda_runtime.h>

#include <cassert>
#include <cstdio>

__global__ void check(int limit) { assert(static_cast<int>(threadIdx.x) < limit); }

int main() {
  check<<<1, 4>>>(4);
  std::printf("an assertion that holds: %s\n", cudaGetErrorName(cudaDeviceSynchronize()));
  check<<<1, 4>>>(3);
  std::printf("one that fails: %s\n", cudaGetErrorName(cudaDeviceSynchronize()));
  std::printf("afterwards: %s\n", cudaGetErrorName(cudaDeviceSynchronize()));
  void* memory = nullptr;
  std::printf("allocation: %s\n", cudaGetErrorName(cudaMalloc(&memory, 4)));
  return 0;
}
