// SPDX-License-Identifier: Apache-2.0
// Copies of many megabytes, pageable and pinned, in one piece and by rows, from several threads at
// once: every byte arrives, and in its stream's order. Argument: the largest copy in MiB.
#include <cstring>
#include <thread>
#include <vector>

#include "check.h"

namespace {

void fill(std::vector<unsigned char>& bytes, uint64_t seed) {
  uint64_t x = seed * 0x9e3779b97f4a7c15 + 1;
  for (size_t i = 0; i < bytes.size(); ++i) {
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    bytes[i] = static_cast<unsigned char>(x);
  }
}

bool there_and_back(size_t bytes, bool pinned) {
  std::vector<unsigned char> in(bytes), out(bytes, 1);
  fill(in, bytes + pinned);
  unsigned char *device, *from = in.data(), *to = out.data();
  REQUIRE(cudaMalloc(&device, bytes));
  if (pinned) {
    REQUIRE(cudaMallocHost(&from, bytes));
    REQUIRE(cudaMallocHost(&to, bytes));
    std::memcpy(from, in.data(), bytes);
    std::memset(to, 1, bytes);
  }
  REQUIRE(cudaMemcpy(device, from, bytes, cudaMemcpyHostToDevice));
  REQUIRE(cudaMemcpy(to, device, bytes, cudaMemcpyDeviceToHost));
  const bool same = std::memcmp(in.data(), to, bytes) == 0;
  if (pinned) {
    REQUIRE(cudaFreeHost(from));
    REQUIRE(cudaFreeHost(to));
  }
  REQUIRE(cudaFree(device));
  return same;
}

// A window of a picture whose rows are longer, both ways.
bool by_rows(size_t width, size_t rows) {
  const size_t pitch = width + 40, from_pitch = width + 24;
  std::vector<unsigned char> in(from_pitch * rows), out(pitch * rows, 9);
  fill(in, width);
  unsigned char* device;
  size_t device_pitch;
  REQUIRE(cudaMallocPitch(&device, &device_pitch, width, rows));
  REQUIRE(cudaMemcpy2D(device, device_pitch, in.data(), from_pitch, width, rows,
                       cudaMemcpyHostToDevice));
  REQUIRE(
      cudaMemcpy2D(out.data(), pitch, device, device_pitch, width, rows, cudaMemcpyDeviceToHost));
  bool same = true;
  for (size_t row = 0; row < rows; ++row) {
    same &= std::memcmp(&in[row * from_pitch], &out[row * pitch], width) == 0;
    same &= out[row * pitch + width] == 9;
  }
  REQUIRE(cudaFree(device));
  return same;
}

// The same memory is filled over and over: each copy back has to see what its stream had last.
bool in_order(size_t bytes, int rounds) {
  cudaStream_t stream;
  REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  std::vector<unsigned char> in(bytes), out(bytes);
  unsigned char *a, *b;
  REQUIRE(cudaMalloc(&a, bytes));
  REQUIRE(cudaMalloc(&b, bytes));
  bool same = true;
  for (int i = 0; i < rounds; ++i) {
    std::memset(in.data(), i, bytes);
    in[bytes - 1] = static_cast<unsigned char>(i + 100);
    REQUIRE(cudaMemcpyAsync(a, in.data(), bytes, cudaMemcpyHostToDevice, stream));
    // What was handed over is CUDA's: pageable memory may change as soon as the call is back.
    std::memset(in.data(), 255, bytes);
    REQUIRE(cudaMemcpyAsync(b, a, bytes, cudaMemcpyDeviceToDevice, stream));
    REQUIRE(cudaMemsetAsync(a, 77, bytes, stream));
    REQUIRE(cudaMemcpyAsync(out.data(), b, bytes, cudaMemcpyDeviceToHost, stream));
    REQUIRE(cudaStreamSynchronize(stream));
    same &= out[0] == i && out[bytes / 2] == i && out[bytes - 1] == i + 100;
  }
  REQUIRE(cudaFree(a));
  REQUIRE(cudaFree(b));
  REQUIRE(cudaStreamDestroy(stream));
  return same;
}

}  // namespace

int main(int argc, char** argv) {
  const size_t most = (argc > 1 ? std::atoi(argv[1]) : 40) * size_t{1 << 20};
  const size_t sizes[] = {1,       4097, 262144 - 64, 960 << 10, (960 << 10) + 1, (4 << 20) - 3,
                          most + 5};
  for (const size_t bytes : sizes)
    std::printf("%zu bytes: pageable %s, pinned %s\n", bytes,
                there_and_back(bytes, false) ? "same" : "DIFFERENT",
                there_and_back(bytes, true) ? "same" : "DIFFERENT");
  std::printf("rows of 3000: %s\n", by_rows(3000, 3001) ? "same" : "DIFFERENT");
  std::printf("rows of 5 MiB: %s\n", by_rows(5 << 20, 3) ? "same" : "DIFFERENT");
  bool ordered[4] = {};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&ordered, i] { ordered[i] = in_order((700 << 10) * (i + 1), 12); });
  for (auto& t : threads) t.join();
  for (const bool one : ordered) std::printf("in order: %s\n", one ? "yes" : "NO");
  return 0;
}
