// SPDX-License-Identifier: Apache-2.0
// Sum, maximum and a histogram of an array: warp shuffles, votes, shared memory and atomics on
// global and shared memory, in 32 and 64 bits. Arguments: number of elements.
#include <climits>
#include <vector>

#include "check.h"

constexpr int kBins = 64;
constexpr int kThreads = 128;

struct Result {
  unsigned long long sum;
  int maximum;
  unsigned odd;
  float fraction_sum;
  unsigned histogram[kBins];
};

__global__ void reduce(const int* values, int count, Result* result) {
  __shared__ unsigned bins[kBins];
  __shared__ unsigned long long warp_sums[kThreads / 32];
  for (int i = threadIdx.x; i < kBins; i += blockDim.x) bins[i] = 0;
  __syncthreads();

  unsigned long long sum = 0;
  int maximum = INT_MIN;
  const int stride = gridDim.x * blockDim.x;
  // Whole rounds, so that every lane takes part in the votes.
  for (int base = 0; base < count; base += stride) {
    const int i = base + blockIdx.x * blockDim.x + threadIdx.x;
    const bool valid = i < count;
    const int value = valid ? values[i] : 0;
    if (valid) {
      sum += value;
      maximum = max(maximum, value);
      atomicAdd(&bins[value % kBins], 1u);
    }
    const unsigned odd = __ballot_sync(0xffffffff, valid && (value & 1) != 0);
    if (threadIdx.x % 32 == 0) atomicAdd(&result->odd, __popc(odd));
  }
  for (int offset = 16; offset > 0; offset /= 2) {
    sum += __shfl_down_sync(0xffffffff, sum, offset);
    maximum = max(maximum, __shfl_xor_sync(0xffffffff, maximum, offset));
  }
  if (threadIdx.x % 32 == 0) {
    warp_sums[threadIdx.x / 32] = sum;
    atomicMax(&result->maximum, maximum);
    // Powers of two add without rounding in any order.
    atomicAdd(&result->fraction_sum, 0.25f);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    unsigned long long block_sum = 0;
    for (unsigned long long part : warp_sums) block_sum += part;
    atomicAdd(&result->sum, block_sum);
  }
  for (int i = threadIdx.x; i < kBins; i += blockDim.x) atomicAdd(&result->histogram[i], bins[i]);
}

int main(int argc, char** argv) {
  const int count = argument(argc, argv, 1, 20000);
  const int blocks = 8;
  std::vector<int> values(count);
  uint32_t state = 99;
  Result expected = {};
  expected.maximum = INT_MIN;
  for (int& value : values) {
    value = static_cast<int>(next_number(state));
    expected.sum += value;
    expected.maximum = value > expected.maximum ? value : expected.maximum;
    expected.odd += value & 1;
    ++expected.histogram[value % kBins];
  }
  expected.fraction_sum = 0.25f * blocks * (kThreads / 32);

  int* device_values = nullptr;
  Result* device_result = nullptr;
  Result result = {};
  result.maximum = INT_MIN;
  REQUIRE(cudaMalloc(&device_values, count * sizeof(int)));
  REQUIRE(cudaMalloc(&device_result, sizeof(Result)));
  REQUIRE(cudaMemcpy(device_values, values.data(), count * sizeof(int), cudaMemcpyHostToDevice));
  REQUIRE(cudaMemcpy(device_result, &result, sizeof(Result), cudaMemcpyHostToDevice));
  reduce<<<blocks, kThreads>>>(device_values, count, device_result);
  REQUIRE(cudaGetLastError());
  REQUIRE(cudaMemcpy(&result, device_result, sizeof(Result), cudaMemcpyDeviceToHost));
  REQUIRE(cudaFree(device_values));
  REQUIRE(cudaFree(device_result));

  std::printf(
      "sum %llu, maximum %d, odd %u, fractions %.2f, histogram %016llx\n", result.sum,
      result.maximum, result.odd, result.fraction_sum,
      static_cast<unsigned long long>(checksum(result.histogram, sizeof(result.histogram))));
  bool right = true;
  right &= fact("sum", result.sum == expected.sum);
  right &= fact("maximum", result.maximum == expected.maximum);
  right &= fact("votes", result.odd == expected.odd);
  right &= fact("floating-point atomics", result.fraction_sum == expected.fraction_sum);
  right &= fact("histogram", checksum(result.histogram, sizeof(result.histogram)) ==
                                 checksum(expected.histogram, sizeof(expected.histogram)));
  return right ? 0 : 1;
}
