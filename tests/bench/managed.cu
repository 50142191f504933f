// SPDX-License-Identifier: Apache-2.0
// Managed memory as a program sees it: reading what was prefetched beside reading memory of the
// host, and reading what the device has beside copying that much to the host. One JSON object on
// standard output; every figure is a median. Run by managed_memory.py.
#include <cuda_runtime.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(call)                                                    \
  do {                                                                 \
    const cudaError_t e_ = (call);                                     \
    if (e_ != cudaSuccess) {                                           \
      std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(e_)); \
      std::exit(1);                                                    \
    }                                                                  \
  } while (0)

namespace {

constexpr int kRepetitions = 9;

double now_us() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

double gib_s(size_t bytes, double us) { return bytes / us * 1e6 / (1 << 30); }

// Every word of it, so that nothing is left unread.
double read_all(const uint64_t* data, size_t bytes, uint64_t each) {
  const double start = now_us();
  uint64_t sum = 0;
  const size_t words = bytes / sizeof(uint64_t);
  for (size_t i = 0; i < words; ++i) sum += data[i];
  const double took = now_us() - start;
  if (sum != each * words) {
    std::fprintf(stderr, "what was read is not what the device has\n");
    std::exit(1);
  }
  return took;
}

// One byte of each page: what it takes until they are there, and no more.
double touch_all(const uint8_t* data, size_t bytes, uint8_t each) {
  const double start = now_us();
  size_t wrong = 0;
  for (size_t at = 0; at < bytes; at += 4096) wrong += data[at] != each;
  const double took = now_us() - start;
  if (wrong != 0) {
    std::fprintf(stderr, "%zu pages are not what the device has\n", wrong);
    std::exit(1);
  }
  return took;
}

}  // namespace

int main(int argc, char** argv) {
  const size_t bytes = static_cast<size_t>(argc > 1 ? std::atoi(argv[1]) : 128) << 20;
  uint8_t *managed, *device;
  CHECK(cudaMallocManaged(&managed, bytes));
  CHECK(cudaMalloc(&device, bytes));
  std::vector<uint64_t> host(bytes / sizeof(uint64_t));
  std::vector<double> prefetched, read, faulted, copied;
  cudaMemLocation here{};
  here.type = cudaMemLocationTypeHost;
  for (int i = 0; i <= kRepetitions; ++i) {
    const auto byte = static_cast<uint8_t>(i + 1);
    const uint64_t word = byte * 0x0101010101010101ull;
    CHECK(cudaMemset(managed, byte, bytes));
    CHECK(cudaMemset(device, byte, bytes));
    CHECK(cudaDeviceSynchronize());
    double start = now_us();
    CHECK(cudaMemcpy(host.data(), device, bytes, cudaMemcpyDeviceToHost));
    copied.push_back(now_us() - start);
    faulted.push_back(touch_all(managed, bytes, byte));
    read.push_back(read_all(host.data(), bytes, word));
    CHECK(cudaMemset(managed, byte, bytes));
    CHECK(cudaMemPrefetchAsync(managed, bytes, here, 0, nullptr));
    CHECK(cudaDeviceSynchronize());
    prefetched.push_back(read_all(reinterpret_cast<uint64_t*>(managed), bytes, word));
  }
  // The first touches memory that the host has not given yet.
  for (auto* each : {&prefetched, &read, &faulted, &copied}) each->erase(each->begin());
  std::printf("{\"prefetched_gib_s\": %.4f, \"host_gib_s\": %.4f, ",
              gib_s(bytes, median(prefetched)), gib_s(bytes, median(read)));
  std::printf("\"faulted_gib_s\": %.4f, \"copied_gib_s\": %.4f}\n", gib_s(bytes, median(faulted)),
              gib_s(bytes, median(copied)));
  return 0;
}
