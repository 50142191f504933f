// SPDX-License-Identifier: Apache-2.0
// The virtual memory API from exported function to driver call: the driver gets exactly what the
// application asked for, and what CUDA refuses never leaves the client.
#include <sys/mman.h>
#include <unistd.h>

#include "tests/native/roundtrip/loopback_session.h"

namespace sluice::test {
namespace {

class VirtualMemory : public RoundTrip {
 protected:
  static CUmemAllocationProp on(int device) {
    CUmemAllocationProp p{};
    p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
    return p;
  }
  static CUmemAccessDesc access(int device, CUmemAccess_flags flags) {
    CUmemAccessDesc d{};
    d.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
    d.flags = flags;
    return d;
  }
  CUdeviceptr reserve(size_t bytes) {
    CUdeviceptr p = 0;
    EXPECT_EQ(cuMemAddressReserve(&p, bytes, 0, 0, 0), CUDA_SUCCESS);
    return p;
  }
  CUmemGenericAllocationHandle create(size_t bytes, int device = 0) {
    const CUmemAllocationProp p = on(device);
    CUmemGenericAllocationHandle h = 0;
    EXPECT_EQ(cuMemCreate(&h, bytes, &p, 0), CUDA_SUCCESS);
    return h;
  }
  size_t available() {
    size_t free_bytes = 0, total = 0;
    EXPECT_EQ(cuMemGetInfo_v2(&free_bytes, &total), CUDA_SUCCESS);
    return free_bytes;
  }
};

TEST_F(VirtualMemory, TheDriverGetsWhatWasAskedFor) {
  const size_t before = available();
  for (int device = 0; device < 2; ++device) {
    for (int i = 0; i < 20; ++i) {
      const size_t bytes = (1 + next() % 10) * kSlab;
      recording().clear();
      const CUdeviceptr base = reserve(64 * kSlab);
      EXPECT_TRUE(recording().calls.empty()) << "reservations are local";
      const CUdeviceptr at = base + next() % 50 * kSlab;
      CUmemAllocationProp prop{};
      CUmemAccessDesc given{};
      {
        const auto make = SLUICE_ON(cuMemCreate);
        ScopedAnswer a(SLUICE_ON(cuMemCreate),
                       [&](CUmemGenericAllocationHandle* h, size_t n, const CUmemAllocationProp* p,
                           unsigned long long f) {
                         prop = *p;
                         return make(h, n, p, f);
                       });
        ScopedAnswer b(SLUICE_ON(cuMemSetAccess),
                       [&](CUdeviceptr, size_t, const CUmemAccessDesc* d, size_t) {
                         given = *d;
                         return CUDA_SUCCESS;
                       });
        const auto h = create(bytes, device);
        ASSERT_EQ(cuMemMap(at, bytes, 0, h, 0), CUDA_SUCCESS);
        const CUmemAccessDesc want = access(device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        ASSERT_EQ(cuMemSetAccess(at, bytes, &want, 1), CUDA_SUCCESS);
        ASSERT_EQ(cuMemRelease(h), CUDA_SUCCESS);
        EXPECT_EQ(cuMemRelease(h), CUDA_ERROR_INVALID_VALUE) << "its mapping is no handle";
        EXPECT_EQ(cuMemMap(base, bytes, 0, h, 0), CUDA_ERROR_INVALID_VALUE);
      }
      EXPECT_EQ(prop.location.id, 10 + device);
      EXPECT_EQ(given.location.id, 10 + device);
      EXPECT_EQ(given.flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
      EXPECT_EQ(recording().only("cuMemCreate").at<size_t>(1), bytes);
      EXPECT_EQ(recording().only("cuMemMap").at<CUdeviceptr>(0), at);
      EXPECT_EQ(recording().only("cuMemMap").at<size_t>(1), bytes);
      EXPECT_EQ(recording().only("cuMemSetAccess").at<CUdeviceptr>(0), at);
      EXPECT_EQ(recording().only("cuMemSetAccess").at<size_t>(1), bytes);
      EXPECT_TRUE(recording().calls_of("cuMemRelease").empty()) << "it is still mapped";
      recording().clear();
      ASSERT_EQ(cuMemUnmap(at, bytes), CUDA_SUCCESS);
      EXPECT_EQ(recording().only("cuMemUnmap").at<CUdeviceptr>(0), at);
      EXPECT_EQ(recording().calls_of("cuMemRelease").size(), 1u) << "the last mapping was its end";
      ASSERT_EQ(cuMemAddressFree(base, 64 * kSlab), CUDA_SUCCESS);
    }
  }
  EXPECT_EQ(available(), before);
  EXPECT_TRUE(worker_session().objects.times_mapped.empty());
  EXPECT_EQ(worker_session().objects.allocations.count(), 0u);
}

TEST_F(VirtualMemory, ManyMappingsAreOnePieceToACopy) {
  const CUdeviceptr base = reserve(16 * kSlab);
  const CUmemAccessDesc rw = access(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  std::vector<CUmemGenericAllocationHandle> handles;
  for (size_t i = 0; i < 4; ++i) {
    handles.push_back(create(kSlab));
    ASSERT_EQ(cuMemMap(base + i * kSlab, kSlab, 0, handles.back(), 0), CUDA_SUCCESS);
  }
  ASSERT_EQ(cuMemSetAccess(base, 3 * kSlab, &rw, 1), CUDA_SUCCESS);
  EXPECT_EQ(cuMemsetD8_v2(base + 100, 1, 3 * kSlab - 100), CUDA_SUCCESS);
  EXPECT_EQ(cuMemsetD8_v2(base, 1, 3 * kSlab + 1), CUDA_ERROR_INVALID_VALUE)
      << "the fourth may not be accessed";
  CUdeviceptr start = 0;
  size_t bytes = 0;
  ASSERT_EQ(cuMemGetAddressRange_v2(&start, &bytes, base + kSlab + 5), CUDA_SUCCESS);
  EXPECT_EQ(start, base + kSlab);
  EXPECT_EQ(bytes, kSlab);
  EXPECT_EQ(cuMemGetAddressRange_v2(&start, &bytes, base + 4 * kSlab), CUDA_ERROR_NOT_FOUND);
  unsigned long long flags = 9;
  EXPECT_EQ(cuMemGetAccess(&flags, &rw.location, base), CUDA_SUCCESS);
  EXPECT_EQ(flags, unsigned{CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
  EXPECT_EQ(cuMemGetAccess(&flags, &rw.location, base + 3 * kSlab), CUDA_SUCCESS);
  EXPECT_EQ(flags, unsigned{CU_MEM_ACCESS_FLAGS_PROT_NONE});
  EXPECT_EQ(cuMemGetAccess(&flags, &rw.location, base + 4 * kSlab), CUDA_ERROR_INVALID_VALUE);
  int ordinal = 7;
  EXPECT_EQ(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, base),
            CUDA_SUCCESS);
  EXPECT_EQ(ordinal, 0);
  CUmemAccess_flags access{};
  for (const auto& [at, may] : {std::pair{base + 7, CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
                                std::pair{base + 3 * kSlab, CU_MEM_ACCESS_FLAGS_PROT_NONE},
                                std::pair{world().memory, CU_MEM_ACCESS_FLAGS_PROT_READWRITE}}) {
    EXPECT_EQ(cuPointerGetAttribute(&access, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, at), CUDA_SUCCESS);
    EXPECT_EQ(access, may);
  }
  EXPECT_EQ(cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, base + kSlab + 9),
            CUDA_SUCCESS);
  EXPECT_EQ(cuPointerGetAttribute(&bytes, CU_POINTER_ATTRIBUTE_MAPPING_SIZE, base), CUDA_SUCCESS);
  EXPECT_EQ(start, base + kSlab);
  EXPECT_EQ(bytes, kSlab);
  unsigned direct = 7;
  EXPECT_EQ(cuPointerGetAttribute(&direct, CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, base),
            CUDA_SUCCESS);
  EXPECT_EQ(direct, 0u) << "no network card of the program's is beside the GPU";
  EXPECT_EQ(cuMemUnmap(base, kSlab + 4096), CUDA_ERROR_INVALID_VALUE);
  recording().clear();
  ASSERT_EQ(cuMemUnmap(base, 4 * kSlab), CUDA_SUCCESS);
  EXPECT_EQ(recording().calls_of("cuMemUnmap").size(), 4u);
  EXPECT_EQ(cuMemsetD8_v2(base, 1, 1), CUDA_ERROR_INVALID_VALUE);
  for (auto h : handles) EXPECT_EQ(cuMemRelease(h), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAddressFree(base, 16 * kSlab), CUDA_SUCCESS);
}

TEST_F(VirtualMemory, UnmappingComesBehindTheGpusWork) {
  const CUdeviceptr base = reserve(kSlab);
  const auto h = create(kSlab);
  const CUmemAccessDesc rw = access(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  ASSERT_EQ(cuMemMap(base, kSlab, 0, h, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemSetAccess(base, kSlab, &rw, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuMemsetD8Async(base, 1, kSlab, world().stream), CUDA_SUCCESS);
  recording().clear();
  ASSERT_EQ(cuMemUnmap(base, kSlab), CUDA_SUCCESS);
  ASSERT_EQ(recording().calls.size(), 2u);
  EXPECT_STREQ(recording().calls[0].name, "cuCtxSynchronize");
  EXPECT_STREQ(recording().calls[1].name, "cuMemUnmap");
  ASSERT_EQ(cuMemMap(base, kSlab, 0, h, 0), CUDA_SUCCESS);
  recording().clear();
  ASSERT_EQ(cuMemUnmap(base, kSlab), CUDA_SUCCESS);
  EXPECT_TRUE(recording().calls_of("cuCtxSynchronize").empty()) << "it is known to be idle";
  EXPECT_EQ(cuMemRelease(h), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAddressFree(base, kSlab), CUDA_SUCCESS);
}

TEST_F(VirtualMemory, RetainingKeepsTheMemory) {
  const CUdeviceptr base = reserve(2 * kSlab);
  const auto h = create(kSlab);
  ASSERT_EQ(cuMemMap(base, kSlab, 0, h, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemRelease(h), CUDA_SUCCESS);
  CUmemGenericAllocationHandle again = 0;
  ASSERT_EQ(cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(base + 77)), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(base + kSlab)),
            CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuMemMap(base + kSlab, kSlab, 0, again, 0), CUDA_SUCCESS) << "once more";
  ASSERT_EQ(cuMemUnmap(base, 2 * kSlab), CUDA_SUCCESS);
  CUmemAllocationProp prop{};
  ASSERT_EQ(cuMemGetAllocationPropertiesFromHandle(&prop, again), CUDA_SUCCESS);
  EXPECT_EQ(prop.location.id, 0);
  recording().clear();
  ASSERT_EQ(cuMemRelease(again), CUDA_SUCCESS);
  EXPECT_EQ(recording().calls_of("cuMemRelease").size(), 1u);
  EXPECT_EQ(cuMemGetAllocationPropertiesFromHandle(&prop, again), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAddressFree(base, 2 * kSlab), CUDA_SUCCESS);
}

TEST_F(VirtualMemory, TheCreditIsReachedExactlyAndLocally) {
  std::vector<CUmemGenericAllocationHandle> all;
  const CUmemAllocationProp prop = on(0);
  const size_t before = available();
  CUmemGenericAllocationHandle h = 0;
  while (cuMemCreate(&h, 4 * kSlab, &prop, 0) == CUDA_SUCCESS) all.push_back(h);
  EXPECT_EQ(all.size(), before / (4 * kSlab));
  seen().clear();
  EXPECT_EQ(cuMemCreate(&h, 4 * kSlab, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_TRUE(seen().empty()) << "refused without asking";
  CUdeviceptr p = 0;
  EXPECT_EQ(cuMemAlloc_v2(&p, before), CUDA_ERROR_OUT_OF_MEMORY) << "one credit for both";
  for (auto one : all) EXPECT_EQ(cuMemRelease(one), CUDA_SUCCESS);
  EXPECT_EQ(available(), before);
}

TEST_F(VirtualMemory, ReservationsAreBoundedByTheWindowOnly) {
  std::vector<CUdeviceptr> all;
  const size_t space = size_t{512} << 30;
  for (int i = 0; i < 6; ++i) all.push_back(reserve(space));
  for (size_t i = 1; i < all.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      EXPECT_GE(std::max(all[i], all[j]) - std::min(all[i], all[j]), space);
  CUdeviceptr p = 0;
  EXPECT_EQ(cuMemAddressReserve(&p, size_t{1} << 46, 0, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(cuMemAddressReserve(&p, kSlab, size_t{1} << 35, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(p % (size_t{1} << 35), 0u);
  EXPECT_EQ(cuMemAddressFree(p, kSlab), CUDA_SUCCESS);
  const CUdeviceptr asked = all[3];
  EXPECT_EQ(cuMemAddressFree(asked, space - 4096), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAddressFree(asked + kSlab, space), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAddressFree(asked, space), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAddressReserve(&p, space, 0, asked, 0), CUDA_SUCCESS);
  EXPECT_EQ(p, asked) << "a free address that was asked for";
  ASSERT_EQ(cuMemAddressReserve(&p, space, 0, asked, 0), CUDA_SUCCESS);
  EXPECT_NE(p, asked) << "asked for, no more";
  EXPECT_EQ(cuMemAddressFree(p, space), CUDA_SUCCESS);
  for (auto at : all) EXPECT_EQ(cuMemAddressFree(at, space), CUDA_SUCCESS);
}

TEST_F(VirtualMemory, WhatCudaRefusesNeverLeaves) {
  const CUdeviceptr base = reserve(8 * kSlab);
  const auto h = create(2 * kSlab);
  ASSERT_EQ(cuMemMap(base, 2 * kSlab, 0, h, 0), CUDA_SUCCESS);
  recording().clear();
  seen().clear();
  CUmemGenericAllocationHandle made = 0;
  CUmemAllocationProp prop = on(0);
  CUdeviceptr p = 0;
  size_t n = 0;
  const CUmemAccessDesc rw = access(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  const CUmemAccessDesc nobody = access(2, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  const CUmemAccessDesc odd = access(0, static_cast<CUmemAccess_flags>(2));
  EXPECT_EQ(cuMemCreate(&made, kSlab, &prop, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemCreate(&made, 0, &prop, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemCreate(&made, kSlab + 1, &prop, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemCreate(&made, kSlab, nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  prop.location.id = 2;
  EXPECT_EQ(cuMemCreate(&made, kSlab, &prop, 0), CUDA_ERROR_INVALID_DEVICE);
  prop.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, {-1}};
  EXPECT_EQ(cuMemCreate(&made, kSlab, &prop, 0), CUDA_ERROR_INVALID_VALUE);
  prop.location.id = 0;
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  EXPECT_EQ(cuMemCreate(&made, kSlab, &prop, 0), CUDA_ERROR_NOT_SUPPORTED);
  CUmemAccessDesc by_host = rw;
  by_host.location = prop.location;
  EXPECT_EQ(cuMemSetAccess(base, 2 * kSlab, &by_host, 1), CUDA_ERROR_NOT_SUPPORTED);
  unsigned long long flags = 1;
  EXPECT_EQ(cuMemGetAccess(&flags, &by_host.location, base), CUDA_SUCCESS);
  EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_NONE);
  prop = on(0);
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
  EXPECT_EQ(cuMemCreate(&made, kSlab, &prop, 0), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cuMemMap(base + 2 * kSlab, 2 * kSlab, 0, h ^ 1, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemMap(base + 2 * kSlab, kSlab, 0, h, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemMap(base + 2 * kSlab, 2 * kSlab, kSlab, h, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemMap(base + 2 * kSlab, 2 * kSlab, 0, h, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemMap(base + kSlab, 2 * kSlab, 0, h, 0), CUDA_ERROR_INVALID_VALUE) << "taken";
  EXPECT_EQ(cuMemMap(base + 7 * kSlab, 2 * kSlab, 0, h, 0), CUDA_ERROR_INVALID_VALUE) << "beyond";
  EXPECT_EQ(cuMemMap(world().memory, 2 * kSlab, 0, h, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemUnmap(base + kSlab, kSlab), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemUnmap(world().memory, kBytes), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemSetAccess(base, kSlab, &rw, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemSetAccess(base, 2 * kSlab, &rw, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemSetAccess(base, 2 * kSlab, &odd, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemSetAccess(base, 2 * kSlab, &nobody, 1), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(cuMemAddressReserve(&p, kSlab, 3, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAddressReserve(&p, 0, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAddressReserve(&p, kSlab, 0, 0, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAddressFree(base, 8 * kSlab), CUDA_ERROR_INVALID_VALUE) << "still mapped";
  EXPECT_EQ(cuMemFree_v2(base), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemGetAllocationGranularity(&n, &(prop = on(0)), CU_MEM_ALLOC_GRANULARITY_MINIMUM),
            CUDA_SUCCESS);
  EXPECT_EQ(n, kSlab);
  EXPECT_EQ(
      cuMemGetAllocationGranularity(&n, &prop, static_cast<CUmemAllocationGranularity_flags>(2)),
      CUDA_ERROR_INVALID_VALUE);
  int fd = -1;
  EXPECT_EQ(cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
            CUDA_ERROR_INVALID_VALUE)
      << "it was not made for that";
  EXPECT_EQ(cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_FABRIC, 0),
            CUDA_ERROR_NOT_SUPPORTED);
  CUmemGenericAllocationHandle none = 0;
  const int odd_fd = memfd_create("no allocation", MFD_CLOEXEC);
  for (int wrong : {-1, odd_fd})
    EXPECT_EQ(cuMemImportFromShareableHandle(&none, reinterpret_cast<void*>(intptr_t{wrong}),
                                             CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
              CUDA_ERROR_INVALID_VALUE);
  close(odd_fd);
  EXPECT_TRUE(seen().empty());
  ASSERT_EQ(cuMemUnmap(base, 2 * kSlab), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(h), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(h), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAddressFree(base, 8 * kSlab), CUDA_SUCCESS);
}

// Host memory is the vGPU's, and seen by the program at one place only.
TEST_F(VirtualMemory, HostMemoryIsSeenAtOnePlace) {
  const CUdeviceptr base = reserve(8 * kSlab);
  CUmemAllocationProp prop = on(0);
  prop.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, {0}};
  const size_t before = available();
  CUmemGenericAllocationHandle h = 0;
  ASSERT_EQ(cuMemCreate(&h, 2 * kSlab, &prop, 0), CUDA_SUCCESS);
  EXPECT_EQ(before - available(), 2 * kSlab);
  ASSERT_EQ(cuMemMap(base, 2 * kSlab, 0, h, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemMap(base + 4 * kSlab, 2 * kSlab, 0, h, 0), CUDA_ERROR_NOT_SUPPORTED);
  CUmemAccessDesc by_host = access(0, CU_MEM_ACCESS_FLAGS_PROT_READ);
  by_host.location = prop.location;
  EXPECT_EQ(cuMemSetAccess(base, 2 * kSlab, &by_host, 1), CUDA_ERROR_NOT_SUPPORTED);
  by_host.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  for (int i = 0; i < 2; ++i)
    ASSERT_EQ(cuMemSetAccess(base, 2 * kSlab, &by_host, 1), CUDA_SUCCESS) << "again is nothing";
  unsigned long long flags = 0;
  for (const CUmemLocation& location : {by_host.location, on(0).location}) {
    EXPECT_EQ(cuMemGetAccess(&flags, &location, base + kSlab), CUDA_SUCCESS);
    EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  }
  const CUmemAccessDesc taken = access(0, CU_MEM_ACCESS_FLAGS_PROT_NONE);
  EXPECT_EQ(cuMemSetAccess(base, 2 * kSlab, &taken, 1), CUDA_ERROR_NOT_SUPPORTED)
      << "it is how the program sees it";
  ASSERT_EQ(cuMemUnmap(base, 2 * kSlab), CUDA_SUCCESS);
  ASSERT_EQ(cuMemMap(base + 4 * kSlab, 2 * kSlab, 0, h, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemUnmap(base + 4 * kSlab, 2 * kSlab), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(h), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAddressFree(base, 8 * kSlab), CUDA_SUCCESS);
  EXPECT_EQ(available(), before);
}

// A descriptor keeps memory like a handle, in whatever process its copies are, and what is imported
// is charged to whoever exported it.
TEST_F(VirtualMemory, ADescriptorIsAReference) {
  const size_t before = available();
  CUmemAllocationProp prop = on(0);
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemGenericAllocationHandle h = 0, imported = 0, spare = 0;
  ASSERT_EQ(cuMemCreate(&h, 3 * kSlab, &prop, 0), CUDA_SUCCESS);
  int fd = -1;
  ASSERT_EQ(cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
            CUDA_SUCCESS);
  const int copy = dup(fd);
  recording().clear();
  ASSERT_EQ(cuMemRelease(h), CUDA_SUCCESS);
  close(fd);
  EXPECT_TRUE(recording().calls_of("cuMemRelease").empty()) << "a copy is open";
  EXPECT_EQ(available(), before - 3 * kSlab);
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(cuMemImportFromShareableHandle(&imported, reinterpret_cast<void*>(intptr_t{copy}),
                                             CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
              CUDA_SUCCESS)
        << "looking at it takes nothing out";
    EXPECT_EQ(available(), before - 3 * kSlab) << "charged once";
    const CUdeviceptr base = reserve(3 * kSlab);
    EXPECT_EQ(cuMemMap(base, 2 * kSlab, 0, imported, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemMap(base, 3 * kSlab, 0, imported, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemRelease(imported), CUDA_SUCCESS);
    EXPECT_EQ(cuMemUnmap(base, 3 * kSlab), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAddressFree(base, 3 * kSlab), CUDA_SUCCESS);
  }
  EXPECT_EQ(recording().calls_of("cuMemRelease").size(), 2u) << "of the imports";
  close(copy);
  ASSERT_EQ(cuMemCreate(&spare, kSlab, &prop, 0), CUDA_SUCCESS) << "the next call looks";
  EXPECT_EQ(recording().calls_of("cuMemRelease").size(), 3u);
  EXPECT_EQ(available(), before - kSlab);
  EXPECT_EQ(cuMemRelease(spare), CUDA_SUCCESS);
  EXPECT_EQ(available(), before);
}

// Compression is the driver's to grant, and the application is told which it was.
TEST_F(VirtualMemory, CompressionIsWhatTheDriverGrants) {
  for (const unsigned char granted : {1, 0}) {
    unsigned char asked = 9;
    const auto make = SLUICE_ON(cuMemCreate);
    ScopedAnswer a(SLUICE_ON(cuMemCreate), [&](CUmemGenericAllocationHandle* h, size_t n,
                                               const CUmemAllocationProp* p, unsigned long long f) {
      asked = p->allocFlags.compressionType;
      return make(h, n, p, f);
    });
    ScopedAnswer b(SLUICE_ON(cuMemGetAllocationPropertiesFromHandle),
                   [&](CUmemAllocationProp* p, CUmemGenericAllocationHandle) {
                     p->allocFlags.compressionType = granted;
                     return CUDA_SUCCESS;
                   });
    CUmemAllocationProp prop = on(0), told{};
    prop.allocFlags.compressionType = CU_MEM_ALLOCATION_COMP_GENERIC;
    CUmemGenericAllocationHandle h = 0;
    ASSERT_EQ(cuMemCreate(&h, kSlab, &prop, 0), CUDA_SUCCESS);
    EXPECT_EQ(asked, CU_MEM_ALLOCATION_COMP_GENERIC);
    ASSERT_EQ(cuMemGetAllocationPropertiesFromHandle(&told, h), CUDA_SUCCESS);
    EXPECT_EQ(told.allocFlags.compressionType, granted);
    ASSERT_EQ(cuMemRelease(h), CUDA_SUCCESS);
    prop.allocFlags.compressionType = 2;
    EXPECT_EQ(cuMemCreate(&h, kSlab, &prop, 0), CUDA_ERROR_INVALID_VALUE);
  }
}

// The driver may refuse it, so the caller learns that.
TEST_F(VirtualMemory, UnusualAccessIsAskedFor) {
  const CUdeviceptr base = reserve(kSlab);
  const auto h = create(kSlab);
  ASSERT_EQ(cuMemMap(base, kSlab, 0, h, 0), CUDA_SUCCESS);
  const CUmemAccessDesc read = access(0, CU_MEM_ACCESS_FLAGS_PROT_READ);
  {
    ScopedAnswer a(SLUICE_ON(cuMemSetAccess), [](CUdeviceptr, size_t, const CUmemAccessDesc*,
                                                 size_t) { return CUDA_ERROR_NOT_SUPPORTED; });
    EXPECT_EQ(cuMemSetAccess(base, kSlab, &read, 1), CUDA_ERROR_NOT_SUPPORTED);
  }
  unsigned long long flags = 9;
  EXPECT_EQ(cuMemGetAccess(&flags, &read.location, base), CUDA_SUCCESS);
  EXPECT_EQ(flags, unsigned{CU_MEM_ACCESS_FLAGS_PROT_NONE});
  EXPECT_EQ(cuMemSetAccess(base, kSlab, &read, 1), CUDA_SUCCESS);
  EXPECT_EQ(cuMemGetAccess(&flags, &read.location, base), CUDA_SUCCESS);
  EXPECT_EQ(flags, unsigned{CU_MEM_ACCESS_FLAGS_PROT_READ});
  EXPECT_EQ(cuMemUnmap(base, kSlab), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(h), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAddressFree(base, kSlab), CUDA_SUCCESS);
}

}  // namespace
}  // namespace sluice::test
