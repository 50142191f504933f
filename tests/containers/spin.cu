// SPDX-License-Identifier: Apache-2.0
// Has a kernel that lasts ten minutes of the GPU's clock, and says when it has begun: what runs it
// is there to be ended. It needs nothing of C++'s runtime (tests/guest_images/program.py).
#include <cuda_runtime.h>
#include <stdio.h>
#include <unistd.h>

__global__ void last(unsigned long long nanoseconds) {
  unsigned long long now, begin;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    __nanosleep(1000000);
  } while (now - begin < nanoseconds);
}

int main() {
  void* memory;
  if (cudaMalloc(&memory, 1 << 20) != cudaSuccess) return 1;
  last<<<1, 1>>>(600000000000ull);
  if (cudaGetLastError() != cudaSuccess) return 2;
  printf("running\n");
  fflush(stdout);
  return cudaDeviceSynchronize() == cudaSuccess ? 0 : 3;
}
