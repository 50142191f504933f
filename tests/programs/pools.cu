// SPDX-License-Identifier: Apache-2.0
// Stream-ordered allocation: from the default pool and from one of its own, reuse in stream order,
// and a pool's attributes.
#include "check.h"

__global__ void fill(int* data, int count, int value) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) data[i] = value + i;
}

int main() {
  const int count = 4096;
  int host[4] = {};
  cudaStream_t stream;
  REQUIRE(cudaStreamCreate(&stream));
  int *first = nullptr, *second = nullptr;
  REQUIRE(cudaMallocAsync(&first, count * sizeof(int), stream));
  fill<<<count / 128, 128, 0, stream>>>(first, count, 100);
  REQUIRE(
      cudaMemcpyAsync(host, first + count - 2, 2 * sizeof(int), cudaMemcpyDeviceToHost, stream));
  REQUIRE(cudaFreeAsync(first, stream));
  REQUIRE(cudaMallocAsync(&second, count * sizeof(int), stream));
  fill<<<count / 128, 128, 0, stream>>>(second, count, 200);
  REQUIRE(cudaMemcpyAsync(host + 2, second, 2 * sizeof(int), cudaMemcpyDeviceToHost, stream));
  REQUIRE(cudaFreeAsync(second, stream));
  REQUIRE(cudaStreamSynchronize(stream));
  std::printf("values %d %d %d %d\n", host[0], host[1], host[2], host[3]);
  bool right = host[0] == 4194 && host[1] == 4195 && host[2] == 200 && host[3] == 201;

  cudaMemPool_t pool = nullptr, fallback = nullptr;
  REQUIRE(cudaDeviceGetDefaultMemPool(&fallback, 0));
  cudaMemPoolProps props = {};
  props.allocType = cudaMemAllocationTypePinned;
  props.location.type = cudaMemLocationTypeDevice;
  props.location.id = 0;
  REQUIRE(cudaMemPoolCreate(&pool, &props));
  right &= fact("pools differ", pool != fallback);
  uint64_t threshold = 8 << 20, back = 0;
  REQUIRE(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
  REQUIRE(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &back));
  right &= fact("the threshold is kept", back == threshold);
  void* memory = nullptr;
  REQUIRE(cudaMallocFromPoolAsync(&memory, 1 << 20, pool, stream));
  uint64_t used = 0;
  REQUIRE(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used));
  right &= fact("the pool counts what is used", used == 1 << 20);
  REQUIRE(cudaFreeAsync(memory, stream));
  REQUIRE(cudaStreamSynchronize(stream));
  REQUIRE(cudaMemPoolTrimTo(pool, 0));
  REQUIRE(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &used));
  right &= fact("trimmed to nothing", used == 0);
  REQUIRE(cudaMemPoolDestroy(pool));
  REQUIRE(cudaStreamDestroy(stream));
  return right ? 0 : 1;
}
