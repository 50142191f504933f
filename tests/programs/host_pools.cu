// SPDX-License-Identifier: Apache-2.0
// Pools of pinned host memory as cuda.core, CCCL and RMM have them: staging memory in the order of
// streams, which host, copies and kernels reach at one address.
#include <cuda.h>

#include <cstring>
#include <thread>
#include <vector>

#include "check.h"

static constexpr int kCount = 1 << 16;
static constexpr size_t kBytes = kCount * sizeof(unsigned);

__global__ void add(unsigned* data, int count, unsigned addend) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) data[i] += addend;
}

static cudaMemPool_t create(size_t most) {
  cudaMemPoolProps props = {};
  props.allocType = cudaMemAllocationTypePinned;
  props.location.type = cudaMemLocationTypeHostNuma;
  props.location.id = 0;
  props.maxSize = most;
  cudaMemPool_t pool = nullptr;
  REQUIRE(cudaMemPoolCreate(&pool, &props));
  cudaMemAccessDesc device = {};
  device.location.type = cudaMemLocationTypeDevice;
  device.flags = cudaMemAccessFlagsProtReadWrite;
  REQUIRE(cudaMemPoolSetAccess(pool, &device, 1));
  return pool;
}

static unsigned* take(cudaMemPool_t pool, size_t bytes, cudaStream_t stream) {
  void* memory = nullptr;
  REQUIRE(cudaMallocFromPoolAsync(&memory, bytes, pool, stream));
  return static_cast<unsigned*>(memory);
}

static uint64_t get(cudaMemPool_t pool, cudaMemPoolAttr attribute) {
  uint64_t value = 0;
  REQUIRE(cudaMemPoolGetAttribute(pool, attribute, &value));
  return value;
}

static bool is(const unsigned* data, int count, unsigned value) {
  for (int i = 0; i < count; ++i)
    if (data[i] != value + i) return false;
  return true;
}

static void fill(unsigned* data, int count, unsigned value) {
  for (int i = 0; i < count; ++i) data[i] = value + i;
}

// What a pointer of the pool's is.
static bool pointers(cudaMemPool_t pool, unsigned* memory) {
  cudaPointerAttributes known = {};
  REQUIRE(cudaPointerGetAttributes(&known, memory + 1));
  bool right = fact("it is the host's memory", known.type == cudaMemoryTypeHost);
  right &= fact("host and device have it at one address",
                known.hostPointer == memory + 1 && known.devicePointer == memory + 1);
  cudaMemLocation location = {};
  location.type = cudaMemLocationTypeDevice;
  cudaMemAccessFlags flags = cudaMemAccessFlagsProtNone;
  REQUIRE(cudaMemPoolGetAccess(&flags, pool, &location));
  right &= fact("the device may use it", flags == cudaMemAccessFlagsProtReadWrite);
  location.type = cudaMemLocationTypeHostNuma;
  REQUIRE(cudaMemPoolGetAccess(&flags, pool, &location));
  return right & fact("so may the host", flags == cudaMemAccessFlagsProtReadWrite);
}

// Staging pieces, each freed behind the copy out of it, and written when the stream has passed.
static bool staged(cudaMemPool_t pool, cudaStream_t stream) {
  constexpr int kPieces = 64;
  unsigned* device = nullptr;
  REQUIRE(cudaMalloc(&device, kPieces * kBytes));
  for (int n = 0; n < kPieces; ++n) {
    unsigned* piece = take(pool, kBytes, stream);
    REQUIRE(cudaStreamSynchronize(stream));
    fill(piece, kCount, n);
    REQUIRE(cudaMemcpyAsync(device + n * kCount, piece, kBytes, cudaMemcpyDefault, stream));
    REQUIRE(cudaFreeAsync(piece, stream));
  }
  unsigned* all = take(pool, kPieces * kBytes, stream);
  REQUIRE(cudaMemcpyAsync(all, device, kPieces * kBytes, cudaMemcpyDeviceToHost, stream));
  REQUIRE(cudaStreamSynchronize(stream));
  bool right = true;
  for (int n = 0; n < kPieces; ++n) right &= is(all + n * kCount, kCount, n);
  REQUIRE(cudaFreeAsync(all, stream));
  REQUIRE(cudaFree(device));
  return right;
}

// Each with a stream of its own, all with one pool.
static bool threads(cudaMemPool_t pool) {
  constexpr int kThreads = 4;
  bool right[kThreads] = {};
  std::vector<std::thread> all;
  for (int t = 0; t < kThreads; ++t)
    all.emplace_back([&, t] {
      cudaStream_t stream;
      REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
      right[t] = true;
      for (int n = 1; n <= 32; ++n) {
        const int count = 1000 * n;
        unsigned *data = take(pool, count * sizeof(unsigned), stream), *device = nullptr;
        REQUIRE(cudaMallocAsync(&device, count * sizeof(unsigned), stream));
        REQUIRE(cudaStreamSynchronize(stream));
        fill(data, count, t);
        REQUIRE(cudaMemcpyAsync(device, data, count * sizeof(unsigned), cudaMemcpyDefault, stream));
        add<<<(count + 255) / 256, 256, 0, stream>>>(device, count, n);
        REQUIRE(cudaMemcpyAsync(data, device, count * sizeof(unsigned), cudaMemcpyDefault, stream));
        REQUIRE(cudaFreeAsync(device, stream));
        REQUIRE(cudaStreamSynchronize(stream));
        right[t] = right[t] && is(data, count, t + n);
        REQUIRE(cudaFreeAsync(data, stream));
      }
      REQUIRE(cudaStreamDestroy(stream));
    });
  for (auto& thread : all) thread.join();
  for (const bool one : right)
    if (!one) return false;
  return true;
}

int main() {
  cudaStream_t stream;
  REQUIRE(cudaStreamCreate(&stream));
  cudaMemPool_t pool = create(0);
  uint64_t threshold = uint64_t{1} << 30;
  REQUIRE(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));

  unsigned* memory = take(pool, kBytes, stream);
  bool right =
      fact("the pool counts what is used", get(pool, cudaMemPoolAttrUsedMemCurrent) == kBytes);
  right &= fact("and what it has", get(pool, cudaMemPoolAttrReservedMemCurrent) >= kBytes);
  right &= pointers(pool, memory);

  REQUIRE(cudaStreamSynchronize(stream));
  fill(memory, kCount, 3);
  add<<<kCount / 256, 256, 0, stream>>>(memory, kCount, 4);
  REQUIRE(cudaStreamSynchronize(stream));
  right &= fact("a kernel has added to what the host wrote", is(memory, kCount, 7));
  REQUIRE(cudaMemsetAsync(memory, 0, 8, stream));
  REQUIRE(cudaStreamSynchronize(stream));
  right &= fact("a fill has filled its part",
                memory[0] == 0 && memory[1] == 0 && is(memory + 2, kCount - 2, 9));
  REQUIRE(cudaFreeAsync(memory, stream));
  REQUIRE(cudaStreamSynchronize(stream));
  right &= fact("nothing is used", get(pool, cudaMemPoolAttrUsedMemCurrent) == 0);
  right &= fact("there was", get(pool, cudaMemPoolAttrUsedMemHigh) == kBytes);

  right &= fact("staged pieces arrive", staged(pool, stream));
  right &= fact("threads share it", threads(pool));
  REQUIRE(cudaDeviceSynchronize());
  REQUIRE(cudaMemPoolTrimTo(pool, 0));
  right &= fact("a trim leaves nothing", get(pool, cudaMemPoolAttrReservedMemCurrent) == 0);

  // What is allocated outlives the pool.
  memory = take(pool, kBytes, stream);
  REQUIRE(cudaStreamSynchronize(stream));
  REQUIRE(cudaMemPoolDestroy(pool));
  fill(memory, kCount, 1);
  add<<<kCount / 256, 256, 0, stream>>>(memory, kCount, 1);
  REQUIRE(cudaStreamSynchronize(stream));
  right &= fact("its memory outlives it", is(memory, kCount, 2));
  REQUIRE(cudaFree(memory));

  pool = create(4 << 20);
  void* more = nullptr;
  const cudaError_t refused = cudaMallocFromPoolAsync(&more, 64 << 20, pool, stream);
  right &= fact("its size can be limited", refused == cudaErrorMemoryAllocation);
  cudaGetLastError();
  right &= fact("to whole 32 MiB",
                cudaMallocFromPoolAsync(&more, 32 << 20, pool, stream) == cudaSuccess);
  REQUIRE(cudaFreeAsync(more, stream));
  REQUIRE(cudaStreamSynchronize(stream));
  REQUIRE(cudaMemPoolDestroy(pool));
  cudaMemPoolProps wrong = {};
  wrong.allocType = cudaMemAllocationTypePinned;
  wrong.location.type = cudaMemLocationTypeHostNumaCurrent;
  right &= fact("no pool is of the thread's node of the moment",
                cudaMemPoolCreate(&pool, &wrong) == cudaErrorInvalidValue);
  cudaGetLastError();
  REQUIRE(cudaStreamDestroy(stream));
  return right ? 0 : 1;
}
