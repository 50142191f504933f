// SPDX-License-Identifier: Apache-2.0
// A random program that repeats itself: launches, fills, copies on the device, events, several
// streams, memory that comes and goes, copies to the host. Arguments: a seed, of which all of it is
// made, and how many turns there are (14). Prints the sum of all memory and the result of a launch
// that CUDA refuses, turn by turn; two runs of one seed print the same, whoever executes them.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "check.h"

namespace {

constexpr int kWords = 1 << 12;
constexpr int kBuffers = 6, kStreams = 3;

__global__ void mix(uint32_t* to, const uint32_t* from, uint32_t salt, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) to[i] = (to[i] ^ from[n - 1 - i]) * 2654435761u + salt;
}

__global__ void add(uint32_t* to, uint32_t value, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) to[i] += value;
}

__global__ void count(uint32_t* to) { atomicAdd(to, 1u); }

enum Kind { kMix, kAdd, kCount, kFill, kCopy, kWait, kKinds };
struct Operation {
  Kind kind;
  int stream, to, from, n;
  uint32_t value;
  bool changes;  // its value is another in each turn
};

using Random = std::mt19937;

Operation make(Random& random, int stream) {
  Operation o{};
  const uint32_t kind = random() % 16;
  o.kind = kind < 5    ? kMix
           : kind < 9  ? kAdd
           : kind < 11 ? kCount
           : kind < 13 ? kFill
           : kind < 15 ? kCopy
                       : kWait;
  o.stream = stream;
  o.to = static_cast<int>(random() % kBuffers);
  o.from = static_cast<int>((o.to + 1 + random() % (kBuffers - 1)) % kBuffers);
  o.n = static_cast<int>(1 + random() % kWords);
  o.value = random();
  o.changes = random() % 3 == 0;
  return o;
}

// Streams are ordered by events only where operations ask for it, so each has buffers of its own.
struct Lane {
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
  uint32_t* buffers[kBuffers] = {};
};

void run(const Operation& o, int turn, Lane* lanes) {
  Lane& lane = lanes[o.stream];
  const uint32_t value = o.changes ? o.value * static_cast<uint32_t>(turn + 1) : o.value;
  uint32_t* to = lane.buffers[o.to];
  const uint32_t* from = lane.buffers[o.from];
  const int blocks = (o.n + 127) / 128;
  switch (o.kind) {
    case kMix:
      mix<<<blocks, 128, 0, lane.stream>>>(to, from, value, o.n);
      break;
    case kAdd:
      add<<<blocks, 128, 0, lane.stream>>>(to, value, o.n);
      break;
    case kCount:
      count<<<2, 64, 0, lane.stream>>>(to);
      break;
    case kFill:
      REQUIRE(cudaMemsetAsync(to, static_cast<int>(o.value & 0xff), static_cast<size_t>(o.n),
                              lane.stream));
      break;
    case kCopy:
      REQUIRE(cudaMemcpyAsync(to, from, static_cast<size_t>(o.n) * 4, cudaMemcpyDeviceToDevice,
                              lane.stream));
      break;
    default: {
      const Lane& other = lanes[(o.stream + 1) % kStreams];
      REQUIRE(cudaEventRecord(other.event, other.stream));
      REQUIRE(cudaStreamWaitEvent(lane.stream, other.event, 0));
    }
  }
}

uint64_t sum_of(const Lane& lane) {
  std::vector<uint32_t> host(kWords);
  uint64_t sum = 0;
  for (const uint32_t* buffer : lane.buffers) {
    REQUIRE(cudaMemcpyAsync(host.data(), buffer, kWords * 4, cudaMemcpyDeviceToHost, lane.stream));
    REQUIRE(cudaStreamSynchronize(lane.stream));
    for (const uint32_t word : host) sum = sum * 31 + word;
  }
  return sum;
}

}  // namespace

int main(int argc, char** argv) {
  Random random(argc > 1 ? static_cast<uint32_t>(std::atoi(argv[1])) : 1u);
  const int turns = argument(argc, argv, 2, 14);
  Lane lanes[kStreams];
  for (int i = 0; i < kStreams; ++i) {
    Lane& lane = lanes[i];
    // The first is the default stream, as most programs use no other.
    if (i > 0) REQUIRE(cudaStreamCreateWithFlags(&lane.stream, cudaStreamNonBlocking));
    REQUIRE(cudaEventCreateWithFlags(&lane.event, cudaEventDisableTiming));
    for (uint32_t*& buffer : lane.buffers) {
      REQUIRE(cudaMalloc(&buffer, kWords * 4));
      REQUIRE(cudaMemset(buffer, i + 1, kWords * 4));
    }
  }
  REQUIRE(cudaDeviceSynchronize());
  std::vector<Operation> program;
  while (program.size() < 220) {
    const int stream = random() % 3 ? 0 : static_cast<int>(random() % kStreams);
    for (uint32_t n = 1 + random() % 40; n > 0; --n) program.push_back(make(random, stream));
  }
  for (int turn = 0; turn < turns; ++turn) {
    // Now and then one operation is another than before.
    if (turn % 5 == 4) program[random() % program.size()] = make(random, 0);
    for (const Operation& o : program) run(o, turn, lanes);
    // A launch that CUDA refuses, in the middle of others that repeat.
    add<<<1, 4096, 0, lanes[0].stream>>>(lanes[0].buffers[0], 1, kWords);
    std::printf("turn %d: %s", turn, cudaGetLastError() == cudaSuccess ? "taken" : "refused");
    for (const Operation& o : program)
      if (o.stream == 0) run(o, turn, lanes);
    for (const Lane& lane : lanes)
      std::printf(" %016llx", static_cast<unsigned long long>(sum_of(lane)));
    std::printf("\n");
    if (turn % 6 == 5) {
      // Memory that pieces name goes; what comes in its place has the same contents.
      Lane& lane = lanes[turn % kStreams];
      std::vector<uint32_t> kept(kWords);
      REQUIRE(cudaMemcpy(kept.data(), lane.buffers[2], kWords * 4, cudaMemcpyDeviceToHost));
      REQUIRE(cudaFree(lane.buffers[2]));
      REQUIRE(cudaMalloc(&lane.buffers[2], kWords * 4));
      REQUIRE(cudaMemcpy(lane.buffers[2], kept.data(), kWords * 4, cudaMemcpyHostToDevice));
    }
  }
  return 0;
}
