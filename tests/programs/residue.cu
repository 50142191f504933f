// SPDX-License-Identifier: Apache-2.0
// What one session leaves in device memory for the next: `residue write MIB` fills fresh memory
// with a pattern and ends without freeing it, `residue read MIB` counts the words of fresh memory
// that are that pattern.
#include <cstring>

#include "check.h"

namespace {
constexpr unsigned kPattern = 0x5eed1234;
}

__global__ void fill(unsigned* words, size_t n) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < n;
       i += size_t{gridDim.x} * blockDim.x)
    words[i] = kPattern;
}

__global__ void count(const unsigned* words, size_t n, unsigned long long* found) {
  unsigned long long mine = 0;
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < n;
       i += size_t{gridDim.x} * blockDim.x)
    mine += words[i] == kPattern;
  if (mine) atomicAdd(found, mine);
}

int main(int argc, char** argv) {
  const bool write = argc > 1 && std::strcmp(argv[1], "write") == 0;
  const size_t words = (argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 16) << 18;
  unsigned* memory;
  REQUIRE(cudaMalloc(&memory, words * 4));
  if (write) {
    fill<<<128, 128>>>(memory, words);
    REQUIRE(cudaDeviceSynchronize());
    std::printf("written\n");
    return 0;
  }
  unsigned long long *found, host = 0;
  REQUIRE(cudaMalloc(&found, 8));
  REQUIRE(cudaMemset(found, 0, 8));
  count<<<128, 128>>>(memory, words, found);
  REQUIRE(cudaMemcpy(&host, found, 8, cudaMemcpyDeviceToHost));
  std::printf("words of somebody else's: %llu\n", host);
  return host != 0;
}
