// SPDX-License-Identifier: Apache-2.0
// Adds numbers on the device and prints their sum. It needs nothing of C++'s runtime, so that it
// can be linked for the oldest glibc that is promised (program.py).
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>

__global__ void add(const int* a, const int* b, int* sum, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) sum[i] = a[i] + b[i];
}

static void require(cudaError_t result, const char* what) {
  if (result == cudaSuccess) return;
  fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(result));
  exit(1);
}

int main() {
  const int count = 1000;
  int host[count], *a, *b, *sum;
  long long total = 0;
  for (int i = 0; i < count; ++i) host[i] = i;
  require(cudaMalloc(&a, sizeof host), "cudaMalloc");
  require(cudaMalloc(&b, sizeof host), "cudaMalloc");
  require(cudaMalloc(&sum, sizeof host), "cudaMalloc");
  require(cudaMemcpy(a, host, sizeof host, cudaMemcpyHostToDevice), "cudaMemcpy");
  require(cudaMemcpy(b, host, sizeof host, cudaMemcpyHostToDevice), "cudaMemcpy");
  add<<<(count + 127) / 128, 128>>>(a, b, sum, count);
  require(cudaGetLastError(), "add");
  require(cudaMemcpy(host, sum, sizeof host, cudaMemcpyDeviceToHost), "cudaMemcpy");
  for (int i = 0; i < count; ++i) total += host[i];
  printf("the sum of %d numbers is %lld\n", count, total);
  return total == 999000 ? 0 : 1;
}
