// SPDX-License-Identifier: Apache-2.0
// What tests of memory pools share, be they of a device or of the host: one pool, two streams, and
// what holds for either.
#pragma once

#include "tests/native/roundtrip/loopback_session.h"

namespace sluice::test {

class PoolRoundTrip : public RoundTrip {
 protected:
  explicit PoolRoundTrip(CUmemLocationType where) : where_(where) {}

  void SetUp() override {
    RoundTrip::SetUp();
    pool = create(where_);
    ASSERT_EQ(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    recording().clear();
    seen().clear();
  }
  void TearDown() override {
    EXPECT_EQ(cuStreamDestroy_v2(a), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamDestroy_v2(b), CUDA_SUCCESS);
    if (pool) {
      EXPECT_EQ(cuMemPoolDestroy(pool), CUDA_SUCCESS);
    }
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    RoundTrip::TearDown();
  }

  static CUmemPoolProps properties(CUmemLocationType type, int id = 0, size_t most = 0) {
    CUmemPoolProps props{};
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location = {type, {id}};
    props.maxSize = most;
    return props;
  }
  static CUmemoryPool create(CUmemLocationType type, int id = 0, size_t most = 0) {
    const CUmemPoolProps props = properties(type, id, most);
    CUmemoryPool made = nullptr;
    EXPECT_EQ(cuMemPoolCreate(&made, &props), CUDA_SUCCESS);
    return made;
  }
  // Of the test's pool, where no other is named.
  CUdeviceptr allocate(size_t bytes, CUstream stream, CUmemoryPool from = nullptr) {
    CUdeviceptr p = 0;
    EXPECT_EQ(cuMemAllocFromPoolAsync(&p, bytes, from ? from : pool, stream), CUDA_SUCCESS);
    return p;
  }
  uint64_t get(CUmemPool_attribute which, CUmemoryPool of = nullptr) {
    cuuint64_t value = 0;
    EXPECT_EQ(cuMemPoolGetAttribute(of ? of : pool, which, &value), CUDA_SUCCESS);
    return value;
  }
  // CUDA: "the pool will be guaranteed to have at least minBytesToKeep bytes reserved".
  void trims_leave_what_is_to_be_kept() {
    const CUdeviceptr at = allocate(3 * kSlab, a);
    EXPECT_EQ(cuMemFree_v2(at), CUDA_SUCCESS);
    for (const size_t keep : {4 * kSlab, 3 * kSlab, kSlab, size_t{1}}) {
      EXPECT_EQ(cuMemPoolTrimTo(pool, keep), CUDA_SUCCESS);
      EXPECT_EQ(get(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 3 * kSlab) << keep;
    }
    EXPECT_EQ(allocate(3 * kSlab, a), at);
    EXPECT_EQ(cuMemFree_v2(at), CUDA_SUCCESS);
    EXPECT_EQ(cuMemPoolTrimTo(pool, 0), CUDA_SUCCESS);
    EXPECT_EQ(get(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 0u);
  }

  CUmemoryPool pool = nullptr;
  CUstream a = nullptr, b = nullptr;

 private:
  const CUmemLocationType where_;
};

}  // namespace sluice::test
