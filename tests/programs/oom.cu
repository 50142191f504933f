// SPDX-License-Identifier: Apache-2.0
// Allocates until it is refused, checks the error, that the free memory went down to what was
// taken, that the device still works, and that freeing gives it back. With SLUICE_GMEM set, the
// slice's size is checked too. Arguments: MiB per allocation (0: an eighth of the total), most
// allocations.
#include <vector>

#include "check.h"

__global__ void mark(int* place) { *place = 4711; }

int main(int argc, char** argv) {
  size_t free_before = 0, total = 0;
  REQUIRE(cudaFree(nullptr));
  REQUIRE(cudaMemGetInfo(&free_before, &total));
  const size_t step_mib = argument(argc, argv, 1, 0);
  const size_t step = step_mib > 0 ? step_mib << 20 : total / 8 >> 21 << 21;
  const size_t most = argument(argc, argv, 2, 100000);
  std::printf("# total %zu MiB, free %zu MiB, in steps of %zu MiB\n", total >> 20,
              free_before >> 20, step >> 20);

  bool right = true;
  void* absurd = nullptr;
  right &= fact("more than any device has is refused at once",
                cudaMalloc(&absurd, size_t{1} << 50) == cudaErrorMemoryAllocation);
  right &= fact("and is the last error, once", cudaGetLastError() == cudaErrorMemoryAllocation &&
                                                   cudaGetLastError() == cudaSuccess);

  std::vector<void*> blocks;
  cudaError_t error = cudaSuccess;
  while (blocks.size() < most) {
    void* block = nullptr;
    error = cudaMalloc(&block, step);
    if (error != cudaSuccess) break;
    blocks.push_back(block);
  }
  std::printf("# %zu allocations\n", blocks.size());
  std::printf("refused with %s: %s\n", cudaGetErrorName(error), cudaGetErrorString(error));
  right &= error == cudaErrorMemoryAllocation;
  right &= fact("last error is the same", cudaGetLastError() == cudaErrorMemoryAllocation);
  right &= fact("and is not sticky",
                cudaGetLastError() == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess);
  right &= fact("something could be allocated", !blocks.empty());
  size_t free_full = 0;
  REQUIRE(cudaMemGetInfo(&free_full, &total));
  right &= fact("less than a step is free", free_full < step);
  right &= fact("free memory went down by what was taken",
                free_before - free_full >= blocks.size() * step);
  if (const char* limit = std::getenv("SLUICE_GMEM")) {
    const size_t slice = std::strtoull(limit, nullptr, 10) << 20;
    right &= fact("# total is the slice of SLUICE_GMEM", total == slice);
    right &= fact("# no more than the slice was given", blocks.size() * step <= slice);
  }

  if (!blocks.empty()) {
    REQUIRE(cudaFree(blocks.back()));
    blocks.pop_back();
  }
  int* place = nullptr;
  int value = 0;
  REQUIRE(cudaMalloc(&place, sizeof(int)));
  mark<<<1, 1>>>(place);
  REQUIRE(cudaMemcpy(&value, place, sizeof(int), cudaMemcpyDeviceToHost));
  right &= fact("a kernel runs after one block was freed", value == 4711);
  REQUIRE(cudaFree(place));
  for (void* block : blocks) REQUIRE(cudaFree(block));
  size_t free_after = 0;
  REQUIRE(cudaMemGetInfo(&free_after, &total));
  std::printf("# free at the end %zu MiB\n", free_after >> 20);
  // The first kernel may have taken memory for itself.
  right &= fact("freeing gave it back", free_after + (size_t{64} << 20) >= free_before);
  return right ? 0 : 1;
}
