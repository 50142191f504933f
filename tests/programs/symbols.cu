// SPDX-License-Identifier: Apache-2.0
// Variables of the device: __constant__ and __device__, written and read by their host names, by
// address, asynchronously, and refused beyond their ends.
#include <cstring>

#include "check.h"

__constant__ int coefficients[4];
__device__ int table[16];
__device__ float scale = 1.5f;
__device__ unsigned launches;

__global__ void evaluate(int x) {
  const int i = threadIdx.x;
  int value = coefficients[3];
  for (int k = 2; k >= 0; --k) value = value * (x + i) + coefficients[k];
  table[i] = static_cast<int>(value * scale);
  if (i == 0) atomicAdd(&launches, 1u);
}

int main() {
  const int host_coefficients[4] = {3, -2, 5, 1};
  REQUIRE(cudaMemcpyToSymbol(coefficients, host_coefficients, sizeof(host_coefficients)));
  bool right = true;
  size_t size = 0;
  REQUIRE(cudaGetSymbolSize(&size, table));
  std::printf("table has %zu bytes\n", size);
  right &= size == sizeof(int) * 16;
  float scale_before = 0;
  REQUIRE(cudaMemcpyFromSymbol(&scale_before, scale, sizeof(float)));
  std::printf("scale starts at %.2f\n", scale_before);
  right &= scale_before == 1.5f;
  const float doubled = 2.0f;
  REQUIRE(cudaMemcpyToSymbol(scale, &doubled, sizeof(float)));
  const int replaced = 7;
  REQUIRE(cudaMemcpyToSymbol(coefficients, &replaced, sizeof(int), 2 * sizeof(int)));

  evaluate<<<1, 16>>>(-4);
  REQUIRE(cudaGetLastError());
  int values[16];
  REQUIRE(cudaMemcpyFromSymbol(values, table, sizeof(values)));
  int wrong = 0;
  for (int i = 0; i < 16; ++i) {
    const int x = i - 4;
    const int expected = 2 * (3 - 2 * x + 7 * x * x + x * x * x);
    wrong += values[i] != expected;
  }
  std::printf("wrong %d, checksum %016llx\n", wrong,
              static_cast<unsigned long long>(checksum(values, sizeof(values))));

  void* address = nullptr;
  REQUIRE(cudaGetSymbolAddress(&address, table));
  REQUIRE(cudaMemset(address, 0, sizeof(int) * 8));
  cudaStream_t stream;
  REQUIRE(cudaStreamCreate(&stream));
  REQUIRE(
      cudaMemcpyFromSymbolAsync(values, table, sizeof(int) * 9, 0, cudaMemcpyDeviceToHost, stream));
  REQUIRE(cudaStreamSynchronize(stream));
  REQUIRE(cudaStreamDestroy(stream));
  right &= fact("cleared through its address", values[0] == 0 && values[7] == 0 && values[8] != 0);
  unsigned count = 0;
  REQUIRE(cudaMemcpyFromSymbol(&count, launches, sizeof(count)));
  std::printf("launches %u\n", count);
  right &= count == 1;

  right &= fact("a copy beyond the end is refused",
                cudaMemcpyToSymbol(coefficients, values, sizeof(int) * 2, 3 * sizeof(int)) ==
                    cudaErrorInvalidValue);
  right &= fact("what is no symbol is refused",
                cudaMemcpyToSymbol(&count, values, 4) == cudaErrorInvalidSymbol);
  right &= fact("so is the wrong direction",
                cudaMemcpyToSymbol(coefficients, values, 4, 0, cudaMemcpyDeviceToHost) ==
                    cudaErrorInvalidMemcpyDirection);
  return right && wrong == 0 ? 0 : 1;
}
