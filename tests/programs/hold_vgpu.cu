// SPDX-License-Identifier: Apache-2.0
// Takes a vGPU and keeps it for some seconds, for those who want to see what becomes of it:
// hold_vgpu SECONDS
#include <cuda_runtime.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv) {
  void* memory;
  if (cudaMalloc(&memory, 1 << 20) != cudaSuccess) return 1;
  std::printf("holding\n");
  std::fflush(stdout);
  sleep(argc > 1 ? static_cast<unsigned>(std::atoi(argv[1])) : 1);
  return cudaFree(memory) == cudaSuccess ? 0 : 1;
}
