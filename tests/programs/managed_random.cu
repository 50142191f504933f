// SPDX-License-Identifier: Apache-2.0
// Managed memory in random turns: the program's own reads and writes, kernels, copies, fills and
// prefetches on several streams, each compared with a plain array. Work follows work by events,
// whichever stream it is on; before the program touches anything it waits for the device, as it has
// to without concurrent access.
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <vector>

#include "check.h"
#include "majors.h"

namespace {

constexpr int kBuffers = 3;
constexpr int kStreams = 3;

__global__ void mix(uint32_t* to, const uint32_t* from, int n, uint32_t value) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    to[i] = to[i] * 3 + from[i] + value;
}

struct Buffer {
  uint32_t* data = nullptr;
  std::vector<uint32_t> model;
};

class Turns {
 public:
  explicit Turns(uint32_t seed) : state_(seed) {
    const int sizes[kBuffers] = {700, 40000, 600000};
    for (int i = 0; i < kBuffers; ++i) {
      buffers_[i].model.resize(sizes[i]);
      REQUIRE(cudaMallocManaged(&buffers_[i].data, sizes[i] * sizeof(uint32_t)));
      for (int k = 0; k < sizes[i]; ++k) buffers_[i].data[k] = buffers_[i].model[k] = k * 7;
    }
    for (cudaStream_t& stream : streams_)
      REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    REQUIRE(cudaEventCreateWithFlags(&last_, cudaEventDisableTiming));
  }
  ~Turns() {
    for (cudaStream_t stream : streams_) cudaStreamDestroy(stream);
    for (Buffer& b : buffers_) cudaFree(b.data);
    cudaEventDestroy(last_);
  }

  bool step() {
    switch (next(8)) {
      case 0:
      case 1:
        return read();
      case 2:
        write();
        return true;
      case 3:
      case 4:
        kernel();
        return true;
      case 5:
        copy();
        return true;
      case 6:
        fill();
        return true;
      default:
        hint();
        return true;
    }
  }

 private:
  struct Range {
    Buffer* buffer;
    int from, count;
    uint32_t* at() const { return buffer->data + from; }
    uint32_t* model() const { return buffer->model.data() + from; }
  };

  int next(int n) { return static_cast<int>(next_number(state_) % static_cast<uint32_t>(n)); }
  Range range(int most = 1 << 30) {
    Buffer& b = buffers_[next(kBuffers)];
    const int all = static_cast<int>(b.model.size());
    const int from = next(all);
    const int left = all - from < most ? all - from : most;
    return {&b, from, 1 + next(next(2) ? left : (left < 64 ? left : 64))};
  }
  // A stream on which everything that was given before is done first.
  cudaStream_t stream() {
    cudaStream_t chosen = streams_[next(kStreams)];
    REQUIRE(cudaStreamWaitEvent(chosen, last_, 0));
    return chosen;
  }
  void given(cudaStream_t to) { REQUIRE(cudaEventRecord(last_, to)); }

  bool read() {
    REQUIRE(cudaDeviceSynchronize());
    const Range r = range();
    for (int i = 0; i < r.count; ++i)
      if (r.at()[i] != r.model()[i]) {
        std::printf("at %d of %zu: %u, not %u\n", r.from + i, r.buffer->model.size(), r.at()[i],
                    r.model()[i]);
        return false;
      }
    return true;
  }
  void write() {
    REQUIRE(cudaDeviceSynchronize());
    const Range r = range();
    const uint32_t value = next_number(state_);
    for (int i = 0; i < r.count; i += 3) r.at()[i] = r.model()[i] = value + i;
  }
  void kernel() {
    const Range to = range();
    Range from = range();
    while (from.buffer == to.buffer) from = range();
    const int n = to.count < from.count ? to.count : from.count;
    const uint32_t value = next_number(state_);
    cudaStream_t on = stream();
    mix<<<8, 64, 0, on>>>(to.at(), from.at(), n, value);
    REQUIRE(cudaGetLastError());
    given(on);
    for (int i = 0; i < n; ++i) to.model()[i] = to.model()[i] * 3 + from.model()[i] + value;
  }
  void copy() {
    const Range to = range();
    Range from = range();
    while (from.buffer == to.buffer) from = range();
    const int n = to.count < from.count ? to.count : from.count;
    cudaStream_t on = stream();
    REQUIRE(cudaMemcpyAsync(to.at(), from.at(), n * sizeof(uint32_t), cudaMemcpyDefault, on));
    given(on);
    for (int i = 0; i < n; ++i) to.model()[i] = from.model()[i];
  }
  void fill() {
    const Range r = range();
    const int byte = next(256);
    cudaStream_t on = stream();
    REQUIRE(cudaMemsetAsync(r.at(), byte, r.count * sizeof(uint32_t), on));
    given(on);
    for (int i = 0; i < r.count; ++i) r.model()[i] = static_cast<uint32_t>(byte) * 0x01010101u;
  }
  void hint() {
    const Range r = range();
    cudaStream_t on = stream();
    REQUIRE(prefetch(r.at(), r.count * sizeof(uint32_t), next(2) ? cudaCpuDeviceId : 0, on));
    given(on);
  }

  uint32_t state_;
  Buffer buffers_[kBuffers];
  cudaStream_t streams_[kStreams]{};
  cudaEvent_t last_{};
};

}  // namespace

int main(int argc, char** argv) {
  const int seeds = argument(argc, argv, 1, 4), steps = argument(argc, argv, 2, 250);
  for (int seed = 1; seed <= seeds; ++seed) {
    Turns turns(static_cast<uint32_t>(seed) * 77);
    for (int i = 0; i < steps; ++i)
      if (!turns.step()) {
        std::printf("seed %d, step %d\n", seed, i);
        return 1;
      }
  }
  std::printf("%d times %d turns: right\n", seeds, steps);
  return 0;
}
