// SPDX-License-Identifier: Apache-2.0
// printf from kernels: numbers of every kind, strings, several launches in order, and output that
// appears no later than the synchronisation.
#include "check.h"

__global__ void speak(int launch, long long big, double real) {
  printf("launch %d thread %u: %lld %08x %.3f %c %s 100%%\n", launch, threadIdx.x, big + launch,
         0xbeef, real, 'x', launch == 0 ? "first" : "later");
}

int main() {
  setvbuf(stdout, nullptr, _IONBF, 0);
  for (int launch = 0; launch < 3; ++launch) {
    speak<<<1, 1>>>(launch, 1ll << 40, 2.5);
    REQUIRE(cudaGetLastError());
  }
  REQUIRE(cudaDeviceSynchronize());
  std::printf("host after the kernels\n");
  return 0;
}
