// SPDX-License-Identifier: Apache-2.0
// Fills and copies that take pinned and registered host memory for the device's, as unified
// addressing allows, in the order of a stream: XLA's autotuner zeroes a counter so and reads it
// back, and has a kernel count in it. Arguments: number of elements.
#include <cuda.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "check.h"

struct Tally {
  uint32_t pad, *others, *marks;
};

__global__ void count_up(uint32_t* to, int count, int rounds) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  uint32_t x = i;
  for (int r = 0; r < rounds; ++r) x = x * 1664525u + 1013904223u;
  to[i] = x;
}

// Counts in memory of the host what differs from it there, as XLA's autotuner does.
__global__ void count_others(const uint32_t* to, int count, const uint32_t* wanted, Tally tally) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count && to[i] != *wanted) atomicAdd(tally.others, 1u);
  if (i == 0) tally.marks[1] = *wanted;
}

static void require(CUresult result, const char* what, int line) {
  if (result == CUDA_SUCCESS) return;
  std::fflush(stdout);
  std::fprintf(stderr, "line %d: %s: %d\n", line, what, static_cast<int>(result));
  std::exit(1);
}
#define DRIVER(call) require((call), #call, __LINE__)

static CUdeviceptr address(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

template <class T>
static bool all(const T* at, int count, T value) {
  for (int i = 0; i < count; ++i)
    if (at[i] != value) return false;
  return true;
}

static bool check(const char* kind, uint32_t* host, int count, cudaStream_t stream) {
  const size_t bytes = count * sizeof(uint32_t);
  uint32_t *device = nullptr, *other = nullptr;
  REQUIRE(cudaMalloc(&device, bytes));
  REQUIRE(cudaMalloc(&other, bytes));
  std::vector<uint32_t> seen(count);
  std::printf("%s memory\n", kind);
  bool right = true;
  const auto blocks = (count + 63) / 64;

  std::memset(host, 0xee, bytes);
  DRIVER(cuMemsetD32Async(address(host), 0, 2, stream));
  REQUIRE(cudaStreamSynchronize(stream));
  right &= fact("  two words were zeroed", host[0] == 0 && host[1] == 0 && host[2] == 0xeeeeeeee);
  DRIVER(cuMemsetD8(address(host), 0x5a, bytes));
  right &= fact("  bytes were set", all(host, count, 0x5a5a5a5au));
  DRIVER(cuMemsetD16Async(address(host), 0x1234, bytes / 2, stream));
  REQUIRE(cudaMemsetAsync(host + count / 2, 0x77, bytes / 4, stream));
  REQUIRE(cudaStreamSynchronize(stream));
  right &= fact("  halfwords were set, and a part of them again",
                all(host, count / 2, 0x12341234u) &&
                    all(reinterpret_cast<unsigned char*>(host + count / 2),
                        static_cast<int>(bytes / 4), static_cast<unsigned char>(0x77)));
  DRIVER(cuMemsetD2D32Async(address(host), 64, 9, 4, 3, stream));
  REQUIRE(cudaStreamSynchronize(stream));
  right &= fact("  and a rectangle", all(host + 16, 4, 9u) && host[20] == 0x12341234u);

  // After what the stream was given before, before what it is given next.
  count_up<<<blocks, 64, 0, stream>>>(device, count, 2000);
  DRIVER(cuMemcpyDtoHAsync(host, address(device), bytes, stream));
  DRIVER(cuMemcpyDtoHAsync(seen.data(), address(host), bytes, stream));
  DRIVER(cuMemsetD32Async(address(host), 7, count, stream));
  DRIVER(cuMemcpyHtoDAsync(address(other), host, bytes, stream));
  REQUIRE(cudaStreamSynchronize(stream));
  right &= fact("  it is set when the stream gets there", all(host, count, 7u));
  std::printf("  what was there before: %016llx\n",
              static_cast<unsigned long long>(checksum(seen.data(), bytes)));
  REQUIRE(cudaMemcpy(seen.data(), other, bytes, cudaMemcpyDeviceToHost));
  right &= fact("  what is copied next is what was set", all(seen.data(), count, 7u));

  // Either end of a copy between devices.
  DRIVER(cuMemcpyDtoDAsync(address(host), address(device), bytes, stream));
  REQUIRE(cudaStreamSynchronize(stream));
  std::printf("  from the device: %016llx\n",
              static_cast<unsigned long long>(checksum(host, bytes)));
  for (int i = 0; i < count; ++i) host[i] = i * 3;
  DRIVER(cuMemcpyDtoD(address(other), address(host), bytes));
  REQUIRE(cudaDeviceSynchronize());  // the stream does not wait for the default one
  DRIVER(cuMemcpyAsync(address(device), address(host), bytes, stream));
  DRIVER(cuMemcpyHtoDAsync(address(host), seen.data(), bytes, stream));
  REQUIRE(cudaStreamSynchronize(stream));
  right &= fact("  to it from other memory", all(host, count, 7u));
  for (uint32_t* from : {device, other}) {
    REQUIRE(cudaMemcpy(seen.data(), from, bytes, cudaMemcpyDeviceToHost));
    std::printf("  to the device: %016llx\n",
                static_cast<unsigned long long>(checksum(seen.data(), bytes)));
  }

  // Arguments of kernels.
  for (int i = 0; i < count; ++i) host[i] = 100 + i;
  host[1] = 7;
  host[3] = 0;
  REQUIRE(cudaMemset(device, 0, bytes));
  REQUIRE(cudaDeviceSynchronize());
  DRIVER(cuMemsetD32Async(address(device), 7, count / 2, stream));
  DRIVER(cuMemsetD32Async(address(host + 3), 5, 1, stream));
  for (int run = 0; run < 2; ++run)
    count_others<<<blocks, 64, 0, stream>>>(device, count, host + 1, Tally{1, host + 3, host + 4});
  DRIVER(cuMemcpyDtoHAsync(seen.data(), address(host + 3), 3 * sizeof(uint32_t), stream));
  REQUIRE(cudaStreamSynchronize(stream));
  right &= fact("  kernels count in it", host[3] == 5u + 2u * (count - count / 2));
  right &= fact("  and write where they were told", host[4] == 104 && host[5] == 7);
  right &= fact("  copies after them see it", seen[0] == host[3] && seen[2] == 7);
  right &= fact("  the rest is as it was", host[0] == 100 && host[2] == 102 && host[6] == 106 &&
                                               host[count - 1] == 100u + count - 1);
  REQUIRE(cudaFree(device));
  REQUIRE(cudaFree(other));
  return right;
}

int main(int argc, char** argv) {
  const int count = argument(argc, argv, 1, 2048);
  cudaStream_t stream;
  REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  uint32_t* pinned = nullptr;
  REQUIRE(cudaMallocHost(&pinned, count * sizeof(uint32_t)));
  bool right = check("pinned", pinned, count, stream);
  REQUIRE(cudaFreeHost(pinned));
  std::vector<uint32_t> ordinary(count + 4096);
  REQUIRE(cudaHostRegister(ordinary.data(), count * sizeof(uint32_t), cudaHostRegisterDefault));
  right &= check("registered", ordinary.data(), count, stream);
  REQUIRE(cudaHostUnregister(ordinary.data()));
  REQUIRE(cudaStreamDestroy(stream));
  return right ? 0 : 1;
}
