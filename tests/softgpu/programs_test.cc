// SPDX-License-Identifier: Apache-2.0
// Whole kernels compiled by nvcc: memory, control flow, calls, warps and blocks.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "compiled.h"

namespace sluice::softgpu_test {
namespace {

class Programs : public Compiled {};
INSTANTIATE_TEST_SUITE_P(Architectures, Programs, ::testing::Values(75, 80, 90),
                         [](const auto& info) { return "compute_" + std::to_string(info.param); });

std::vector<int> numbers(size_t count, int start = 0) {
  std::vector<int> values(count);
  std::iota(values.begin(), values.end(), start);
  return values;
}

TEST_P(Programs, MatrixProductInSharedMemoryEqualsTheHostsBitForBit) {
  constexpr int kSize = 67;
  std::vector<float> a(kSize * kSize), b(kSize * kSize);
  for (size_t i = 0; i < a.size(); ++i) {
    a[i] = static_cast<float>(i % 13) * 0.37f - 1.0f;
    b[i] = static_cast<float>(i % 7) * 0.11f + 0.5f;
  }
  Buffer<float> da(a), db(b), dc(a.size());
  CUdeviceptr pa = da.get(), pb = db.get(), pc = dc.get();
  int n = kSize;
  void* params[] = {&pa, &pb, &pc, &n};
  unsigned grid = (kSize + 15) / 16;
  CHECK_CU(cuLaunchKernel(kernel("matmul"), grid, grid, 1, 16, 16, 1, 0, nullptr, params, nullptr));
  CHECK_CU(cuCtxSynchronize());
  std::vector<float> c = dc.read();
  for (int row = 0; row < kSize; ++row) {
    for (int column = 0; column < kSize; ++column) {
      float sum = 0;
      for (int i = 0; i < kSize; ++i) {
        sum = std::fma(a[static_cast<size_t>(row * kSize + i)],
                       b[static_cast<size_t>(i * kSize + column)], sum);
      }
      ASSERT_EQ(sum, c[static_cast<size_t>(row * kSize + column)]) << row << "," << column;
    }
  }
}

TEST_P(Programs, ReductionWithShufflesAndAtomics) {
  std::vector<int> in = numbers(10'000, -3'000);
  Buffer<int> data(in), total(1);
  CHECK_CU(launch(kernel("reduce"), 7, 256, 0, nullptr, data.get(), total.get(), 10'000));
  CHECK_CU(cuCtxSynchronize());
  EXPECT_EQ(std::accumulate(in.begin(), in.end(), 0), total.read()[0]);
}

TEST_P(Programs, DivergedLanesComeTogetherAgain) {
  std::vector<unsigned> in(64);
  for (unsigned i = 0; i < 64; ++i) in[i] = i * i + 1;
  Buffer<unsigned> data(in), steps(64), agreed(64);
  CHECK_CU(launch(kernel("collatz"), 1, 64, 0, nullptr, data.get(), steps.get(), agreed.get()));
  CHECK_CU(cuCtxSynchronize());
  std::vector<unsigned> got = steps.read(), mask = agreed.read();
  for (unsigned i = 0; i < 64; ++i) {
    unsigned count = 0;
    for (unsigned n = in[i]; n != 1; ++count) n = n & 1 ? 3 * n + 1 : n / 2;
    EXPECT_EQ(count, got[i]) << i;
    EXPECT_EQ(~0u, mask[i]) << i;
  }
}

TEST_P(Programs, VotesAndShufflesSeeExactlyTheMembers) {
  std::vector<int> in = numbers(32);
  Buffer<int> data(in);
  Buffer<unsigned> out(32 * 6);
  CHECK_CU(launch(kernel("votes"), 1, 32, 0, nullptr, data.get(), out.get()));
  CHECK_CU(cuCtxSynchronize());
  std::vector<unsigned> got = out.read();
  for (unsigned lane = 0; lane < 32; ++lane) {
    const unsigned* o = &got[lane * 6];
    EXPECT_EQ(0xfffff800u, o[0]);
    EXPECT_EQ(1u, o[1]);
    EXPECT_EQ(1u, o[2]);
    EXPECT_EQ(32u, o[3]);
    EXPECT_EQ(lane < 16 ? 0xaaaau : 0x55550000u, o[4]) << lane;
    EXPECT_EQ((lane + 5) & 31, o[5]);
  }
}

TEST_P(Programs, LanesThatComeLateAreWaitedForAtWarpBarriers) {
  Buffer<int> out(32);
  CHECK_CU(launch(kernel("late_meeting"), 1, 32, 0, nullptr, out.get()));
  CHECK_CU(cuCtxSynchronize());
  std::vector<int> got = out.read();
  auto value = [](int lane) { return lane % 2 ? lane + lane * (lane - 1) / 2 : lane * 3; };
  for (int lane = 0; lane < 32; ++lane) {
    EXPECT_EQ(value(lane ^ 1), got[static_cast<size_t>(lane)]) << lane;
  }
}

TEST_P(Programs, LanesOfOneWarpCanWaitForEachOthersLocks) {
  for (const char* name : {"spin_lock", "spin_lock_outside"}) {
    Buffer<int> lock(1), count(1);
    CHECK_CU(launch(kernel(name), 4, 64, 0, nullptr, lock.get(), count.get()));
    CHECK_CU(cuCtxSynchronize());
    EXPECT_EQ(256, count.read()[0]) << name;
  }
}

TEST_P(Programs, RecursionAndCallsThroughPointers) {
  Buffer<int> out(48);
  CHECK_CU(launch(kernel("calls"), 1, 48, 0, nullptr, out.get()));
  CHECK_CU(cuCtxSynchronize());
  constexpr int kFibonacci[] = {0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89};
  std::vector<int> got = out.read();
  for (size_t i = 0; i < 48; ++i) EXPECT_EQ(kFibonacci[i % 12], got[i]) << i;
  CHECK_CU(launch(kernel("indirect_calls"), 1, 48, 0, nullptr, out.get()));
  CHECK_CU(cuCtxSynchronize());
  got = out.read();
  for (int i = 0; i < 48; ++i) {
    EXPECT_EQ(i % 3 == 0 ? 2 * i : i % 3 == 1 ? -i : i * i, got[static_cast<size_t>(i)]) << i;
  }
}

TEST_P(Programs, GlobalsHaveTheirInitialValuesAndAddresses) {
  Buffer<int> out(32);
  CHECK_CU(launch(kernel("globals"), 1, 32, 0, nullptr, out.get()));
  CHECK_CU(cuCtxSynchronize());
  std::vector<int> got = out.read();
  for (size_t i = 0; i < 32; ++i) EXPECT_EQ(30 + static_cast<int>(3 + 2 * (i & 3)), got[i]);
  CUdeviceptr address = 0;
  size_t bytes = 0;
  CHECK_CU(cuModuleGetGlobal_v2(&address, &bytes, module_, "counter"));
  EXPECT_EQ(4u, bytes);
  int value = 0;
  CHECK_CU(cuMemcpyDtoH_v2(&value, address, 4));
  EXPECT_EQ(3 + 64, value);
  EXPECT_EQ(CUDA_ERROR_NOT_FOUND, cuModuleGetGlobal_v2(&address, &bytes, module_, "nothing"));
}

TEST_P(Programs, StructuresPassByValueAndTheirLayoutIsKnown) {
  struct Shape {
    char tag;
    double size;
    int corner[5];
  } shape{'A', 2.5, {1, 2, 3, 4, 5}};
  Buffer<double> out(32);
  CUfunction by_value = kernel("by_value");
  CHECK_CU(launch(by_value, 1, 32, 0, nullptr, shape, out.get()));
  CHECK_CU(cuCtxSynchronize());
  std::vector<double> got = out.read();
  for (size_t i = 0; i < 32; ++i) EXPECT_EQ(2.5 + shape.corner[i % 5] + 'A', got[i]);
  size_t offset = 0, size = 0;
  CHECK_CU(cuFuncGetParamInfo(by_value, 0, &offset, &size));
  EXPECT_EQ(0u, offset);
  EXPECT_EQ(sizeof(Shape), size);
  CHECK_CU(cuFuncGetParamInfo(by_value, 1, &offset, &size));
  EXPECT_EQ(sizeof(Shape), offset);
  EXPECT_EQ(8u, size);
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuFuncGetParamInfo(by_value, 2, &offset, &size));
}

TEST_P(Programs, LocalArraysBelongToOneThread) {
  Buffer<int> out(96);
  CHECK_CU(launch(kernel("local_array"), 1, 96, 0, nullptr, out.get()));
  CHECK_CU(cuCtxSynchronize());
  std::vector<int> got = out.read();
  for (int t = 0; t < 96; ++t) {
    int sum = 0;
    for (int i = 0; i < 20; ++i) sum += (i * 7 + t) % 20 * t;
    EXPECT_EQ(sum, got[static_cast<size_t>(t)]);
  }
}

TEST_P(Programs, DynamicSharedMemoryFollowsTheStaticPart) {
  Buffer<int> out(128);
  CHECK_CU(launch(kernel("dynamic_shared"), 1, 128, 1000 * 4, nullptr, out.get(), 1000));
  CHECK_CU(cuCtxSynchronize());
  std::vector<int> got = out.read();
  for (int t = 0; t < 128; ++t) EXPECT_EQ(1099 - t, got[static_cast<size_t>(t)]);
}

TEST_P(Programs, AtomicsOfAllBlocksAddUp) {
  Buffer<int> ints(8);
  Buffer<unsigned> wraps(2);
  Buffer<float> real(1);
  Buffer<double> wide(1);
  Buffer<uint64_t> big(1);
  CHECK_CU(launch(kernel("atomics"), 10, 100, 0, nullptr, ints.get(), wraps.get(), real.get(),
                  wide.get(), big.get()));
  CHECK_CU(cuCtxSynchronize());
  std::vector<int> got = ints.read();
  int exclusive = 0;
  for (int i = 0; i < 1000; ++i) exclusive ^= i;
  EXPECT_EQ(std::vector<int>({499500, -999, 999, -1, exclusive, -1000, 0, 0}), got);
  EXPECT_EQ(std::vector<unsigned>({0, 0}), wraps.read());
  EXPECT_EQ(500.0f, real.read()[0]);
  EXPECT_EQ(250.0, wide.read()[0]);
  EXPECT_EQ(1000ull << 33, big.read()[0]);
}

TEST_P(Programs, BarriersReduceAndDoNotWaitForExitedThreads) {
  Buffer<int> out(96);
  CHECK_CU(launch(kernel("barrier_counts"), 1, 96, 0, nullptr, out.get()));
  CHECK_CU(cuCtxSynchronize());
  for (int v : out.read()) EXPECT_EQ(4810, v);
  CHECK_CU(cuMemsetD8_v2(out.get(), 0, 96 * 4));
  CHECK_CU(launch(kernel("early_exit"), 1, 96, 0, nullptr, out.get()));
  CHECK_CU(cuCtxSynchronize());
  std::vector<int> got = out.read();
  for (size_t i = 0; i < 96; ++i) EXPECT_EQ(i % 3 ? 64 : 0, got[i]);
}

TEST_P(Programs, BranchTables) {
  Buffer<int> out(64);
  CHECK_CU(launch(kernel("switch_case"), 1, 64, 0, nullptr, out.get()));
  CHECK_CU(cuCtxSynchronize());
  std::vector<int> got = out.read();
  for (int t = 0; t < 64; ++t) {
    const int wanted[] = {t + 1, t * 3, t - 7, t ^ 0x55, t * t, t << 2, ~t, t | 64, 0};
    EXPECT_EQ(wanted[t % 9], got[static_cast<size_t>(t)]) << t;
  }
}

TEST_P(Programs, MallocInAKernelComesFromTheDeviceAndGoesBack) {
  size_t before = 0, after = 0, total = 0;
  Buffer<int> out(40);
  CHECK_CU(cuMemGetInfo_v2(&before, &total));
  CHECK_CU(launch(kernel("device_malloc"), 1, 40, 0, nullptr, out.get()));
  CHECK_CU(cuCtxSynchronize());
  CHECK_CU(cuMemGetInfo_v2(&after, &total));
  EXPECT_EQ(before, after);
  std::vector<int> got = out.read();
  for (int t = 0; t < 40; ++t) EXPECT_EQ(2016 + 64 * t, got[static_cast<size_t>(t)]);
}

TEST_P(Programs, PrintfWritesItsLinesAtSynchronisation) {
  ::testing::internal::CaptureStdout();
  CHECK_CU(launch(kernel("greet"), 1, 32, 0, nullptr, 2));
  CHECK_CU(cuCtxSynchronize());
  EXPECT_EQ(
      "lane 0 of block: 0.00     0 1099511627776 x%\n"
      "lane 1 of block: 0.50     0 1099511627776 x%\n",
      ::testing::internal::GetCapturedStdout());
}

}  // namespace
}  // namespace sluice::softgpu_test
