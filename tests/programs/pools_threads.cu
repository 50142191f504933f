// SPDX-License-Identifier: Apache-2.0
// Stream-ordered memory under load: threads with a stream each fill, check and free it, pass some
// on to one another by events, and want together more than the device is asked to hold. Whatever
// one stream still uses must never be handed to another. Argument: rounds of each thread.
#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "check.h"

__global__ void fill(unsigned* data, int count, unsigned value) {
  for (int i = threadIdx.x; i < count; i += blockDim.x) data[i] = value + i;
}

__global__ void compare(const unsigned* data, int count, unsigned value, unsigned* wrong) {
  for (int i = threadIdx.x; i < count; i += blockDim.x)
    if (data[i] != value + i) atomicAdd(wrong, 1u);
}

struct Piece {
  unsigned* data;
  int count;
  unsigned value;
  cudaEvent_t ready;
};

static std::mutex passing;
static std::vector<Piece> passed_on;
static std::atomic<int> refused{0};

static void work(int number, int rounds, cudaMemPool_t pool, unsigned* wrong) {
  cudaStream_t stream;
  REQUIRE(cudaStreamCreateWithFlags(&stream, number % 2 ? cudaStreamNonBlocking : 0));
  uint32_t state = 17u + number;
  std::vector<Piece> mine;
  const auto end = [&](Piece piece) {
    compare<<<1, 64, 0, stream>>>(piece.data, piece.count, piece.value, wrong);
    REQUIRE(cudaFreeAsync(piece.data, stream));
  };
  for (int round = 0; round < rounds; ++round) {
    Piece piece = {};
    piece.count = 64 + next_number(state) % 2000;
    piece.value = next_number(state);
    // Room for far more than is touched, so that memory runs short.
    const size_t bytes = size_t{1 + next_number(state) % 8} << 20;
    const cudaError_t error = cudaMallocFromPoolAsync(&piece.data, bytes, pool, stream);
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      ++refused;
      while (!mine.empty()) end(mine.back()), mine.pop_back();
      continue;
    }
    REQUIRE(error);
    fill<<<1, 64, 0, stream>>>(piece.data, piece.count, piece.value);
    REQUIRE(cudaEventCreateWithFlags(&piece.ready, cudaEventDisableTiming));
    if (next_number(state) % 4 == 0) {
      REQUIRE(cudaEventRecord(piece.ready, stream));
      std::lock_guard<std::mutex> lock(passing);
      passed_on.push_back(piece);
    } else {
      REQUIRE(cudaEventDestroy(piece.ready));
      mine.push_back(piece);
    }
    if (mine.size() > 4) {
      const size_t which = next_number(state) % mine.size();
      end(mine[which]);
      mine.erase(mine.begin() + which);
    }
    Piece other = {};
    {
      std::lock_guard<std::mutex> lock(passing);
      if (!passed_on.empty()) {
        other = passed_on.back();
        passed_on.pop_back();
      }
    }
    if (other.data) {
      REQUIRE(cudaStreamWaitEvent(stream, other.ready, 0));
      REQUIRE(cudaEventDestroy(other.ready));
      end(other);
    }
    if (round % 50 == 49) REQUIRE(cudaStreamSynchronize(stream));
  }
  while (!mine.empty()) end(mine.back()), mine.pop_back();
  REQUIRE(cudaStreamDestroy(stream));  // with work under way
}

int main(int argc, char** argv) {
  const int rounds = argument(argc, argv, 1, 200);
  unsigned *wrong = nullptr, total = 0;
  REQUIRE(cudaMalloc(&wrong, sizeof(unsigned)));
  REQUIRE(cudaMemset(wrong, 0, sizeof(unsigned)));
  cudaMemPool_t pool = nullptr;
  cudaMemPoolProps props = {};
  props.allocType = cudaMemAllocationTypePinned;
  props.location.type = cudaMemLocationTypeDevice;
  props.maxSize = size_t{96} << 20;
  REQUIRE(cudaMemPoolCreate(&pool, &props));
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(work, i, rounds, pool, wrong);
  for (std::thread& thread : threads) thread.join();
  REQUIRE(cudaDeviceSynchronize());
  for (Piece& piece : passed_on) {
    REQUIRE(cudaFreeAsync(piece.data, nullptr));
    REQUIRE(cudaEventDestroy(piece.ready));
  }
  REQUIRE(cudaMemcpy(&total, wrong, sizeof total, cudaMemcpyDeviceToHost));
  std::printf("# refused %d times\n", refused.load());
  std::printf("wrong %u\n", total);
  uint64_t left = 1;
  REQUIRE(cudaDeviceSynchronize());
  REQUIRE(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &left));
  const bool right = fact("all of it was freed", left == 0);
  REQUIRE(cudaMemPoolDestroy(pool));
  REQUIRE(cudaFree(wrong));
  return right && total == 0 ? 0 : 1;
}
