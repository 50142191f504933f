// SPDX-License-Identifier: Apache-2.0
// CUDA's two kinds of errors. A launch that cannot be is refused at once, is the last error once,
// and leaves everything usable. A kernel that touches memory it must not ends the context: every
// later call says so, whatever it is.
#include "check.h"

__global__ void store(int* place, int value) { *place = value; }

// What no device takes has a name of its own in CUDA 12.
constexpr cudaError_t kNoConfiguration =
    CUDART_VERSION < 13000 ? cudaErrorInvalidConfiguration : cudaErrorInvalidValue;

static const char* name(cudaError_t error) { return cudaGetErrorName(error); }

static bool expect(const char* what, cudaError_t got, cudaError_t expected) {
  std::printf("%s: %s\n", what, name(got));
  return got == expected;
}

int main() {
  int* place = nullptr;
  int value = 0;
  bool right = true;
  REQUIRE(cudaMalloc(&place, sizeof(int)));

  std::printf("refused launches\n");
  store<<<1, 4096>>>(place, 1);
  right &= expect("too many threads, peek", cudaPeekAtLastError(), kNoConfiguration);
  right &= expect("get", cudaGetLastError(), kNoConfiguration);
  right &= expect("get again", cudaGetLastError(), cudaSuccess);
  store<<<0, 1>>>(place, 1);
  right &= expect("no blocks", cudaGetLastError(), kNoConfiguration);
  store<<<1, 0>>>(place, 1);
  right &= expect("no threads", cudaGetLastError(), kNoConfiguration);
  store<<<dim3(1, 100000), 1>>>(place, 1);
  right &= expect("too many rows of blocks", cudaGetLastError(), kNoConfiguration);
  store<<<1, dim3(1, 1, 65)>>>(place, 1);
  right &= expect("too deep a block", cudaGetLastError(), kNoConfiguration);
  store<<<1, 1, 10 << 20>>>(place, 1);
  right &= expect("too much shared memory", cudaGetLastError(), cudaErrorInvalidValue);
  right &= expect("bad direction of copy",
                  cudaMemcpy(&value, place, sizeof(int), static_cast<cudaMemcpyKind>(9)),
                  cudaErrorInvalidMemcpyDirection);
  right &= expect("bad pointer to free", cudaFree(&value), cudaErrorInvalidValue);
  right &= expect("the last of them", cudaGetLastError(), cudaErrorInvalidValue);
  right &= expect("synchronize", cudaDeviceSynchronize(), cudaSuccess);
  store<<<1, 1>>>(place, 42);
  right &= expect("a right launch", cudaGetLastError(), cudaSuccess);
  right &=
      expect("copy", cudaMemcpy(&value, place, sizeof(int), cudaMemcpyDeviceToHost), cudaSuccess);
  std::printf("value %d\n", value);
  right &= value == 42;

  std::printf("illegal access\n");
  store<<<1, 1>>>(reinterpret_cast<int*>(0x10), 1);
  right &= expect("synchronize", cudaDeviceSynchronize(), cudaErrorIllegalAddress);
  right &= expect("synchronize again", cudaDeviceSynchronize(), cudaErrorIllegalAddress);
  int* other = nullptr;
  right &= expect("allocate", cudaMalloc(&other, 4), cudaErrorIllegalAddress);
  right &= expect("copy", cudaMemcpy(&value, place, sizeof(int), cudaMemcpyDeviceToHost),
                  cudaErrorIllegalAddress);
  right &= expect("fill", cudaMemset(place, 0, sizeof(int)), cudaErrorIllegalAddress);
  cudaStream_t stream = nullptr;
  right &= expect("create a stream", cudaStreamCreate(&stream), cudaErrorIllegalAddress);
  store<<<1, 1>>>(place, 1);
  right &= expect("launch", cudaGetLastError(), cudaErrorIllegalAddress);
  right &= expect("free", cudaFree(place), cudaErrorIllegalAddress);
  int count = 0;
  right &= expect("count devices", cudaGetDeviceCount(&count), cudaSuccess);
  int runtime = 0;
  right &= expect("runtime version", cudaRuntimeGetVersion(&runtime), cudaSuccess);
  std::printf("%s\n", cudaGetErrorString(cudaErrorIllegalAddress));
  return right ? 0 : 1;
}
