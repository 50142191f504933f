// SPDX-License-Identifier: Apache-2.0
// A program that repeats itself until one of the launches that repeat has an address that it must
// not touch: what each call says from then on, whoever executes it. Argument: which of the launches
// of a turn (5).
#include "../../programs/check.h"

namespace {

constexpr int kWords = 64, kLaunches = 8, kTurns = 12;

__global__ void add(uint32_t* to, uint32_t value) { to[threadIdx.x] += value; }

void say(const char* what, cudaError_t e) { std::printf("%s: %s\n", what, cudaGetErrorName(e)); }

}  // namespace

int main(int argc, char** argv) {
  const int bad = argument(argc, argv, 1, 5);
  uint32_t *place = nullptr, host[kWords] = {};
  REQUIRE(cudaMalloc(&place, sizeof host));
  REQUIRE(cudaMemset(place, 0, sizeof host));
  for (int turn = 0; turn < kTurns; ++turn) {
    for (int i = 0; i < kLaunches; ++i) add<<<1, kWords>>>(place, static_cast<uint32_t>(i));
    REQUIRE(cudaDeviceSynchronize());
  }
  REQUIRE(cudaMemcpy(host, place, sizeof host, cudaMemcpyDeviceToHost));
  std::printf("%u\n", host[kWords - 1]);
  for (int i = 0; i < kLaunches; ++i)
    add<<<1, kWords>>>(i == bad ? reinterpret_cast<uint32_t*>(0x40) : place,
                       static_cast<uint32_t>(i));
  say("synchronize", cudaDeviceSynchronize());
  say("again", cudaDeviceSynchronize());
  for (int i = 0; i < kLaunches; ++i) add<<<1, kWords>>>(place, static_cast<uint32_t>(i));
  say("launches", cudaGetLastError());
  say("fill", cudaMemset(place, 0, 4));
  say("copy", cudaMemcpy(host, place, 4, cudaMemcpyDeviceToHost));
  void* more = nullptr;
  say("allocate", cudaMalloc(&more, 4));
  return 0;
}
