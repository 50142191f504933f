// SPDX-License-Identifier: Apache-2.0
// Host functions between kernels and copies on a stream, in the order in which they were queued,
// and what a host function writes is seen by the copy behind it.
#include <atomic>

#include "check.h"

__global__ void increment(int* value) { *value += 1; }

struct Log {
  std::atomic<int> calls{0};
  int order[8] = {};
  int* seen = nullptr;
  int* to_send = nullptr;
  int values_seen[8] = {};
};

struct Entry {
  Log* log;
  int number;
};

static void note(void* data) {
  const auto* entry = static_cast<const Entry*>(data);
  Log& log = *entry->log;
  const int position = log.calls.fetch_add(1);
  log.order[position] = entry->number;
  log.values_seen[position] = *log.seen;
  *log.to_send = *log.seen * 10;
}

static void note_with_status(cudaStream_t, cudaError_t status, void* data) {
  if (status == cudaSuccess) note(data);
}

int main() {
  Log log;
  int* device = nullptr;
  REQUIRE(cudaMalloc(&device, sizeof(int)));
  REQUIRE(cudaMemset(device, 0, sizeof(int)));
  REQUIRE(cudaMallocHost(&log.seen, sizeof(int)));
  REQUIRE(cudaMallocHost(&log.to_send, sizeof(int)));
  cudaStream_t stream;
  REQUIRE(cudaStreamCreate(&stream));
  Entry entries[4];
  for (int i = 0; i < 4; ++i) {
    entries[i] = {&log, i};
    increment<<<1, 1, 0, stream>>>(device);
    REQUIRE(cudaGetLastError());
    REQUIRE(cudaMemcpyAsync(log.seen, device, sizeof(int), cudaMemcpyDeviceToHost, stream));
    if (i % 2 == 0) {
      REQUIRE(cudaLaunchHostFunc(stream, note, &entries[i]));
    } else {
      REQUIRE(cudaStreamAddCallback(stream, note_with_status, &entries[i], 0));
    }
    REQUIRE(cudaMemcpyAsync(device, log.to_send, sizeof(int), cudaMemcpyHostToDevice, stream));
  }
  REQUIRE(cudaStreamSynchronize(stream));
  int result = 0;
  REQUIRE(cudaMemcpy(&result, device, sizeof(int), cudaMemcpyDeviceToHost));

  std::printf("calls %d\n", log.calls.load());
  for (int i = 0; i < log.calls && i < 4; ++i) {
    std::printf("call %d: entry %d saw %d\n", i, log.order[i], log.values_seen[i]);
  }
  std::printf("result %d\n", result);
  bool right = log.calls == 4;
  int value = 0;
  for (int i = 0; i < 4; ++i) {
    value += 1;
    right &= log.order[i] == i && log.values_seen[i] == value;
    value *= 10;
  }
  right &= result == value;
  REQUIRE(cudaStreamDestroy(stream));
  REQUIRE(cudaFreeHost(log.seen));
  REQUIRE(cudaFreeHost(log.to_send));
  REQUIRE(cudaFree(device));
  return right ? 0 : 1;
}
