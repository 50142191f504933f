// SPDX-License-Identifier: Apache-2.0
// What one stream was given, and was waited for by the host or copied synchronously, is there for
// whatever other streams are given next: in whichever streams and threads, behind slow work, in
// large and small pieces, and when the first stream is gone meanwhile. `other_streams [MIB]`: how
// much is large, 8 MiB.
#include <atomic>
#include <cstdlib>
#include <thread>
#include <vector>

#include "check.h"

static __device__ int g_factor;

static __global__ void slow(int* data) {
  for (int i = 0; i < 20; ++i) __nanosleep(1000000);
  data[0] = 1;
}

static __global__ void sum(const int* data, int count, unsigned long long* result) {
  unsigned long long all = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
    all += static_cast<unsigned>(data[i]);
  atomicAdd(result, all * static_cast<unsigned>(g_factor));
}

constexpr int kSmall = 500;
static int large = 2 << 20;

struct Given {
  std::vector<int> host;
  int* data;
  unsigned long long *result, expected;

  explicit Given(int count) : host(count) {
    REQUIRE(cudaMalloc(&data, count * sizeof(int)));
    REQUIRE(cudaMalloc(&result, sizeof *result));
  }
  int count() const { return static_cast<int>(host.size()); }
  size_t bytes() const { return host.size() * sizeof(int); }
  // Other numbers each time.
  void fill(uint32_t& state) {
    expected = 0;
    for (int& h : host) expected += static_cast<unsigned>(h = next_number(state));
  }
  void add(cudaStream_t stream) {
    sum<<<8, 128, 0, stream>>>(data, count(), result);
    REQUIRE(cudaGetLastError());
  }
  unsigned long long take(cudaStream_t stream) {
    unsigned long long value;
    REQUIRE(cudaMemcpyAsync(&value, result, sizeof value, cudaMemcpyDefault, stream));
    REQUIRE(cudaStreamSynchronize(stream));
    return value;
  }
};

static cudaStream_t new_stream(unsigned flags = cudaStreamNonBlocking) {
  cudaStream_t stream;
  REQUIRE(cudaStreamCreateWithFlags(&stream, flags));
  return stream;
}

static void set_factor(int factor) {
  REQUIRE(cudaMemcpyToSymbol(g_factor, &factor, sizeof factor));
}

// A synchronous copy starts when its stream's work is done, however slow that is.
static void behind_slow_work() {
  Given g(kSmall);
  uint32_t state = 1;
  int* spare;
  REQUIRE(cudaMalloc(&spare, sizeof *spare));
  cudaStream_t other = new_stream();
  bool right = true;
  for (int round = 1; round < 6; ++round) {
    g.fill(state);
    REQUIRE(cudaMemset(g.result, 0, sizeof *g.result));
    slow<<<1, 1>>>(spare);
    set_factor(round);
    REQUIRE(cudaMemcpy(g.data, g.host.data(), g.bytes(), cudaMemcpyHostToDevice));
    g.add(other);
    right &= g.take(other) == g.expected * round;
  }
  fact("a synchronous copy behind slow work is there for another stream", right);
  set_factor(1);
}

// Copies and fills that the host has waited for, in streams of all kinds in turn.
static void waited_for(const char* what, int count, unsigned seed) {
  Given g(count);
  uint32_t state = seed;
  cudaStream_t streams[] = {nullptr, new_stream(), new_stream(cudaStreamDefault), new_stream(),
                            cudaStreamPerThread};
  bool right = true;
  for (int round = 0; round < 100 && right; ++round) {
    cudaStream_t first = streams[next_number(state) % 5], second = streams[next_number(state) % 5];
    g.fill(state);
    REQUIRE(cudaMemsetAsync(g.result, 0, sizeof *g.result, first));
    REQUIRE(cudaMemcpyAsync(g.data, g.host.data(), g.bytes(), cudaMemcpyHostToDevice, first));
    REQUIRE(cudaStreamSynchronize(first));
    right &= cudaStreamQuery(first) == cudaSuccess;
    g.add(second);
    right &= g.take(second) == g.expected;
  }
  fact(what, right);
}

static void stream_gone() {
  Given g(large);
  uint32_t state = 5;
  bool right = true;
  for (int round = 0; round < 20; ++round) {
    g.fill(state);
    cudaStream_t first = new_stream();
    REQUIRE(cudaMemsetAsync(g.result, 0, sizeof *g.result, first));
    REQUIRE(cudaMemcpyAsync(g.data, g.host.data(), g.bytes(), cudaMemcpyHostToDevice, first));
    REQUIRE(cudaStreamSynchronize(first));
    REQUIRE(cudaStreamDestroy(first));
    cudaStream_t second = new_stream();
    g.add(second);
    right &= g.take(second) == g.expected;
    REQUIRE(cudaStreamDestroy(second));
  }
  fact("so it is when the stream is gone", right);
}

// One thread brings, the other adds up.
static void threads() {
  Given g(large / 4);
  std::atomic<int> turn{0};
  bool right = true;
  std::thread adding([&] {
    cudaStream_t stream = new_stream();
    for (int round = 0; round < 50; ++round) {
      while (turn.load() != 2 * round + 1) std::this_thread::yield();
      g.add(stream);
      right &= g.take(stream) == g.expected;
      turn = 2 * round + 2;
    }
  });
  cudaStream_t stream = new_stream();
  uint32_t state = 6;
  for (int round = 0; round < 50; ++round) {
    while (turn.load() != 2 * round) std::this_thread::yield();
    g.fill(state);
    REQUIRE(cudaMemsetAsync(g.result, 0, sizeof *g.result, stream));
    REQUIRE(cudaMemcpyAsync(g.data, g.host.data(), g.bytes(), cudaMemcpyHostToDevice, stream));
    REQUIRE(cudaStreamSynchronize(stream));
    turn = 2 * round + 1;
  }
  adding.join();
  fact("another thread's stream has it too", right);
}

// What the host can notice is done when it has been waited for.
static void noticed() {
  Given g(large);
  uint32_t state = 7;
  cudaStream_t stream = new_stream();
  cudaEvent_t event;
  REQUIRE(cudaEventCreate(&event));
  int* mapped;
  REQUIRE(cudaMallocHost(&mapped, g.bytes()));
  bool events = true, memory = true;
  for (int round = 0; round < 20; ++round) {
    g.fill(state);
    REQUIRE(cudaMemcpyAsync(g.data, g.host.data(), g.bytes(), cudaMemcpyHostToDevice, stream));
    REQUIRE(cudaEventRecord(event, stream));
    REQUIRE(cudaStreamSynchronize(stream));
    events &= cudaEventQuery(event) == cudaSuccess;
    mapped[large - 1] = -1;
    REQUIRE(cudaMemsetAsync(mapped, round, g.bytes(), stream));
    REQUIRE(cudaStreamSynchronize(stream));
    memory &= mapped[large - 1] == round * 0x01010101;
    // Pinned memory may be written again once its copy was waited for.
    REQUIRE(cudaMemcpyAsync(g.data, mapped, g.bytes(), cudaMemcpyHostToDevice, stream));
    REQUIRE(cudaStreamSynchronize(stream));
    mapped[large - 1] = 0;
    int last;
    REQUIRE(cudaMemcpy(&last, g.data + large - 1, sizeof last, cudaMemcpyDeviceToHost));
    memory &= last == round * 0x01010101;
  }
  fact("an event that was recorded before is done", events);
  fact("pinned memory that was filled or copied from is free", memory);
  REQUIRE(cudaFreeHost(mapped));
}

int main(int argc, char** argv) {
  if (argc > 1) large = std::atoi(argv[1]) << 18;
  set_factor(1);
  behind_slow_work();
  waited_for("large copies that were waited for are there for all streams", large, 2);
  waited_for("so are small ones", kSmall, 3);
  stream_gone();
  threads();
  noticed();
  return 0;
}
