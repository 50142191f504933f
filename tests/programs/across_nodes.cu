// SPDX-License-Identifier: Apache-2.0
// One process, two devices, streams that wait for one another and copies between the two, none of
// which may hold the calling thread: it opens the gate that all of it waits for only after all has
// been asked for. Then copies that pass each other, boxes, and many small ones from four threads.
#include <cuda.h>

#include <cstring>
#include <thread>
#include <vector>

#include "check.h"

static __global__ void add(unsigned* data, int count, unsigned addend) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) data[i] = data[i] * 3 + addend;
}

constexpr int kCount = 3000, kBlock = 128, kGrid = (kCount + kBlock - 1) / kBlock;
constexpr size_t kBytes = kCount * sizeof(unsigned);

static cudaStream_t make_stream(int device) {
  cudaStream_t stream;
  REQUIRE(cudaSetDevice(device));
  REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

static void require_driver(CUresult status, const char* what) {
  if (status == CUDA_SUCCESS) return;
  std::fprintf(stderr, "%s: %d\n", what, static_cast<int>(status));
  std::exit(1);
}

static bool works(cudaStream_t stream) {
  const cudaError_t status = cudaStreamQuery(stream);
  if (status != cudaErrorNotReady) REQUIRE(status);
  return status == cudaErrorNotReady;
}

// CUDA loads a kernel at its first launch, and may wait for the whole context to do so: here for
// the gate, which nobody would open then.
static void load_kernel() {
  for (int d = 0; d < 2; ++d) {
    REQUIRE(cudaSetDevice(d));
    add<<<1, 1>>>(nullptr, 0, 0);
    REQUIRE(cudaGetLastError());
    REQUIRE(cudaDeviceSynchronize());
  }
}

// A chain to and fro behind a gate on device 0, `rounds` long.
static void behind_a_gate(int rounds) {
  unsigned* gate;
  unsigned* data[2];
  cudaStream_t streams[2], opener = make_stream(0);
  cudaEvent_t done[2];
  REQUIRE(cudaMalloc(&gate, sizeof *gate));
  REQUIRE(cudaMemset(gate, 0, sizeof *gate));
  for (int d = 0; d < 2; ++d) {
    streams[d] = make_stream(d);
    REQUIRE(cudaMalloc(&data[d], kBytes));
    REQUIRE(cudaMemset(data[d], 0, kBytes));
    REQUIRE(cudaDeviceSynchronize());
    REQUIRE(cudaEventCreateWithFlags(&done[d], cudaEventDisableTiming));
  }
  REQUIRE(cudaSetDevice(0));
  const auto at = reinterpret_cast<CUdeviceptr>(gate);
  require_driver(cuStreamWaitValue32(streams[0], at, 1, CU_STREAM_WAIT_VALUE_GEQ), "the gate");
  unsigned expected = 0;
  for (int round = 0; round < rounds; ++round) {
    const int from = round % 2, to = 1 - from;
    REQUIRE(cudaSetDevice(from));
    add<<<kGrid, kBlock, 0, streams[from]>>>(data[from], kCount, round);
    expected = expected * 3 + round;
    REQUIRE(cudaGetLastError());
    if (round % 3 == 0) {  // by the sender's stream, and by the receiver's
      REQUIRE(cudaMemcpyPeerAsync(data[to], to, data[from], from, kBytes, streams[from]));
      REQUIRE(cudaEventRecord(done[from], streams[from]));
      REQUIRE(cudaStreamWaitEvent(streams[to], done[from], 0));
    } else {
      REQUIRE(cudaEventRecord(done[from], streams[from]));
      REQUIRE(cudaStreamWaitEvent(streams[to], done[from], 0));
      REQUIRE(cudaMemcpyPeerAsync(data[to], to, data[from], from, kBytes, streams[to]));
    }
  }
  const int last = rounds % 2;  // the device that has the newest
  std::printf("asked for: %d and %d under way\n", works(streams[0]), works(streams[last]));
  require_driver(cuStreamWriteValue32(opener, at, 1, 0), "opening it");
  REQUIRE(cudaStreamSynchronize(streams[last]));
  std::vector<unsigned> host(kCount);
  REQUIRE(cudaSetDevice(last));
  REQUIRE(cudaMemcpyAsync(host.data(), data[last], kBytes, cudaMemcpyDeviceToHost, streams[last]));
  REQUIRE(cudaStreamSynchronize(streams[last]));
  bool right = true;
  for (unsigned value : host) right = right && value == expected;
  std::printf("after %d rounds: %s\n", rounds, right ? "right" : "wrong");
  for (int d = 0; d < 2; ++d) REQUIRE(cudaFree(data[d]));
}

// Both ways at once, each with the source's stream.
static void pass_each_other() {
  constexpr size_t kLarge = (33 << 20) + 4;
  char *source[2], *target[2];
  std::vector<char> host[2], back(kLarge);
  cudaStream_t streams[2];
  uint32_t state = 3;
  for (int d = 0; d < 2; ++d) {
    host[d].resize(kLarge);
    for (char& c : host[d]) c = static_cast<char>(next_number(state));
    streams[d] = make_stream(d);
    REQUIRE(cudaMalloc(&source[d], kLarge));
    REQUIRE(cudaMalloc(&target[d], kLarge));
    REQUIRE(cudaMemcpy(source[d], host[d].data(), kLarge, cudaMemcpyHostToDevice));
  }
  for (int d = 0; d < 2; ++d) {
    REQUIRE(cudaSetDevice(d));
    for (int i = 0; i < 3; ++i)
      REQUIRE(cudaMemcpyPeerAsync(target[1 - d], 1 - d, source[d], d, kLarge, streams[d]));
  }
  for (int d = 0; d < 2; ++d) {
    REQUIRE(cudaStreamSynchronize(streams[d]));
    REQUIRE(cudaMemcpy(back.data(), target[1 - d], kLarge, cudaMemcpyDefault));
    std::printf("what device %d sent: %s\n", d, back == host[d] ? "right" : "wrong");
  }
  // A free waits for a copy to there, whosever stream has it.
  REQUIRE(cudaSetDevice(0));
  REQUIRE(cudaMemcpyPeerAsync(target[1], 1, source[0], 0, kLarge, streams[0]));
  for (int d = 0; d < 2; ++d) {
    REQUIRE(cudaFree(target[d]));
    REQUIRE(cudaFree(source[d]));
  }
}

// `width` of `pitch` bytes, `rows` of them, and nothing beside them.
static void box(size_t width, size_t rows, size_t pitch) {
  char* data[2];
  const size_t bytes = pitch * rows;
  std::vector<char> host(bytes), back(bytes), want(bytes, 9);
  uint32_t state = static_cast<uint32_t>(width);
  for (char& c : host) c = static_cast<char>(next_number(state));
  for (int d = 0; d < 2; ++d) {
    REQUIRE(cudaSetDevice(d));
    REQUIRE(cudaMalloc(&data[d], bytes));
    REQUIRE(cudaMemset(data[d], 9, bytes));
    // The copy to device 0 is given to device 1, which CUDA orders behind nothing of device 0's.
    REQUIRE(cudaDeviceSynchronize());
  }
  REQUIRE(cudaMemcpy(data[0], host.data(), bytes, cudaMemcpyDefault));
  REQUIRE(cudaMemcpy2D(data[1], pitch, data[0], pitch, width, rows, cudaMemcpyDefault));
  REQUIRE(cudaMemcpy(back.data(), data[1], bytes, cudaMemcpyDefault));
  for (size_t row = 0; row < rows; ++row)
    std::memcpy(want.data() + row * pitch, host.data() + row * pitch, width);
  std::printf("%zu rows of %zu bytes: %s\n", rows, width, back == want ? "right" : "wrong");
  for (int d = 0; d < 2; ++d) REQUIRE(cudaFree(data[d]));
}

// Four threads, each with memory and a stream of its own, by whose order all is right.
static void from_threads() {
  std::vector<std::thread> threads;
  int right[4] = {};
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([t, &right] {
      unsigned* data[2];
      const cudaStream_t stream = make_stream(t % 2);
      for (int d = 0; d < 2; ++d) {
        REQUIRE(cudaSetDevice(d));
        REQUIRE(cudaMalloc(&data[d], sizeof(unsigned) * 2));
      }
      const int here = t % 2, there = 1 - here;
      REQUIRE(cudaSetDevice(here));
      REQUIRE(cudaMemsetAsync(data[here], 0, sizeof(unsigned) * 2, stream));
      unsigned expected = 0;
      for (int i = 0; i < 400; ++i) {
        add<<<1, 2, 0, stream>>>(data[here], 2, t);
        expected = expected * 3 + t;
        REQUIRE(cudaMemcpyPeerAsync(data[there], there, data[here], here, 8, stream));
        REQUIRE(cudaMemsetAsync(data[here], 0, 8, stream));
        REQUIRE(cudaMemcpyPeerAsync(data[here], here, data[there], there, 8, stream));
      }
      unsigned result[2];
      REQUIRE(cudaMemcpyAsync(result, data[here], sizeof result, cudaMemcpyDefault, stream));
      REQUIRE(cudaStreamSynchronize(stream));
      right[t] = result[0] == expected && result[1] == expected;
    });
  for (std::thread& thread : threads) thread.join();
  std::printf("from threads: %d %d %d %d\n", right[0], right[1], right[2], right[3]);
}

int main() {
  load_kernel();
  behind_a_gate(1);
  behind_a_gate(40);
  pass_each_other();
  box(700, 3000, 1024);
  box(5 << 20, 3, (5 << 20) + 64);
  box(1, 5000, 7);
  from_threads();
  return 0;
}
