// SPDX-License-Identifier: Apache-2.0
// Pinned host memory that a kernel reads and writes by the host's own pointer, and what CUDA tells
// about pointers of each kind. Where the device cannot map host memory, the program says so and
// checks that the attribute does too. Arguments: number of elements.
#include <cstdint>

#include "check.h"

__global__ void square(const int* from, int* to, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) to[i] = from[i] * from[i];
}

static cudaMemoryType type_of(const void* pointer) {
  cudaPointerAttributes attributes = {};
  REQUIRE(cudaPointerGetAttributes(&attributes, pointer));
  return attributes.type;
}

int main(int argc, char** argv) {
  const int count = argument(argc, argv, 1, 2048);
  int *from = nullptr, *to = nullptr, *device = nullptr;
  REQUIRE(cudaMallocHost(&from, count * sizeof(int)));
  REQUIRE(cudaHostAlloc(&to, count * sizeof(int), cudaHostAllocMapped | cudaHostAllocPortable));
  REQUIRE(cudaMalloc(&device, count * sizeof(int)));
  bool right = true;
  int on_stack = 0;
  right &= fact("pinned memory is the host's", type_of(from) == cudaMemoryTypeHost);
  right &= fact("also in its middle", type_of(from + count / 2) == cudaMemoryTypeHost);
  right &= fact("allocated memory is the device's", type_of(device) == cudaMemoryTypeDevice);
  right &= fact("other memory is unknown", type_of(&on_stack) == cudaMemoryTypeUnregistered);

  int mapped = 0;
  REQUIRE(cudaDeviceGetAttribute(&mapped, cudaDevAttrCanMapHostMemory, 0));
  std::printf("# host memory can be mapped: %s\n", mapped ? "yes" : "no");
  int wrong = 0;
  for (int i = 0; i < count; ++i) from[i] = i - 100;
  if (mapped) {
    void* seen = nullptr;
    REQUIRE(cudaHostGetDevicePointer(&seen, to, 0));
    right &= fact("# the device has it at the same address", seen == to);
    square<<<(count + 63) / 64, 64>>>(from, to, count);
    REQUIRE(cudaGetLastError());
  } else {
    REQUIRE(cudaMemcpyAsync(device, from, count * sizeof(int), cudaMemcpyHostToDevice, nullptr));
    square<<<(count + 63) / 64, 64>>>(device, device, count);
    REQUIRE(cudaMemcpyAsync(to, device, count * sizeof(int), cudaMemcpyDeviceToHost, nullptr));
  }
  REQUIRE(cudaDeviceSynchronize());
  for (int i = 0; i < count; ++i) wrong += to[i] != (i - 100) * (i - 100);
  std::printf("elements %d, wrong %d, checksum %016llx\n", count, wrong,
              static_cast<unsigned long long>(checksum(to, count * sizeof(int))));
  REQUIRE(cudaFreeHost(from));
  REQUIRE(cudaFreeHost(to));
  REQUIRE(cudaFree(device));
  return right && wrong == 0 ? 0 : 1;
}
