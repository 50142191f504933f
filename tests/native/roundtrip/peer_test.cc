// SPDX-License-Identifier: Apache-2.0
// Peer access and copies between two vGPUs, from exported function to driver call: which mappings
// become accessible to which GPU, which copies name contexts, and what waits for whom.
#include "tests/native/roundtrip/loopback_session.h"

namespace sluice::test {
namespace {

class Peers : public RoundTrip {
 protected:
  struct Access {
    CUdeviceptr address;
    std::vector<int> ordinals;
    CUmemAccess_flags flags;
  };
  void SetUp() override {
    RoundTrip::SetUp();
    before_ = SLUICE_ON(cuMemSetAccess);
    SLUICE_ON(cuMemSetAccess) = [this](CUdeviceptr at, size_t, const CUmemAccessDesc* d, size_t n) {
      Access a{at, {}, d[0].flags};
      for (size_t i = 0; i < n; ++i) a.ordinals.push_back(d[i].location.id);
      accesses_.push_back(a);
      return CUDA_SUCCESS;
    };
  }
  void TearDown() override {
    SLUICE_ON(cuMemSetAccess) = before_;
    RoundTrip::TearDown();
  }
  const Access* access_to(CUdeviceptr address) const {
    for (const Access& a : accesses_)
      if (a.address == address) return &a;
    return nullptr;
  }
  void use(int device) { ASSERT_EQ(cuCtxSetCurrent(world().contexts[device]), CUDA_SUCCESS); }
  CUdeviceptr allocate(int device, size_t bytes) {
    use(device);
    CUdeviceptr p = 0;
    EXPECT_EQ(cuMemAlloc_v2(&p, bytes), CUDA_SUCCESS);
    return p;
  }
  std::vector<Access> accesses_;
  std::function<CUresult(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t)> before_;
};

TEST_F(Peers, WhatTheDriverSaidIsKnown) {
  int value = 9;
  EXPECT_EQ(cuDeviceCanAccessPeer(&value, 0, 1), CUDA_SUCCESS);
  EXPECT_EQ(value, 1);
  EXPECT_EQ(cuDeviceCanAccessPeer(&value, 1, 1), CUDA_SUCCESS);
  EXPECT_EQ(value, 0) << "a device is not its own peer";
  EXPECT_EQ(cuDeviceCanAccessPeer(&value, 0, 2), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(cuDeviceGetP2PAttribute(&value, CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK, 1, 0),
            CUDA_SUCCESS);
  EXPECT_EQ(value, 3);
  EXPECT_EQ(
      cuDeviceGetP2PAttribute(&value, CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED, 1, 0),
      CUDA_SUCCESS);
  EXPECT_EQ(value, 0);
  EXPECT_EQ(cuDeviceGetP2PAttribute(&value, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 1, 1),
            CUDA_ERROR_INVALID_DEVICE);
  EXPECT_TRUE(recording().calls.empty());
}

TEST_F(Peers, AccessIsForPresentAndFutureMemory) {
  const CUdeviceptr present = allocate(1, 3 * kSlab);
  use(0);
  ASSERT_EQ(cuCtxDisablePeerAccess(world().contexts[1]), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
  ASSERT_EQ(cuCtxEnablePeerAccess(world().contexts[1], 1), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuCtxEnablePeerAccess(world().contexts[0], 0), CUDA_ERROR_INVALID_CONTEXT);
  ASSERT_EQ(cuCtxEnablePeerAccess(nullptr, 0), CUDA_ERROR_INVALID_CONTEXT);
  accesses_.clear();
  ASSERT_EQ(cuCtxEnablePeerAccess(world().contexts[1], 0), CUDA_SUCCESS);
  ASSERT_TRUE(access_to(present));
  EXPECT_EQ(access_to(present)->ordinals, std::vector<int>{10});
  EXPECT_EQ(access_to(present)->flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  EXPECT_FALSE(access_to(world().memory)) << "device 1 was given nothing of device 0's";
  EXPECT_EQ(recording().calls_of("cuCtxEnablePeerAccess").size(), 1u);
  EXPECT_EQ(cuCtxEnablePeerAccess(world().contexts[1], 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);

  const CUdeviceptr future = allocate(1, 3 * kSlab), own = allocate(0, 3 * kSlab);
  ASSERT_TRUE(access_to(future) && access_to(own));
  EXPECT_EQ(access_to(future)->ordinals, (std::vector<int>{11, 10}));
  EXPECT_EQ(access_to(own)->ordinals, std::vector<int>{10});

  use(0);
  accesses_.clear();
  ASSERT_EQ(cuCtxDisablePeerAccess(world().contexts[1]), CUDA_SUCCESS);
  for (CUdeviceptr p : {present, future}) {
    ASSERT_TRUE(access_to(p));
    EXPECT_EQ(access_to(p)->ordinals, std::vector<int>{10});
    EXPECT_EQ(access_to(p)->flags, CU_MEM_ACCESS_FLAGS_PROT_NONE);
  }
  for (CUdeviceptr p : {present, future, own}) EXPECT_EQ(cuMemFree_v2(p), CUDA_SUCCESS);
}

TEST_F(Peers, AFailureToEnableEnablesNothing) {
  use(0);
  {
    ScopedAnswer a(SLUICE_ON(cuCtxEnablePeerAccess),
                   [](CUcontext, unsigned) { return CUDA_ERROR_TOO_MANY_PEERS; });
    EXPECT_EQ(cuCtxEnablePeerAccess(world().contexts[1], 0), CUDA_ERROR_TOO_MANY_PEERS);
  }
  EXPECT_EQ(cuCtxDisablePeerAccess(world().contexts[1]), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
}

TEST_F(Peers, FreeingWaitsForWhoeverMayUseIt) {
  const CUdeviceptr p = allocate(1, 3 * kSlab);
  use(0);
  ASSERT_EQ(cuMemcpyPeerAsync(world().memory, world().contexts[0], p, world().contexts[1], 4096,
                              world().stream),
            CUDA_SUCCESS);
  recording().clear();
  ASSERT_EQ(cuMemFree_v2(p), CUDA_SUCCESS);
  const auto waits = recording().calls_of("cuCtxSynchronize");
  EXPECT_GE(waits.size(), 1u) << "device 0 still copies from it";
}

TEST_F(Peers, CopiesBetweenGpusNameBoth) {
  const CUdeviceptr there = allocate(1, 3 * kSlab);
  use(0);
  const CUstream stream = world().stream;
  recording().clear();
  ASSERT_EQ(cuMemcpyDtoDAsync_v2(world().memory, there, 5000, stream), CUDA_SUCCESS);
  EXPECT_TRUE(recording().calls_of("cuMemcpyDtoDAsync_v2").empty());
  const Call& plain = recording().only("cuMemcpyPeerAsync");
  EXPECT_EQ(plain.at<CUdeviceptr>(0), world().memory);
  EXPECT_EQ(plain.at<CUdeviceptr>(2), there);
  EXPECT_NE(plain.at<CUcontext>(1), plain.at<CUcontext>(3));
  EXPECT_EQ(plain.at<size_t>(4), 5000u);
  const CUcontext here_context = plain.at<CUcontext>(1), there_context = plain.at<CUcontext>(3);

  CUDA_MEMCPY3D_PEER got{};
  ScopedAnswer a(SLUICE_ON(cuMemcpy3DPeerAsync), [&](const CUDA_MEMCPY3D_PEER* p, CUstream) {
    got = *p;
    return CUDA_SUCCESS;
  });
  CUDA_MEMCPY2D rows{};
  rows.srcMemoryType = rows.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  rows.srcDevice = there;
  rows.dstDevice = world().memory;
  rows.srcPitch = 512;
  rows.dstPitch = 256;
  rows.WidthInBytes = 100;
  rows.Height = 7;
  ASSERT_EQ(cuMemcpy2DAsync_v2(&rows, stream), CUDA_SUCCESS);
  EXPECT_EQ(got.srcContext, there_context);
  EXPECT_EQ(got.dstContext, here_context);
  EXPECT_EQ(got.srcDevice, there);
  EXPECT_EQ(got.srcPitch, 512u);
  EXPECT_EQ(got.dstPitch, 256u);
  EXPECT_EQ(got.Height, 7u);
  // To the host too: device 0's stream has no access to device 1's memory.
  std::vector<char> host(1000);
  got = {};
  ASSERT_EQ(cuMemcpyDtoH_v2(host.data(), there, host.size()), CUDA_SUCCESS);
  EXPECT_EQ(got.srcContext, there_context);
  EXPECT_EQ(got.dstMemoryType, CU_MEMORYTYPE_HOST);
  EXPECT_EQ(got.WidthInBytes, host.size());
  // A fill is the other GPU's, between two events.
  recording().clear();
  ASSERT_EQ(cuMemsetD8Async(there, 1, 100, stream), CUDA_SUCCESS);
  EXPECT_EQ(recording().calls_of("cuStreamWaitEvent").size(), 2u);
  EXPECT_NE(recording().only("cuMemsetD8Async").at<CUstream>(3), driver_of(stream));
  // Within one GPU nothing of that is done.
  recording().clear();
  ASSERT_EQ(cuMemcpyDtoDAsync_v2(there, there + kSlab, 5000, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(recording().calls_of("cuMemcpyPeerAsync").size(), 1u)
      << "the default stream is device 0's";
  use(1);
  recording().clear();
  ASSERT_EQ(cuMemcpyDtoDAsync_v2(there, there + kSlab, 5000, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(recording().calls_of("cuMemcpyDtoDAsync_v2").size(), 1u);
  EXPECT_EQ(cuMemFree_v2(there), CUDA_SUCCESS);
}

TEST_F(Peers, TheVirtualMemoryApiGivesPeersAccess) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, {1}};
  CUmemGenericAllocationHandle h = 0;
  CUdeviceptr at = 0;
  ASSERT_EQ(cuMemAddressReserve(&at, kSlab, 0, 0, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemCreate(&h, kSlab, &prop, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemMap(at, kSlab, 0, h, 0), CUDA_SUCCESS);
  CUmemAccessDesc both[2] = {};
  for (int i = 0; i < 2; ++i) {
    both[i].location = {CU_MEM_LOCATION_TYPE_DEVICE, {i}};
    both[i].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  }
  accesses_.clear();
  ASSERT_EQ(cuMemSetAccess(at, kSlab, both, 2), CUDA_SUCCESS);
  ASSERT_EQ(accesses_.size(), 2u);
  EXPECT_EQ(accesses_[0].ordinals, std::vector<int>{10});
  EXPECT_EQ(accesses_[1].ordinals, std::vector<int>{11});
  both[1].flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  ASSERT_EQ(cuMemSetAccess(at, kSlab, &both[1], 1), CUDA_SUCCESS);
  unsigned long long flags = 9;
  ASSERT_EQ(cuMemGetAccess(&flags, &both[0].location, at), CUDA_SUCCESS);
  EXPECT_EQ(flags, unsigned{CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
  ASSERT_EQ(cuMemGetAccess(&flags, &both[1].location, at), CUDA_SUCCESS);
  EXPECT_EQ(flags, unsigned{CU_MEM_ACCESS_FLAGS_PROT_NONE});
  EXPECT_EQ(cuMemsetD8_v2(at, 1, kSlab), CUDA_SUCCESS) << "device 0 still may";
  EXPECT_EQ(cuMemUnmap(at, kSlab), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(h), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAddressFree(at, kSlab), CUDA_SUCCESS);
}

}  // namespace
}  // namespace sluice::test
