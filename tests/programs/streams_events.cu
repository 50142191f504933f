// SPDX-License-Identifier: Apache-2.0
// Two streams that work on halves of pinned data with asynchronous copies, one waiting for the
// other by an event, and elapsed times between events. Arguments: number of elements.
#include "check.h"

__global__ void scale(int* data, int count, int factor) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) data[i] *= factor;
}

__global__ void combine(const int* first, const int* second, int* sum, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) sum[i] = first[i] + second[i];
}

int main(int argc, char** argv) {
  const int count = argument(argc, argv, 1, 8192);
  const size_t bytes = count * sizeof(int);
  const int blocks = (count + 127) / 128;
  int *host[2], *device[2], *device_sum = nullptr, *host_sum = nullptr;
  cudaStream_t streams[2];
  cudaEvent_t begin, scaled, end;
  REQUIRE(cudaEventCreate(&begin));
  REQUIRE(cudaEventCreateWithFlags(&scaled, cudaEventDisableTiming));
  REQUIRE(cudaEventCreate(&end));
  for (int s = 0; s < 2; ++s) {
    REQUIRE(cudaStreamCreateWithFlags(&streams[s], cudaStreamNonBlocking));
    REQUIRE(cudaMallocHost(&host[s], bytes));
    REQUIRE(cudaMalloc(&device[s], bytes));
    for (int i = 0; i < count; ++i) host[s][i] = i * (s + 1) % 1000;
  }
  REQUIRE(cudaMallocHost(&host_sum, bytes));
  REQUIRE(cudaMalloc(&device_sum, bytes));

  REQUIRE(cudaEventRecord(begin, streams[0]));
  for (int s = 0; s < 2; ++s) {
    REQUIRE(cudaMemcpyAsync(device[s], host[s], bytes, cudaMemcpyHostToDevice, streams[s]));
    scale<<<blocks, 128, 0, streams[s]>>>(device[s], count, s + 3);
    REQUIRE(cudaGetLastError());
  }
  REQUIRE(cudaEventRecord(scaled, streams[1]));
  REQUIRE(cudaStreamWaitEvent(streams[0], scaled, 0));
  combine<<<blocks, 128, 0, streams[0]>>>(device[0], device[1], device_sum, count);
  REQUIRE(cudaGetLastError());
  REQUIRE(cudaMemcpyAsync(host_sum, device_sum, bytes, cudaMemcpyDeviceToHost, streams[0]));
  REQUIRE(cudaEventRecord(end, streams[0]));
  REQUIRE(cudaEventSynchronize(end));

  bool right = true;
  right &= fact("event shows complete", cudaEventQuery(end) == cudaSuccess);
  right &= fact("streams are idle", cudaStreamQuery(streams[0]) == cudaSuccess &&
                                        cudaStreamSynchronize(streams[1]) == cudaSuccess &&
                                        cudaStreamQuery(streams[1]) == cudaSuccess);
  float elapsed = -1, backwards = 1;
  REQUIRE(cudaEventElapsedTime(&elapsed, begin, end));
  REQUIRE(cudaEventElapsedTime(&backwards, end, begin));
  std::fprintf(stderr, "elapsed %.3f ms\n", elapsed);
  right &= fact("elapsed time is positive", elapsed > 0 && elapsed < 60000);
  right &= fact("and negative backwards", backwards < 0);
  float none = 0;
  right &= fact("an event without timing has none",
                cudaEventElapsedTime(&none, begin, scaled) == cudaErrorInvalidResourceHandle);
  right &= fact("which is the last error", cudaGetLastError() == cudaErrorInvalidResourceHandle &&
                                               cudaPeekAtLastError() == cudaSuccess);
  int wrong = 0;
  for (int i = 0; i < count; ++i) {
    wrong += host_sum[i] != i % 1000 * 3 + i * 2 % 1000 * 4;
  }
  std::printf("elements %d, wrong %d, checksum %016llx\n", count, wrong,
              static_cast<unsigned long long>(checksum(host_sum, bytes)));
  for (int s = 0; s < 2; ++s) {
    REQUIRE(cudaStreamDestroy(streams[s]));
    REQUIRE(cudaFreeHost(host[s]));
    REQUIRE(cudaFree(device[s]));
  }
  REQUIRE(cudaFreeHost(host_sum));
  REQUIRE(cudaFree(device_sum));
  REQUIRE(cudaEventDestroy(begin));
  REQUIRE(cudaEventDestroy(scaled));
  REQUIRE(cudaEventDestroy(end));
  return right && wrong == 0 ? 0 : 1;
}
