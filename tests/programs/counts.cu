// SPDX-License-Identifier: Apache-2.0
// Counts on the device, in one session, for those who want to see that it goes on through what is
// done to it: every round adds one to each element, and the host looks at all of them. counts
// [ROUNDS [MILLISECONDS between them]]; 0: for ever.
#include <cuda_runtime.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "check.h"

__global__ void add_one(unsigned* values, unsigned n) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) values[i] += 1;
}

int main(int argc, char** argv) {
  constexpr unsigned kElements = 4096, kThreads = 256;
  const long rounds = argc > 1 ? std::atol(argv[1]) : 5;
  const std::chrono::milliseconds pause(argc > 2 ? std::atol(argv[2]) : 0);
  unsigned* values;
  REQUIRE(cudaMalloc(&values, kElements * sizeof *values));
  REQUIRE(cudaMemset(values, 0, kElements * sizeof *values));
  std::vector<unsigned> seen(kElements);
  for (unsigned round = 1; !rounds || round <= rounds; ++round) {
    add_one<<<kElements / kThreads, kThreads>>>(values, kElements);
    REQUIRE(cudaGetLastError());
    REQUIRE(cudaMemcpy(seen.data(), values, kElements * sizeof *values, cudaMemcpyDeviceToHost));
    unsigned wrong = 0;
    for (unsigned value : seen) wrong += value != round;
    std::printf("count %u, wrong %u\n", round, wrong);
    std::fflush(stdout);
    if (wrong) return 1;
    std::this_thread::sleep_for(pause);
  }
  REQUIRE(cudaFree(values));
  return 0;
}
