// SPDX-License-Identifier: Apache-2.0
// Stream-ordered allocation from exported function to driver call: slabs are mapped once, reuse
// costs nothing, and the order between streams is what the driver is told.
#include "tests/native/roundtrip/pools.h"

namespace sluice::test {
namespace {

class Pools : public PoolRoundTrip {
 protected:
  Pools() : PoolRoundTrip(CU_MEM_LOCATION_TYPE_DEVICE) {}
};

TEST_F(Pools, ReuseInOneStreamIsLocal) {
  const CUdeviceptr first = allocate(100000, a);
  EXPECT_EQ(recording().only("cuMemCreate").at<size_t>(1), kSlab);
  EXPECT_EQ(recording().only("cuMemMap").at<CUdeviceptr>(0), first);
  EXPECT_EQ(cuMemsetD8Async(first, 1, 100000, a), CUDA_SUCCESS);
  seen().clear();
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(cuMemFreeAsync(first, a), CUDA_SUCCESS);
    EXPECT_EQ(allocate(100000, a), first);
  }
  EXPECT_TRUE(seen().empty()) << "no command at all";
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 100352u) << "in units of 512";
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), kSlab);
  CUdeviceptr base = 0;
  size_t bytes = 0;
  EXPECT_EQ(cuMemGetAddressRange_v2(&base, &bytes, first + 7), CUDA_SUCCESS);
  EXPECT_EQ(base, first);
  CUmemoryPool of = nullptr;
  EXPECT_EQ(cuPointerGetAttribute(&of, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, first + 7),
            CUDA_SUCCESS);
  EXPECT_EQ(of, pool);
  EXPECT_EQ(cuPointerGetAttribute(&of, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, world().memory),
            CUDA_SUCCESS);
  EXPECT_EQ(of, nullptr);
  EXPECT_EQ(cuMemFreeAsync(first + 512, a), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFreeAsync(first, a), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeAsync(first, a), CUDA_ERROR_INVALID_VALUE) << "twice";
  EXPECT_EQ(cuMemFreeAsync(0, a), CUDA_SUCCESS);
}

TEST_F(Pools, AnEventPassesMemoryOn) {
  const CUdeviceptr at = allocate(kSlab, a);
  EXPECT_EQ(cuMemsetD8Async(at, 1, kSlab, a), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeAsync(at, a), CUDA_SUCCESS);
  CUevent event;
  ASSERT_EQ(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(event, a), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamWaitEvent(b, event, 0), CUDA_SUCCESS);
  seen().clear();
  EXPECT_EQ(allocate(kSlab, b), at);
  EXPECT_TRUE(seen().empty());
  EXPECT_EQ(cuMemFreeAsync(at, b), CUDA_SUCCESS);
  EXPECT_EQ(cuEventDestroy_v2(event), CUDA_SUCCESS);
}

TEST_F(Pools, WhatAStreamWaitsForIsNotDoneBeforeItComesThere) {
  // Used on `a`, freed on `b` which waits for it and has nothing else to do: not anybody's yet.
  const CUdeviceptr at = allocate(kSlab, a);
  EXPECT_EQ(cuStreamSynchronize(b), CUDA_SUCCESS);
  EXPECT_EQ(cuMemsetD8Async(at, 1, kSlab, a), CUDA_SUCCESS);
  CUevent event;
  ASSERT_EQ(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(event, a), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamWaitEvent(b, event, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeAsync(at, b), CUDA_SUCCESS);
  CUstream third;
  ASSERT_EQ(cuStreamCreate(&third, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  const CUdeviceptr other = allocate(kSlab, third);
  EXPECT_NE(other, at);
  EXPECT_EQ(cuMemFreeAsync(other, third), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamDestroy_v2(third), CUDA_SUCCESS);
  EXPECT_EQ(cuEventDestroy_v2(event), CUDA_SUCCESS);
}

TEST_F(Pools, AMarkPassesMemoryOn) {
  const CUdeviceptr at = allocate(kSlab, a);
  EXPECT_EQ(cuMemsetD8Async(at, 1, kSlab, a), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeAsync(at, a), CUDA_SUCCESS);
  seen().clear();
  const CUdeviceptr second = allocate(kSlab, b);
  EXPECT_NE(second, at);
  EXPECT_EQ(std::count(seen().begin(), seen().end(), wire::kMark), 1) << "to know it next time";
  EXPECT_EQ(allocate(kSlab, b), at);
  EXPECT_EQ(cuMemFreeAsync(at, b), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeAsync(second, b), CUDA_SUCCESS);
}

TEST_F(Pools, OutOfMemoryPutsAWaitIn) {
  size_t available = 0, total = 0;
  ASSERT_EQ(cuMemGetInfo_v2(&available, &total), CUDA_SUCCESS);
  const size_t all = available / kSlab * kSlab;
  const CUdeviceptr at = allocate(all, a);
  EXPECT_EQ(cuMemsetD8Async(at, 1, kSlab, a), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeAsync(at, a), CUDA_SUCCESS);
  recording().clear();
  CUdeviceptr p = 0;
  // The model's streams are always done, which must not be found out here.
  int off = 0;
  EXPECT_EQ(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, &off),
            CUDA_SUCCESS);
  EXPECT_EQ(cuMemAllocFromPoolAsync(&p, all, pool, b), CUDA_SUCCESS);
  EXPECT_EQ(p, at);
  const auto records = recording().calls_of("cuEventRecordWithFlags");
  const auto waits = recording().calls_of("cuStreamWaitEvent");
  ASSERT_EQ(records.size(), 1u);
  ASSERT_EQ(waits.size(), 1u);
  EXPECT_EQ(records[0]->at<CUstream>(1), driver_of(a));
  EXPECT_EQ(waits[0]->at<CUstream>(0), driver_of(b));
  EXPECT_EQ(waits[0]->at<CUevent>(1), records[0]->at<CUevent>(0));
  EXPECT_TRUE(recording().calls_of("cuCtxSynchronize").empty());
  EXPECT_EQ(cuMemAllocFromPoolAsync(&p, total + kSlab, pool, b), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuMemFreeAsync(at, b), CUDA_SUCCESS);
  // Plain allocation takes from what pools hold.
  EXPECT_EQ(cuMemAlloc_v2(&p, all), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree_v2(p), CUDA_SUCCESS);
}

TEST_F(Pools, TheDefaultStreamsOrderIsNotTakenForProgress) {
  CUstream blocking;
  ASSERT_EQ(cuStreamCreate(&blocking, 0), CUDA_SUCCESS);
  const CUdeviceptr at = allocate(kSlab, blocking);
  EXPECT_EQ(cuMemsetD8Async(at, 1, kSlab, nullptr), CUDA_SUCCESS);  // the legacy stream uses it
  EXPECT_EQ(cuMemFreeAsync(at, blocking), CUDA_SUCCESS);            // which orders the free
  EXPECT_EQ(cuStreamSynchronize(blocking), CUDA_SUCCESS);  // has nothing to do: returns at once
  const CUdeviceptr other = allocate(kSlab, b);
  EXPECT_NE(other, at);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeAsync(other, b), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamDestroy_v2(blocking), CUDA_SUCCESS);
}

TEST_F(Pools, PlainFreeAndTrim) {
  const CUdeviceptr at = allocate(3 * kSlab, a);
  recording().clear();
  EXPECT_EQ(cuMemFree_v2(at), CUDA_SUCCESS);
  EXPECT_TRUE(recording().calls_of("cuCtxSynchronize").empty()) << "CUDA does not wait here";
  EXPECT_EQ(cuMemPoolTrimTo(pool, 0), CUDA_SUCCESS);
  EXPECT_EQ(recording().only("cuMemUnmap").at<size_t>(1), 3 * kSlab);
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 0u);
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), 3 * kSlab);
}

TEST_F(Pools, ATrimLeavesWhatIsToBeKept) { trims_leave_what_is_to_be_kept(); }

TEST_F(Pools, ADevicesPoolCanBeReplaced) {
  CUmemoryPool standard = nullptr, current = nullptr;
  ASSERT_EQ(cuDeviceGetDefaultMemPool(&standard, 0), CUDA_SUCCESS);
  EXPECT_NE(standard, pool);
  ASSERT_EQ(cuDeviceSetMemPool(0, pool), CUDA_SUCCESS);
  EXPECT_EQ(cuDeviceSetMemPool(1, pool), CUDA_ERROR_INVALID_VALUE) << "another device's";
  ASSERT_EQ(cuDeviceGetMemPool(&current, 0), CUDA_SUCCESS);
  EXPECT_EQ(current, pool);
  CUdeviceptr p = 0;
  ASSERT_EQ(cuMemAllocAsync(&p, 1000, a), CUDA_SUCCESS);
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 1024u);
  EXPECT_EQ(cuMemPoolDestroy(pool), CUDA_SUCCESS);
  ASSERT_EQ(cuDeviceGetMemPool(&current, 0), CUDA_SUCCESS);
  EXPECT_EQ(current, standard);
  EXPECT_EQ(cuMemPoolTrimTo(pool, 0), CUDA_ERROR_INVALID_VALUE) << "its handle is gone";
  EXPECT_EQ(cuMemsetD8Async(p, 0, 1000, a), CUDA_SUCCESS) << "its memory is not";
  EXPECT_EQ(cuMemFreeAsync(p, a), CUDA_SUCCESS);
  pool = nullptr;
  EXPECT_EQ(cuMemPoolDestroy(standard), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Pools, ALimitIsWhole32MiBAsWithTheDriver) {
  const CUmemoryPool small = create(CU_MEM_LOCATION_TYPE_DEVICE, 0, 2048);
  CUdeviceptr first = 0, second = 0, more = 0;
  EXPECT_EQ(cuMemAllocFromPoolAsync(&first, 64, small, a), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAllocFromPoolAsync(&second, 15 * kSlab, small, a), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAllocFromPoolAsync(&more, kSlab, small, a), CUDA_ERROR_OUT_OF_MEMORY);
  for (const CUdeviceptr at : {first, second}) EXPECT_EQ(cuMemFreeAsync(at, a), CUDA_SUCCESS);
  EXPECT_EQ(cuMemPoolDestroy(small), CUDA_SUCCESS);
}

TEST_F(Pools, NothingIsGivenToWhoAsksForNothing) {
  CUdeviceptr p = 1;
  EXPECT_EQ(cuMemAllocAsync(&p, 0, a), CUDA_SUCCESS);
  EXPECT_EQ(p, 0u);
  EXPECT_EQ(cuMemFreeAsync(p, a), CUDA_SUCCESS);
  p = 1;
  EXPECT_EQ(cuMemAllocFromPoolAsync(&p, 0, pool, a), CUDA_SUCCESS);
  EXPECT_EQ(p, 0u);
  ASSERT_EQ(cuStreamBeginCapture_v2(a, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  p = 1;
  EXPECT_EQ(cuMemAllocAsync(&p, 0, a), CUDA_SUCCESS);
  EXPECT_EQ(p, 0u);
  EXPECT_EQ(cuMemFreeAsync(p, a), CUDA_SUCCESS);
  CUgraph graph = nullptr;
  ASSERT_EQ(cuStreamEndCapture(a, &graph), CUDA_SUCCESS);
  size_t nodes = 1;
  EXPECT_EQ(cuGraphGetNodes(graph, nullptr, &nodes), CUDA_SUCCESS);
  EXPECT_EQ(nodes, 0u) << "there is nothing to allocate or free";
  EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
}

TEST_F(Pools, WhatCudaRefuses) {
  CUmemPoolProps props{};
  CUmemoryPool made = nullptr;
  EXPECT_EQ(cuMemPoolCreate(&made, &props), CUDA_ERROR_INVALID_VALUE);
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location = {CU_MEM_LOCATION_TYPE_DEVICE, {2}};
  EXPECT_EQ(cuMemPoolCreate(&made, &props), CUDA_ERROR_INVALID_DEVICE);
  props.location.id = 0;
  props.handleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
  EXPECT_EQ(cuMemPoolCreate(&made, &props), CUDA_ERROR_NOT_SUPPORTED);
  CUdeviceptr p = 0;
  EXPECT_EQ(cuMemAllocAsync(nullptr, 0, a), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAllocAsync(nullptr, 8, a), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAllocFromPoolAsync(&p, 8, nullptr, a), CUDA_ERROR_INVALID_VALUE);
  for (uint64_t wrong : wrong_handles())
    EXPECT_EQ(cuMemAllocAsync(&p, 8, reinterpret_cast<CUstream>(wrong)), CUDA_ERROR_INVALID_HANDLE);
  cuuint64_t value = 5;
  EXPECT_EQ(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &value),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &value),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemPoolGetAttribute(pool, static_cast<CUmemPool_attribute>(99), &value),
            CUDA_ERROR_INVALID_VALUE);
  CUmemAccessDesc access{};
  access.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  EXPECT_EQ(cuMemPoolSetAccess(pool, &access, 1), CUDA_SUCCESS);
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  EXPECT_EQ(cuMemPoolSetAccess(pool, &access, 1), CUDA_ERROR_INVALID_VALUE);
  access.location.id = 1;
  EXPECT_EQ(cuMemPoolSetAccess(pool, &access, 1), CUDA_SUCCESS);
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
  EXPECT_EQ(cuMemPoolSetAccess(pool, &access, 1), CUDA_ERROR_INVALID_VALUE);
  CUmemAccess_flags flags{};
  EXPECT_EQ(cuMemPoolGetAccess(&flags, pool, &access.location), CUDA_SUCCESS);
  EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_NONE);
  EXPECT_TRUE(recording().calls.empty());
}

TEST_F(Pools, OpenedToAPeerTheyStayOpenWithoutPeerAccess) {
  CUmemoryPool pool = nullptr;
  ASSERT_EQ(cuDeviceGetDefaultMemPool(&pool, 0), CUDA_SUCCESS);
  CUmemAccessDesc access{};
  access.location = {CU_MEM_LOCATION_TYPE_DEVICE, {1}};
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  ASSERT_EQ(cuMemPoolSetAccess(pool, &access, 1), CUDA_SUCCESS);
  CUmemAccess_flags flags{};
  EXPECT_EQ(cuMemPoolGetAccess(&flags, pool, &access.location), CUDA_SUCCESS);
  EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  EXPECT_EQ(recording().calls_of("cuCtxEnablePeerAccess").size(), 1u);
  ASSERT_EQ(cuCtxSetCurrent(world().contexts[1]), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxEnablePeerAccess(world().contexts[0], 0), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxDisablePeerAccess(world().contexts[0]), CUDA_SUCCESS);
  EXPECT_TRUE(recording().calls_of("cuCtxDisablePeerAccess").empty());
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  ASSERT_EQ(cuMemPoolSetAccess(pool, &access, 1), CUDA_SUCCESS);
  EXPECT_EQ(cuMemPoolGetAccess(&flags, pool, &access.location), CUDA_SUCCESS);
  EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_NONE);
}

}  // namespace
}  // namespace sluice::test
