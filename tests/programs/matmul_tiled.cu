// SPDX-License-Identifier: Apache-2.0
// A tiled matrix product in shared memory: two barriers per tile, two-dimensional blocks. Small
// whole numbers, so that every order of summation gives the same result. Arguments: rows, columns,
// depth.
#include <vector>

#include "check.h"

constexpr int kTile = 16;

__global__ void multiply(const float* a, const float* b, float* c, int rows, int columns,
                         int depth) {
  __shared__ float tile_a[kTile][kTile];
  __shared__ float tile_b[kTile][kTile];
  const int row = blockIdx.y * kTile + threadIdx.y;
  const int column = blockIdx.x * kTile + threadIdx.x;
  float sum = 0;
  for (int start = 0; start < depth; start += kTile) {
    const int k_a = start + threadIdx.x;
    const int k_b = start + threadIdx.y;
    tile_a[threadIdx.y][threadIdx.x] = row < rows && k_a < depth ? a[row * depth + k_a] : 0;
    tile_b[threadIdx.y][threadIdx.x] =
        k_b < depth && column < columns ? b[k_b * columns + column] : 0;
    __syncthreads();
    for (int k = 0; k < kTile; ++k) sum += tile_a[threadIdx.y][k] * tile_b[k][threadIdx.x];
    __syncthreads();
  }
  if (row < rows && column < columns) c[row * columns + column] = sum;
}

int main(int argc, char** argv) {
  const int rows = argument(argc, argv, 1, 50);
  const int columns = argument(argc, argv, 2, 70);
  const int depth = argument(argc, argv, 3, 40);
  std::vector<float> a(rows * depth), b(depth * columns), c(rows * columns);
  uint32_t state = 7;
  for (float& x : a) x = static_cast<float>(next_number(state) % 17) - 8;
  for (float& x : b) x = static_cast<float>(next_number(state) % 17) - 8;

  float *device_a = nullptr, *device_b = nullptr, *device_c = nullptr;
  REQUIRE(cudaMalloc(&device_a, a.size() * sizeof(float)));
  REQUIRE(cudaMalloc(&device_b, b.size() * sizeof(float)));
  REQUIRE(cudaMalloc(&device_c, c.size() * sizeof(float)));
  REQUIRE(cudaMemcpy(device_a, a.data(), a.size() * sizeof(float), cudaMemcpyDefault));
  REQUIRE(cudaMemcpy(device_b, b.data(), b.size() * sizeof(float), cudaMemcpyDefault));
  const dim3 grid((columns + kTile - 1) / kTile, (rows + kTile - 1) / kTile);
  multiply<<<grid, dim3(kTile, kTile)>>>(device_a, device_b, device_c, rows, columns, depth);
  REQUIRE(cudaGetLastError());
  REQUIRE(cudaDeviceSynchronize());
  REQUIRE(cudaMemcpy(c.data(), device_c, c.size() * sizeof(float), cudaMemcpyDefault));
  REQUIRE(cudaFree(device_a));
  REQUIRE(cudaFree(device_b));
  REQUIRE(cudaFree(device_c));

  int wrong = 0;
  for (int i = 0; i < rows; ++i) {
    for (int j = 0; j < columns; ++j) {
      float expected = 0;
      for (int k = 0; k < depth; ++k) expected += a[i * depth + k] * b[k * columns + j];
      wrong += c[i * columns + j] != expected;
    }
  }
  std::printf("%d x %d x %d, wrong %d, checksum %016llx\n", rows, columns, depth, wrong,
              static_cast<unsigned long long>(checksum(c.data(), c.size() * sizeof(float))));
  return wrong == 0 ? 0 : 1;
}
