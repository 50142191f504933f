// SPDX-License-Identifier: Apache-2.0
// Thrust's universal vectors: algorithms on the GPU and plain code on the CPU, in turn.
#include <thrust/execution_policy.h>
#include <thrust/reduce.h>
#include <thrust/sequence.h>
#include <thrust/transform.h>
#include <thrust/universal_vector.h>

#include <algorithm>
#include <cstdio>
#include <numeric>

struct Square {
  __host__ __device__ long operator()(long x) const { return x * x; }
};

int main() {
  constexpr int kCount = 100'000;
  thrust::universal_vector<long> values(kCount);
  thrust::sequence(thrust::device, values.begin(), values.end());
  cudaDeviceSynchronize();
  std::printf("filled by the GPU: %ld %ld\n", long{values[1]}, long{values[kCount - 1]});
  for (int i = 0; i < kCount; i += 1000) values[i] += 1;
  thrust::transform(thrust::device, values.begin(), values.end(), values.begin(), Square{});
  const long sum = thrust::reduce(thrust::device, values.begin(), values.end());
  std::printf("squares: the GPU's sum %ld, ", sum);
  std::printf("the CPU's %ld\n", std::accumulate(values.begin(), values.end(), 0l));
  std::reverse(values.begin(), values.end());
  const long ten = thrust::reduce(thrust::device, values.begin(), values.begin() + 10);
  std::printf("the largest ten after the CPU has turned them round: %ld\n", ten);
  values.push_back(7);  // into memory of another place
  values.resize(2 * kCount);
  const long rest = thrust::reduce(thrust::device, values.begin() + kCount, values.end());
  std::printf("grown: %zu, beyond the first %ld\n", values.size(), rest);
  return 0;
}
