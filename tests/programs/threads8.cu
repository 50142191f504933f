// SPDX-License-Identifier: Apache-2.0
// Eight host threads on one device, each with its own stream, memory and error state, all adding
// into one counter as well. Arguments: rounds per thread, threads.
#include <thread>
#include <vector>

#include "check.h"

__global__ void step(unsigned* own, unsigned* shared_counter, int count, unsigned factor) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) own[i] = own[i] * factor + i;
  if (i == 0) atomicAdd(shared_counter, 1u);
}

constexpr int kCount = 256;

struct Outcome {
  uint64_t sum = 0;
  int wrong = 0;
  bool error_is_its_own = false;
};

static void work(int index, int rounds, unsigned* shared_counter, Outcome* outcome) {
  const unsigned factor = index * 2 + 3;
  cudaStream_t stream;
  unsigned* device = nullptr;
  std::vector<unsigned> host(kCount), expected(kCount, index);
  REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  REQUIRE(cudaMalloc(&device, kCount * sizeof(unsigned)));
  for (int i = 0; i < kCount; ++i) host[i] = index;
  REQUIRE(cudaMemcpyAsync(device, host.data(), kCount * sizeof(unsigned), cudaMemcpyHostToDevice,
                          stream));
  // An error in every second thread, which only that thread may see.
  const bool errs = index % 2 == 1;
  if (errs) cudaSetDevice(1 << 20);
  for (int round = 0; round < rounds; ++round) {
    step<<<kCount / 64, 64, 0, stream>>>(device, shared_counter, kCount, factor);
    for (int i = 0; i < kCount; ++i) expected[i] = expected[i] * factor + i;
  }
  outcome->error_is_its_own = cudaGetLastError() == (errs ? cudaErrorInvalidDevice : cudaSuccess);
  REQUIRE(cudaMemcpyAsync(host.data(), device, kCount * sizeof(unsigned), cudaMemcpyDeviceToHost,
                          stream));
  REQUIRE(cudaStreamSynchronize(stream));
  for (int i = 0; i < kCount; ++i) outcome->wrong += host[i] != expected[i];
  outcome->sum = checksum(host.data(), kCount * sizeof(unsigned));
  REQUIRE(cudaFree(device));
  REQUIRE(cudaStreamDestroy(stream));
}

int main(int argc, char** argv) {
  const int rounds = argument(argc, argv, 1, 20);
  const int thread_count = argument(argc, argv, 2, 8);
  unsigned* shared_counter = nullptr;
  REQUIRE(cudaMalloc(&shared_counter, sizeof(unsigned)));
  REQUIRE(cudaMemset(shared_counter, 0, sizeof(unsigned)));
  REQUIRE(cudaDeviceSynchronize());
  std::vector<Outcome> outcomes(thread_count);
  std::vector<std::thread> threads;
  for (int i = 0; i < thread_count; ++i) {
    threads.emplace_back(work, i, rounds, shared_counter, &outcomes[i]);
  }
  for (std::thread& thread : threads) thread.join();
  unsigned counted = 0;
  REQUIRE(cudaMemcpy(&counted, shared_counter, sizeof(counted), cudaMemcpyDeviceToHost));
  bool right = true;
  for (int i = 0; i < thread_count; ++i) {
    std::printf("thread %d: wrong %d, checksum %016llx, own error %s\n", i, outcomes[i].wrong,
                static_cast<unsigned long long>(outcomes[i].sum),
                outcomes[i].error_is_its_own ? "yes" : "no");
    right &= outcomes[i].wrong == 0 && outcomes[i].error_is_its_own;
  }
  std::printf("launches counted %u\n", counted);
  right &= counted == static_cast<unsigned>(rounds * thread_count);
  REQUIRE(cudaFree(shared_counter));
  return right ? 0 : 1;
}
