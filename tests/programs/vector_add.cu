// SPDX-License-Identifier: Apache-2.0
// Adds two vectors on the device: the smallest program that allocates, copies, launches and copies
// back. Arguments: number of elements.
#include <vector>

#include "check.h"

__global__ void add(const float* a, const float* b, float* sum, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) sum[i] = a[i] + b[i];
}

int main(int argc, char** argv) {
  const int count = argument(argc, argv, 1, 10000);
  const size_t bytes = count * sizeof(float);
  std::vector<float> a(count), b(count), sum(count);
  uint32_t state = 1;
  for (int i = 0; i < count; ++i) {
    a[i] = static_cast<float>(next_number(state) % 1000) / 8;
    b[i] = static_cast<float>(next_number(state) % 1000) / 16;
  }

  float *device_a = nullptr, *device_b = nullptr, *device_sum = nullptr;
  REQUIRE(cudaMalloc(&device_a, bytes));
  REQUIRE(cudaMalloc(&device_b, bytes));
  REQUIRE(cudaMalloc(&device_sum, bytes));
  REQUIRE(cudaMemcpy(device_a, a.data(), bytes, cudaMemcpyHostToDevice));
  REQUIRE(cudaMemcpy(device_b, b.data(), bytes, cudaMemcpyHostToDevice));
  add<<<(count + 255) / 256, 256>>>(device_a, device_b, device_sum, count);
  REQUIRE(cudaGetLastError());
  REQUIRE(cudaMemcpy(sum.data(), device_sum, bytes, cudaMemcpyDeviceToHost));
  REQUIRE(cudaFree(device_a));
  REQUIRE(cudaFree(device_b));
  REQUIRE(cudaFree(device_sum));

  int wrong = 0;
  for (int i = 0; i < count; ++i) wrong += sum[i] != a[i] + b[i];
  std::printf("elements %d, wrong %d, checksum %016llx\n", count, wrong,
              static_cast<unsigned long long>(checksum(sum.data(), bytes)));
  return wrong == 0 ? 0 : 1;
}
