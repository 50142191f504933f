// SPDX-License-Identifier: Apache-2.0
// A program with managed memory that profiles itself: it prints how many kernels, copies and fills
// it was told of. Pages move at its launches, copies and touches, and are nothing that it asked
// for.
#include <cupti.h>

#include <cstdio>

#include "require.h"

namespace {

constexpr int kCount = 100000;
constexpr size_t kBuffer = 64 << 10;
int kernels = 0, copies = 0, fills = 0;
unsigned long long copied = 0;

__global__ void add(int* values, int n, int by) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    values[i] += by;
}

void CUPTIAPI requested(uint8_t** buffer, size_t* size, size_t* most) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, kBuffer));
  *size = kBuffer;
  *most = 0;
}

void CUPTIAPI completed(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid) {
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
    kernels += record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
    fills += record->kind == CUPTI_ACTIVITY_KIND_MEMSET;
    if (record->kind != CUPTI_ACTIVITY_KIND_MEMCPY) continue;
    ++copies;
    copied += reinterpret_cast<CUpti_ActivityMemcpy6*>(record)->bytes;
  }
  std::free(buffer);
}

}  // namespace

int main() {
  int *managed = nullptr, *device = nullptr;
  REQUIRE(cudaMallocManaged(&managed, kCount * sizeof(int)));
  REQUIRE(cudaMalloc(&device, kCount * sizeof(int)));
  REQUIRE(cuptiActivityRegisterCallbacks(requested, completed));
  for (const CUpti_ActivityKind kind :
       {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
        CUPTI_ACTIVITY_KIND_MEMSET, CUPTI_ACTIVITY_KIND_RUNTIME})
    REQUIRE(cuptiActivityEnable(kind));
  long long sum = 0;
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < kCount; ++i) managed[i] = i;
    add<<<16, 128>>>(managed, kCount, 1);
    REQUIRE(cudaDeviceSynchronize());
    for (int i = 0; i < kCount; ++i) sum += managed[i];
  }
  managed[7] = 1;
  REQUIRE(cudaMemcpy(device, managed, kCount * sizeof(int), cudaMemcpyDefault));
  managed[8] = 1;
  REQUIRE(cudaMemset(managed, 0, kCount * sizeof(int)));
  REQUIRE(cudaDeviceSynchronize());
  REQUIRE(cuptiActivityFlushAll(0));
  std::printf("sum %lld: %d kernels, %d copies of %llu bytes, %d fills\n", sum, kernels, copies,
              copied, fills);
  return 0;
}
