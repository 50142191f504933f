// SPDX-License-Identifier: Apache-2.0
// Pools of pinned host memory: allocations are pinned memory in the order of streams, of the arena
// and beyond it; what pointers to them are; and what CUDA refuses.
#include <thread>

#include "client/core/host_memory.h"
#include "tests/native/roundtrip/pools.h"

namespace sluice::test {
namespace {

class HostPools : public PoolRoundTrip {
 protected:
  HostPools() : PoolRoundTrip(CU_MEM_LOCATION_TYPE_HOST) {}

  // Work of the stream's that reads it.
  void use(CUdeviceptr at, CUstream stream) {
    EXPECT_EQ(cuMemcpyHtoDAsync_v2(world().memory, bytes_at(at), 64, stream), CUDA_SUCCESS);
  }
  template <class T>
  static T attribute(CUpointer_attribute which, CUdeviceptr at) {
    T value{};
    EXPECT_EQ(cuPointerGetAttribute(&value, which, at), CUDA_SUCCESS) << which;
    return value;
  }
  static std::byte* bytes_at(CUdeviceptr at) { return reinterpret_cast<std::byte*>(at); }
  static bool in_arena(CUdeviceptr at) {
    return client::Session::get()->host_memory().in_arena(bytes_at(at), 1);
  }
};

TEST_F(HostPools, WhatTheyGiveIsPinnedMemory) {
  const CUdeviceptr at = allocate(100000, a);
  EXPECT_TRUE(in_arena(at));
  std::memset(bytes_at(at), 7, 100000);
  EXPECT_EQ(attribute<unsigned>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at + 9), CU_MEMORYTYPE_HOST);
  EXPECT_EQ(attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, at + 9), at + 9);
  EXPECT_EQ(attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_HOST_POINTER, at + 9), at + 9);
  EXPECT_EQ(attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at + 9), at);
  EXPECT_EQ(attribute<size_t>(CU_POINTER_ATTRIBUTE_RANGE_SIZE, at + 9), 100000u);
  EXPECT_EQ(attribute<CUmemoryPool>(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, at + 9), pool);
  EXPECT_EQ(attribute<unsigned>(CU_POINTER_ATTRIBUTE_IS_MANAGED, at), 0u);
  void* plain = nullptr;
  ASSERT_EQ(cuMemHostAlloc(&plain, 64, 0), CUDA_SUCCESS);
  EXPECT_EQ(attribute<CUmemoryPool>(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
                                    reinterpret_cast<CUdeviceptr>(plain)),
            nullptr);
  EXPECT_EQ(cuMemFreeHost(plain), CUDA_SUCCESS);
  CUdeviceptr base = 0;
  size_t bytes = 0;
  EXPECT_EQ(cuMemGetAddressRange_v2(&base, &bytes, at + 9), CUDA_SUCCESS);
  EXPECT_EQ(base, at);
  EXPECT_EQ(bytes, 100000u);
  recording().clear();
  EXPECT_EQ(cuMemcpyHtoDAsync_v2(world().memory, bytes_at(at), 100000, a), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(a), CUDA_SUCCESS);
  EXPECT_EQ(recording().only("cuMemcpyHtoDAsync_v2").at<const void*>(1), bytes_at(at))
      << "read where it lies";
  EXPECT_EQ(cuMemFreeAsync(at, a), CUDA_SUCCESS);
  CUmemoryPool of = nullptr;
  EXPECT_EQ(cuPointerGetAttribute(&of, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, at),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(HostPools, ReuseInOneStreamIsLocal) {
  const CUdeviceptr first = allocate(100000, a);
  use(first, a);
  seen().clear();
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(cuMemFreeAsync(first, a), CUDA_SUCCESS);
    EXPECT_EQ(allocate(100000, a), first);
  }
  EXPECT_TRUE(seen().empty()) << "no command at all";
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 100352u) << "in units of 512";
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), kSlab);
  EXPECT_EQ(cuMemFreeAsync(first, a), CUDA_SUCCESS);
}

// Freed memory is another stream's, and the system's, once its own stream is known to have come
// past the free, and not before.
TEST_F(HostPools, AFreeIsInTheStreamsOrder) {
  const CUdeviceptr at = allocate(kSlab, a);
  use(at, a);
  std::memset(bytes_at(at), 3, kSlab);
  EXPECT_EQ(cuMemFreeAsync(at, a), CUDA_SUCCESS);
  bytes_at(at)[0] = std::byte{4};  // mapped as before
  const CUdeviceptr other = allocate(kSlab, b);
  EXPECT_NE(other, at);
  EXPECT_EQ(cuMemPoolTrimTo(pool, 0), CUDA_SUCCESS);
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 2 * kSlab) << "the stream may be using it";
  cuuint64_t keep = 8 * kSlab;
  EXPECT_EQ(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(a), CUDA_SUCCESS);
  EXPECT_EQ(allocate(kSlab, b), at);
  EXPECT_EQ(cuMemFreeAsync(at, b), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeAsync(other, b), CUDA_SUCCESS);
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 2 * kSlab);
  EXPECT_EQ(cuMemPoolTrimTo(pool, kSlab), CUDA_SUCCESS);
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), kSlab);
  EXPECT_EQ(cuMemPoolTrimTo(pool, 0), CUDA_SUCCESS);
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 0u);
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_USED_MEM_HIGH), 2 * kSlab);
}

TEST_F(HostPools, ATrimLeavesWhatIsToBeKept) { trims_leave_what_is_to_be_kept(); }

TEST_F(HostPools, AnEventPassesMemoryOn) {
  const CUdeviceptr at = allocate(kSlab, a);
  use(at, a);
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

TEST_F(HostPools, StreamsOfSeveralDevicesShareOne) {
  CUstream far;
  ASSERT_EQ(cuCtxSetCurrent(world().contexts[1]), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamCreate(&far, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  const CUdeviceptr at = allocate(kSlab, far);
  EXPECT_EQ(attribute<int>(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at), 1);
  EXPECT_EQ(cuMemsetD8Async(at, 1, 64, far), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeAsync(at, far), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetCurrent(world().contexts[0]), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS) << "of the other device";
  const CUdeviceptr near = allocate(kSlab, a);
  EXPECT_NE(near, at);
  ASSERT_EQ(cuCtxSetCurrent(world().contexts[1]), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamDestroy_v2(far), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetCurrent(world().contexts[0]), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 2 * kSlab)
      << "the stream is gone, its work may go on";
  ASSERT_EQ(cuCtxSetCurrent(world().contexts[1]), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetCurrent(world().contexts[0]), CUDA_SUCCESS);
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), kSlab);
  EXPECT_EQ(cuMemFreeAsync(near, a), CUDA_SUCCESS);
}

TEST_F(HostPools, TheLimitIsKeptByAWait) {
  const CUmemoryPool small = create(CU_MEM_LOCATION_TYPE_HOST_NUMA, 0, 2 * kSlab);
  const CUdeviceptr at = allocate(client::kPoolGrain, a, small);
  CUdeviceptr p = 0;
  EXPECT_EQ(cuMemAllocFromPoolAsync(&p, 512, small, a), CUDA_ERROR_OUT_OF_MEMORY);
  use(at, a);
  EXPECT_EQ(cuMemFreeAsync(at, a), CUDA_SUCCESS);
  recording().clear();
  EXPECT_EQ(allocate(client::kPoolGrain, b, small), at);
  EXPECT_EQ(recording().calls_of("cuStreamWaitEvent").size(), 1u) << "put in between";
  EXPECT_EQ(cuMemFreeAsync(at, b), CUDA_SUCCESS);
  EXPECT_EQ(cuMemPoolDestroy(small), CUDA_SUCCESS);
}

TEST_F(HostPools, BeyondTheArenaItIsOrdinaryMemory) {
  std::vector<CUdeviceptr> all;
  while (all.empty() || in_arena(all.back())) {
    ASSERT_LT(all.size(), 4096u);
    all.push_back(allocate(4 * kSlab, a));
  }
  const CUdeviceptr at = all.back();
  const CUdeviceptr part = allocate(1000, a);
  std::memset(bytes_at(at), 5, 4 * kSlab);
  EXPECT_EQ(attribute<unsigned>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at), CU_MEMORYTYPE_HOST);
  EXPECT_EQ(attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, at), at);
  auto& host = client::Session::get()->host_memory();
  EXPECT_TRUE(host.is_unmapped(at, 4 * kSlab));
  EXPECT_FALSE(host.is_unmapped(at, 4 * kSlab + 1));
  EXPECT_EQ(cuMemcpyAsync(world().memory, at, 4096, a), CUDA_SUCCESS) << "by unified addressing";
  EXPECT_EQ(cuMemsetD8Async(at, 9, 4096, a), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(a), CUDA_SUCCESS);
  EXPECT_EQ(bytes_at(at)[4095], std::byte{9});
  EXPECT_EQ(bytes_at(at)[4096], std::byte{5});
  EXPECT_EQ(cuMemFreeAsync(part, a), CUDA_SUCCESS);
  for (const CUdeviceptr each : all) EXPECT_EQ(cuMemFreeAsync(each, a), CUDA_SUCCESS);
  EXPECT_FALSE(host.is_unmapped(at, 1)) << "CUDA does not know it any more";
  EXPECT_EQ(cuStreamSynchronize(a), CUDA_SUCCESS);
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 0u);
  void* pinned = nullptr;
  ASSERT_EQ(cuMemHostAlloc(&pinned, 4 * kSlab, 0), CUDA_SUCCESS);
  EXPECT_TRUE(in_arena(reinterpret_cast<CUdeviceptr>(pinned))) << "which has come back";
  EXPECT_EQ(cuMemFreeHost(pinned), CUDA_SUCCESS);
}

TEST_F(HostPools, AFreeIsOfOneWholeAllocationAndOnce) {
  const CUdeviceptr at = allocate(4096, a);
  EXPECT_EQ(cuMemFreeAsync(at + 512, a), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFreeHost(bytes_at(at)), CUDA_ERROR_INVALID_VALUE) << "not of cuMemHostAlloc";
  EXPECT_EQ(cuMemFreeAsync(at, a), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeAsync(at, a), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFree_v2(at), CUDA_ERROR_INVALID_VALUE);
  const CUdeviceptr again = allocate(4096, a);
  recording().clear();
  EXPECT_EQ(cuMemFree_v2(again), CUDA_SUCCESS);
  EXPECT_TRUE(recording().calls_of("cuCtxSynchronize").empty()) << "CUDA does not wait here";
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0u);
  void* pinned = nullptr;
  ASSERT_EQ(cuMemHostAlloc(&pinned, 64, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeAsync(reinterpret_cast<CUdeviceptr>(pinned), a), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFreeHost(pinned), CUDA_SUCCESS);
}

TEST_F(HostPools, ADestroyedPoolsMemoryStaysUntilItIsFreed) {
  const CUdeviceptr at = allocate(kSlab, a), other = allocate(kSlab, a);
  use(at, a);
  EXPECT_EQ(cuMemFreeAsync(other, a), CUDA_SUCCESS);
  EXPECT_EQ(cuMemPoolDestroy(pool), CUDA_SUCCESS);
  EXPECT_EQ(cuMemPoolDestroy(pool), CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr p = 0;
  EXPECT_EQ(cuMemAllocFromPoolAsync(&p, 64, pool, a), CUDA_ERROR_INVALID_VALUE);
  std::memset(bytes_at(at), 1, kSlab);
  EXPECT_EQ(attribute<unsigned>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at), CU_MEMORYTYPE_HOST);
  EXPECT_EQ(attribute<CUmemoryPool>(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, at), nullptr);
  EXPECT_EQ(cuMemFreeAsync(at, a), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeAsync(at, a), CUDA_ERROR_INVALID_VALUE);
  pool = nullptr;
}

TEST_F(HostPools, APlaceHasAStandardPoolAndACurrentOne) {
  CUmemLocation host{CU_MEM_LOCATION_TYPE_HOST, {5}}, node{CU_MEM_LOCATION_TYPE_HOST_NUMA, {0}};
  constexpr auto kPinned = CU_MEM_ALLOCATION_TYPE_PINNED;
  CUmemoryPool standard = nullptr, of_node = nullptr, now = nullptr;
  ASSERT_EQ(cuMemGetDefaultMemPool(&standard, &host, kPinned), CUDA_SUCCESS);
  ASSERT_EQ(cuMemGetDefaultMemPool(&of_node, &node, kPinned), CUDA_SUCCESS);
  EXPECT_NE(standard, of_node);
  EXPECT_NE(standard, pool);
  host.id = 0;  // which is not looked at
  ASSERT_EQ(cuMemGetMemPool(&now, &host, kPinned), CUDA_SUCCESS);
  EXPECT_EQ(now, standard);
  const CUdeviceptr at = allocate(64, a, standard);
  EXPECT_EQ(attribute<CUmemoryPool>(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, at), standard);
  EXPECT_EQ(cuMemFreeAsync(at, a), CUDA_SUCCESS);
  EXPECT_EQ(cuMemSetMemPool(&host, kPinned, pool), CUDA_SUCCESS);
  EXPECT_EQ(cuMemSetMemPool(&node, kPinned, pool), CUDA_ERROR_INVALID_VALUE) << "another place's";
  EXPECT_EQ(cuDeviceSetMemPool(0, pool), CUDA_ERROR_INVALID_VALUE);
  CUmemoryPool of_device = nullptr;
  ASSERT_EQ(cuDeviceGetDefaultMemPool(&of_device, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemSetMemPool(&host, kPinned, of_device), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuMemGetMemPool(&now, &host, kPinned), CUDA_SUCCESS);
  EXPECT_EQ(now, pool);
  EXPECT_EQ(cuMemPoolDestroy(pool), CUDA_SUCCESS);
  pool = nullptr;
  ASSERT_EQ(cuMemGetMemPool(&now, &host, kPinned), CUDA_SUCCESS);
  EXPECT_EQ(now, standard);
  for (const CUmemoryPool one : {standard, of_node})
    EXPECT_EQ(cuMemPoolDestroy(one), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(HostPools, AccessIsTheHostsAndWhoeverItIsOpenedTo) {
  CUmemLocation host{CU_MEM_LOCATION_TYPE_HOST, {0}}, device{CU_MEM_LOCATION_TYPE_DEVICE, {1}};
  CUmemAccess_flags flags{};
  ASSERT_EQ(cuMemPoolGetAccess(&flags, pool, &host), CUDA_SUCCESS);
  EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  ASSERT_EQ(cuMemPoolGetAccess(&flags, pool, &device), CUDA_SUCCESS);
  EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_NONE);
  const auto set = [&](const CUmemLocation& location, CUmemAccess_flags to) {
    const CUmemAccessDesc access{location, to};
    return cuMemPoolSetAccess(pool, &access, 1);
  };
  EXPECT_EQ(set(device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE), CUDA_SUCCESS);
  ASSERT_EQ(cuMemPoolGetAccess(&flags, pool, &device), CUDA_SUCCESS);
  EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  EXPECT_EQ(set(device, CU_MEM_ACCESS_FLAGS_PROT_READ), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(set(device, CU_MEM_ACCESS_FLAGS_PROT_NONE), CUDA_SUCCESS);
  EXPECT_EQ(set(host, CU_MEM_ACCESS_FLAGS_PROT_READWRITE), CUDA_SUCCESS);
  EXPECT_EQ(set(host, CU_MEM_ACCESS_FLAGS_PROT_NONE), CUDA_ERROR_INVALID_VALUE);
  device.id = 2;
  EXPECT_EQ(set(device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_TRUE(recording().calls.empty()) << "nothing of this concerns the node";
}

TEST_F(HostPools, WhatCudaRefuses) {
  CUmemoryPool made = nullptr;
  CUmemPoolProps props = properties(CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT);
  EXPECT_EQ(cuMemPoolCreate(&made, &props), CUDA_ERROR_INVALID_VALUE);
  for (const int node : {-1, 1 << 20}) {
    props = properties(CU_MEM_LOCATION_TYPE_HOST_NUMA, node);
    EXPECT_EQ(cuMemPoolCreate(&made, &props), CUDA_ERROR_INVALID_VALUE) << node;
    EXPECT_EQ(cuMemGetDefaultMemPool(&made, &props.location, props.allocType),
              CUDA_ERROR_INVALID_VALUE);
  }
  props = properties(CU_MEM_LOCATION_TYPE_HOST);
  props.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  EXPECT_EQ(cuMemPoolCreate(&made, &props), CUDA_ERROR_INVALID_VALUE) << "is never shared";
  props.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
  EXPECT_EQ(cuMemPoolCreate(&made, &props), CUDA_ERROR_NOT_SUPPORTED);
  props = properties(CU_MEM_LOCATION_TYPE_HOST);
  props.allocType = CU_MEM_ALLOCATION_TYPE_MANAGED;
  EXPECT_EQ(cuMemPoolCreate(&made, &props), CUDA_ERROR_NOT_SUPPORTED);
  CUmemLocation current{CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, {0}};
  EXPECT_EQ(cuMemGetMemPool(&made, &current, CU_MEM_ALLOCATION_TYPE_PINNED),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemGetDefaultMemPool(nullptr, &props.location, CU_MEM_ALLOCATION_TYPE_PINNED),
            CUDA_ERROR_INVALID_VALUE);
  int fd = -1;
  EXPECT_EQ(
      cuMemPoolExportToShareableHandle(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
      CUDA_ERROR_INVALID_VALUE);
  const CUdeviceptr at = allocate(64, a);
  CUmemPoolPtrExportData data;
  EXPECT_EQ(cuMemPoolExportPointer(&data, at), CUDA_ERROR_INVALID_VALUE);
  CUipcMemHandle handle;
  EXPECT_EQ(cuIpcGetMemHandle(&handle, at), CUDA_ERROR_INVALID_VALUE);
  unsigned flags = 0;
  EXPECT_EQ(cuMemHostGetFlags(&flags, bytes_at(at)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAllocFromPoolAsync(nullptr, 64, pool, a), CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr p = 1;
  EXPECT_EQ(cuMemAllocFromPoolAsync(&p, 0, pool, a), CUDA_SUCCESS);
  EXPECT_EQ(p, 0u);
  EXPECT_EQ(cuMemAllocFromPoolAsync(&p, ~size_t{0} / 4, pool, a), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuMemFreeAsync(at, a), CUDA_SUCCESS);
}

// Memory of graphs is a vGPU's. The capture goes on.
TEST_F(HostPools, ACaptureTakesNothingOfThem) {
  const CUdeviceptr at = allocate(64, a);
  ASSERT_EQ(cuStreamBeginCapture_v2(a, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  CUdeviceptr p = 0;
  EXPECT_EQ(cuMemAllocFromPoolAsync(&p, 64, pool, a), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cuMemFreeAsync(at, a), CUDA_ERROR_INVALID_VALUE) << "no allocation of a graph";
  CUgraph graph = nullptr;
  ASSERT_EQ(cuStreamEndCapture(a, &graph), CUDA_SUCCESS);
  CUDA_MEM_ALLOC_NODE_PARAMS params{};
  params.poolProps = properties(CU_MEM_LOCATION_TYPE_HOST);
  params.bytesize = 64;
  CUgraphNode node;
  EXPECT_EQ(cuGraphAddMemAllocNode(&node, graph, nullptr, 0, &params), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeAsync(at, a), CUDA_SUCCESS);
}

// Whoever of several threads frees a thing first does, and what they have is theirs alone.
TEST_F(HostPools, ThreadsShareThem) {
  constexpr int kThreads = 4, kRounds = 500;
  const CUmemoryPool other = create(CU_MEM_LOCATION_TYPE_HOST);
  std::atomic<int> freed{0};
  std::vector<CUdeviceptr> shared(kRounds);
  for (CUdeviceptr& at : shared) at = allocate(512 + next() % 8192, a, other);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      const CUstream mine = t % 2 ? a : b;
      ASSERT_EQ(cuCtxSetCurrent(world().contexts[0]), CUDA_SUCCESS);
      for (int i = 0; i < kRounds; ++i) {
        CUdeviceptr own = 0;
        ASSERT_EQ(cuMemAllocFromPoolAsync(&own, 64 + i, pool, mine), CUDA_SUCCESS);
        *reinterpret_cast<int*>(own) = t;
        const CUresult e = cuMemFreeAsync(shared[i], mine);
        EXPECT_TRUE(e == CUDA_SUCCESS || e == CUDA_ERROR_INVALID_VALUE);
        freed += e == CUDA_SUCCESS;
        EXPECT_EQ(*reinterpret_cast<int*>(own), t);
        ASSERT_EQ(cuMemFreeAsync(own, mine), CUDA_SUCCESS);
        if (i % 64 == 0) {
          ASSERT_EQ(cuMemPoolTrimTo(pool, 0), CUDA_SUCCESS);
        }
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(freed, kRounds);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  for (const CUmemoryPool one : {pool, other})
    EXPECT_EQ(get(CU_MEMPOOL_ATTR_USED_MEM_CURRENT, one), 0u);
  EXPECT_EQ(cuMemPoolDestroy(other), CUDA_SUCCESS);
}

}  // namespace
}  // namespace sluice::test
