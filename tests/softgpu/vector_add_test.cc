// SPDX-License-Identifier: Apache-2.0
// The shortest whole program: allocate, copy, launch, copy back.
#include "gpu.h"

namespace sluice::softgpu_test {
namespace {

class VectorAdd : public GpuTest {};

TEST_F(VectorAdd, AddsTwoVectorsOverManyBlocksWithARaggedEnd) {
  constexpr uint32_t kCount = 100'003;
  std::vector<float> a(kCount), b(kCount);
  for (uint32_t i = 0; i < kCount; ++i) {
    a[i] = 0.5f * static_cast<float>(i);
    b[i] = 3.0f - static_cast<float>(i % 17);
  }
  Buffer<float> da(a), db(b), dc(kCount);
  CUmodule module = load(hand_written("vector_add"));
  CUfunction add = function(module, "vector_add");
  CHECK_CU(
      launch(add, (kCount + 255) / 256, 256, 0, nullptr, da.get(), db.get(), dc.get(), kCount));
  CHECK_CU(cuCtxSynchronize());
  std::vector<float> c = dc.read();
  for (uint32_t i = 0; i < kCount; ++i) ASSERT_EQ(a[i] + b[i], c[i]) << i;
}

}  // namespace
}  // namespace sluice::softgpu_test
