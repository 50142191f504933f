// SPDX-License-Identifier: Apache-2.0
// Thrust's universal vectors: containers that the program indexes and algorithms on the device use.
#include <thrust/execution_policy.h>
#include <thrust/for_each.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/universal_vector.h>

#include <cstdio>

#include "check.h"

int main() {
  const int n = 20000;
  thrust::universal_vector<int> squares(n), sums(n, 3);
  for (int i = 0; i < n; ++i) squares[i] = i % 100;
  int* from = thrust::raw_pointer_cast(squares.data());
  int* to = thrust::raw_pointer_cast(sums.data());
  thrust::for_each(thrust::device, thrust::counting_iterator<int>(0),
                   thrust::counting_iterator<int>(n), [=] __device__(int i) {
                     from[i] *= from[i];
                     to[i] += from[i];
                   });
  REQUIRE(cudaDeviceSynchronize());
  squares.push_back(7);
  long long total = 0;
  for (const int each : sums) total += each;
  std::printf("%lld, %d, %d of %zu\n", total, static_cast<int>(squares[n]),
              static_cast<int>(squares[99]), squares.size());
  return 0;
}
