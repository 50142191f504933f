// SPDX-License-Identifier: Apache-2.0
// Device memory, host memory and the virtual memory API.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "gpu.h"

namespace sluice::softgpu_test {
namespace {

constexpr size_t kGranularity = 2 << 20;

class Memory : public GpuTest {
 protected:
  static CUmemAllocationProp properties() {
    CUmemAllocationProp prop = {};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    return prop;
  }
  static size_t free_bytes() {
    size_t free = 0, total = 0;
    EXPECT_EQ(CUDA_SUCCESS, cuMemGetInfo_v2(&free, &total));
    return free;
  }
};

TEST_F(Memory, SmallAllocationsShareASlabAndGiveItBack) {
  size_t before = free_bytes();
  CUdeviceptr first = 0;
  CHECK_CU(cuMemAlloc_v2(&first, 1));
  EXPECT_EQ(before - kGranularity, free_bytes());
  std::vector<CUdeviceptr> more(1000);
  for (CUdeviceptr& p : more) {
    CHECK_CU(cuMemAlloc_v2(&p, 512));
    EXPECT_EQ(0u, p % 512);
  }
  EXPECT_EQ(before - kGranularity, free_bytes());
  for (CUdeviceptr p : more) CHECK_CU(cuMemFree_v2(p));
  CHECK_CU(cuMemFree_v2(first));
  EXPECT_EQ(before, free_bytes());
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(first));
}

TEST_F(Memory, ArraysAreCopiedToAndFromWithinTheirBounds) {
  const size_t before = free_bytes();
  CUDA_ARRAY_DESCRIPTOR shape{};
  shape.Width = 24, shape.Height = 6;
  shape.Format = CU_AD_FORMAT_UNSIGNED_INT16;
  shape.NumChannels = 2;
  CUarray array = nullptr;
  CHECK_CU(cuArrayCreate_v2(&array, &shape));
  EXPECT_GT(before, free_bytes());
  constexpr size_t kRow = 24 * 4;
  std::vector<unsigned char> from(kRow * 6), to(kRow * 6);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<unsigned char>(i * 7);
  CUDA_MEMCPY2D in{};
  in.srcMemoryType = CU_MEMORYTYPE_HOST;
  in.srcHost = from.data();
  in.srcPitch = kRow;
  in.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  in.dstArray = array;
  in.WidthInBytes = kRow, in.Height = 6;
  CHECK_CU(cuMemcpy2D_v2(&in));
  CUDA_MEMCPY2D out{};
  out.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  out.srcArray = array;
  out.srcXInBytes = 8, out.srcY = 2;
  out.dstMemoryType = CU_MEMORYTYPE_HOST;
  out.dstHost = to.data();
  out.dstPitch = kRow;
  out.WidthInBytes = kRow - 8, out.Height = 4;
  CHECK_CU(cuMemcpy2D_v2(&out));
  for (size_t row = 0; row < 4; ++row)
    EXPECT_EQ(0, std::memcmp(&to[row * kRow], &from[(row + 2) * kRow + 8], kRow - 8));
  out.Height = 5;
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D_v2(&out));
  CHECK_CU(cuArrayDestroy(array));
  EXPECT_EQ(before, free_bytes());
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D_v2(&in));
  EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE, cuArrayDestroy(array));
  CUDA_ARRAY3D_DESCRIPTOR layered{24, 6, 2, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_LAYERED};
  EXPECT_EQ(CUDA_ERROR_NOT_SUPPORTED, cuArray3DCreate_v2(&array, &layered));
}

TEST_F(Memory, RefusesWhatTheDeviceDoesNotHave) {
  size_t total = 0;
  CHECK_CU(cuDeviceTotalMem_v2(&total, 0));
  CUdeviceptr p = 0;
  EXPECT_EQ(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&p, total + 1));
  std::vector<CUdeviceptr> taken;
  CUresult result = CUDA_SUCCESS;
  while ((result = cuMemAlloc_v2(&p, 256u << 20)) == CUDA_SUCCESS) taken.push_back(p);
  EXPECT_EQ(CUDA_ERROR_OUT_OF_MEMORY, result);
  EXPECT_EQ(total / (256u << 20), taken.size());
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp prop = properties();
  EXPECT_EQ(CUDA_ERROR_OUT_OF_MEMORY, cuMemCreate(&handle, total, &prop, 0));
  for (CUdeviceptr q : taken) CHECK_CU(cuMemFree_v2(q));
  CHECK_CU(cuMemCreate(&handle, total, &prop, 0));
  EXPECT_EQ(0u, free_bytes());
  CHECK_CU(cuMemRelease(handle));
  EXPECT_EQ(total, free_bytes());
}

TEST_F(Memory, WindowsOfManyTebibytesAreReservedWhereTheyAreWanted) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer leaves a program 512 GiB of addresses";
#endif
  constexpr CUdeviceptr kBase = 0x200000000000;
  constexpr size_t kWindow = 8ull << 40;
  CUdeviceptr windows[3] = {};
  for (size_t i = 0; i < 3; ++i) {
    CHECK_CU(cuMemAddressReserve(&windows[i], kWindow, 0, kBase + i * kWindow, 0));
    EXPECT_EQ(kBase + i * kWindow, windows[i]);
  }
  CUmemAllocationProp prop = properties();
  CUmemGenericAllocationHandle handle = 0;
  size_t before = free_bytes();
  CHECK_CU(cuMemCreate(&handle, 2 * kGranularity, &prop, 0));
  EXPECT_EQ(before - 2 * kGranularity, free_bytes());
  CUdeviceptr at = windows[1] + (3ull << 40);
  CHECK_CU(cuMemMap(at, kGranularity, kGranularity, handle, 0));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemMap(at, kGranularity, 0, handle, 0));
  int value = 0;
  CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CHECK_CU(cuMemSetAccess(at, kGranularity, &access, 1));
  CHECK_CU(cuMemsetD32_v2(at, 77, kGranularity / 4));
  CHECK_CU(cuMemcpyDtoH_v2(&value, at + kGranularity - 4, 4));
  EXPECT_EQ(77, value);
  // The same physical memory at a second address.
  CHECK_CU(cuMemMap(windows[0], 2 * kGranularity, 0, handle, 0));
  CHECK_CU(cuMemSetAccess(windows[0], 2 * kGranularity, &access, 1));
  CHECK_CU(cuMemcpyDtoH_v2(&value, windows[0] + kGranularity, 4));
  EXPECT_EQ(77, value);
  CHECK_CU(cuMemRelease(handle));
  EXPECT_EQ(before - 2 * kGranularity, free_bytes());  // mappings keep it
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(windows[0], kWindow));
  CHECK_CU(cuMemUnmap(windows[0], 2 * kGranularity));
  CHECK_CU(cuMemUnmap(at, kGranularity));
  EXPECT_EQ(before, free_bytes());
  for (CUdeviceptr window : windows) CHECK_CU(cuMemAddressFree(window, kWindow));
}

TEST_F(Memory, DescriptorsCarryMemoryToASecondHandle) {
  CUmemAllocationProp prop = properties();
  CUmemGenericAllocationHandle handle = 0, imported = 0;
  CHECK_CU(cuMemCreate(&handle, kGranularity, &prop, 0));
  int fd = -1;
  CHECK_CU(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  CHECK_CU(cuMemImportFromShareableHandle(&imported,
                                          reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  close(fd);
  CUdeviceptr a = 0;
  CHECK_CU(cuMemAddressReserve(&a, 2 * kGranularity, 0, 0, 0));
  CHECK_CU(cuMemMap(a, kGranularity, 0, handle, 0));
  CHECK_CU(cuMemMap(a + kGranularity, kGranularity, 0, imported, 0));
  CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CHECK_CU(cuMemSetAccess(a, 2 * kGranularity, &access, 1));
  CHECK_CU(cuMemsetD8_v2(a, 9, 100));
  char got = 0;
  CHECK_CU(cuMemcpyDtoH_v2(&got, a + kGranularity + 99, 1));
  EXPECT_EQ(9, got);
  CHECK_CU(cuMemUnmap(a, 2 * kGranularity));
  CHECK_CU(cuMemAddressFree(a, 2 * kGranularity));
  CHECK_CU(cuMemRelease(handle));
  CHECK_CU(cuMemRelease(imported));
}

TEST_F(Memory, ReadOnlyMappingsRefuseWrites) {
  CUmemAllocationProp prop = properties();
  CUmemGenericAllocationHandle handle = 0;
  CHECK_CU(cuMemCreate(&handle, kGranularity, &prop, 0));
  CUdeviceptr a = 0;
  CHECK_CU(cuMemAddressReserve(&a, kGranularity, 0, 0, 0));
  CHECK_CU(cuMemMap(a, kGranularity, 0, handle, 0));
  CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READ};
  CHECK_CU(cuMemSetAccess(a, kGranularity, &access, 1));
  CUfunction f =
      function(load(one_kernel("ld.global.u32 %r1, [%out]; st.global.u32 [%out], %r1;")), "f");
  CHECK_CU(launch(f, 1, 1, 0, nullptr, a, a));
  EXPECT_EQ(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
  CHECK_CU(cuMemUnmap(a, kGranularity));
  CHECK_CU(cuMemAddressFree(a, kGranularity));
  CHECK_CU(cuMemRelease(handle));
}

TEST_F(Memory, HostMemoryHasOneAddressOnBothSides) {
  void* host = nullptr;
  CHECK_CU(cuMemHostAlloc(&host, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
  CUdeviceptr device = 0;
  CHECK_CU(cuMemHostGetDevicePointer_v2(&device, host, 0));
  EXPECT_EQ(reinterpret_cast<CUdeviceptr>(host), device);
  CUfunction f = function(load(one_kernel("mul.wide.u32 %offset, %r_tid, 4; add.s64 %rd1, %out, "
                                          "%offset; st.global.u32 [%rd1], %r_tid;")),
                          "f");
  CHECK_CU(launch(f, 1, 64, 0, nullptr, device, device));
  CHECK_CU(cuCtxSynchronize());
  for (int i = 0; i < 64; ++i) EXPECT_EQ(i, static_cast<int*>(host)[i]);
  unsigned type = 0;
  CHECK_CU(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, device));
  EXPECT_EQ(static_cast<unsigned>(CU_MEMORYTYPE_HOST), type);
  CHECK_CU(cuMemFreeHost(host));

#if defined(__SANITIZE_THREAD__)
  constexpr uintptr_t kOwn = 0x001000000000;  // of the addresses that it leaves to a program
#else
  constexpr uintptr_t kOwn = 0x3f0000000000;
#endif
  void* own = mmap(reinterpret_cast<void*>(kOwn), 1 << 20, PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  ASSERT_NE(MAP_FAILED, own);
  CHECK_CU(cuMemHostRegister_v2(own, 1 << 20, 0));
  EXPECT_EQ(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, cuMemHostRegister_v2(own, 4096, 0));
  CHECK_CU(cuMemHostGetDevicePointer_v2(&device, own, 0));
  EXPECT_EQ(kOwn, device);
  CHECK_CU(launch(f, 1, 64, 0, nullptr, device, device));
  CHECK_CU(cuCtxSynchronize());
  EXPECT_EQ(63, static_cast<int*>(own)[63]);
  CHECK_CU(cuMemHostUnregister(own));
  EXPECT_EQ(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(own));
  munmap(own, 1 << 20);
}

TEST_F(Memory, PointersKnowWhatTheyBelongTo) {
  CUdeviceptr p = 0;
  CHECK_CU(cuMemAlloc_v2(&p, 10'000));
  CUdeviceptr base = 0;
  size_t size = 0;
  CHECK_CU(cuMemGetAddressRange_v2(&base, &size, p + 5'000));
  EXPECT_EQ(p, base);
  EXPECT_EQ(10'000u, size);
  CUcontext context = nullptr;
  CHECK_CU(cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, p + 1));
  EXPECT_EQ(context_, context);
  int local = 0;
  unsigned type = 7;
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                                            reinterpret_cast<CUdeviceptr>(&local)));
  CHECK_CU(cuMemFree_v2(p));
}

TEST_F(Memory, CopiesAndFillsOfBoxes) {
  CUdeviceptr p = 0;
  size_t pitch = 0;
  CHECK_CU(cuMemAllocPitch_v2(&p, &pitch, 100, 20, 4));
  EXPECT_EQ(512u, pitch);
  CHECK_CU(cuMemsetD2D8_v2(p, pitch, 5, 100, 20));
  std::vector<uint8_t> host(40 * 10);
  for (size_t i = 0; i < host.size(); ++i) host[i] = static_cast<uint8_t>(i);
  CUDA_MEMCPY2D box = {};
  box.srcMemoryType = CU_MEMORYTYPE_HOST;
  box.srcHost = host.data();
  box.srcPitch = 40;
  box.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  box.dstDevice = p;
  box.dstPitch = pitch;
  box.dstXInBytes = 30;
  box.dstY = 4;
  box.WidthInBytes = 40;
  box.Height = 10;
  CHECK_CU(cuMemcpy2D_v2(&box));
  std::vector<uint8_t> all(pitch * 20);
  CHECK_CU(cuMemcpyDtoH_v2(all.data(), p, all.size()));
  for (size_t y = 0; y < 20; ++y) {
    for (size_t x = 0; x < 100; ++x) {
      bool inside = y >= 4 && y < 14 && x >= 30 && x < 70;
      ASSERT_EQ(inside ? host[(y - 4) * 40 + x - 30] : 5, all[y * pitch + x]) << y << "," << x;
    }
  }
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemsetD32_v2(p + 1, 0, 1));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD_v2(p, host.data(), pitch * 20 + (4u << 20)));
  CHECK_CU(cuMemFree_v2(p));
}

TEST_F(Memory, StreamOrderedAllocationReturnsItsMemory) {
  size_t before = free_bytes();
  CUdeviceptr p = 0;
  CUmemoryPool pool = nullptr;
  CHECK_CU(cuDeviceGetDefaultMemPool(&pool, 0));
  CHECK_CU(cuMemAllocAsync(&p, 4 << 20, nullptr));
  cuuint64_t used = 0;
  CHECK_CU(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
  EXPECT_EQ(4u << 20, used);
  CHECK_CU(cuMemsetD8Async(p, 1, 4 << 20, nullptr));
  CHECK_CU(cuMemFreeAsync(p, nullptr));
  CHECK_CU(cuCtxSynchronize());
  EXPECT_EQ(before, free_bytes());
  CHECK_CU(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
  EXPECT_EQ(0u, used);
  CHECK_CU(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &used));
  EXPECT_EQ(4u << 20, used);
}

// As a process without a context makes it for others.
TEST_F(Memory, TheVirtualMemoryApiHasMemoryOfTheHost) {
  CUmemAllocationProp props = {};
  props.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, {0}};
  props.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  constexpr size_t kBytes = 4 << 20;
  size_t grain = 0;
  CHECK_CU(cuMemGetAllocationGranularity(&grain, &props, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  EXPECT_EQ(0u, kBytes % grain);
  const size_t before = free_bytes();
  CUmemGenericAllocationHandle made = 0, opened = 0;
  CHECK_CU(cuMemCreate(&made, kBytes, &props, 0));
  EXPECT_EQ(before, free_bytes());
  int descriptor = -1;
  CHECK_CU(
      cuMemExportToShareableHandle(&descriptor, made, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  CHECK_CU(cuMemRelease(made));
  CHECK_CU(cuMemImportFromShareableHandle(
      &opened, reinterpret_cast<void*>(static_cast<uintptr_t>(descriptor)),
      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  close(descriptor);
  CUdeviceptr at = 0;
  CHECK_CU(cuMemAddressReserve(&at, kBytes, 0, 0, 0));
  CHECK_CU(cuMemMap(at, kBytes, 0, opened, 0));
  CUmemAccessDesc access = {};
  access.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CHECK_CU(cuMemSetAccess(at, kBytes, &access, 1));
  unsigned char byte = 1;
  CHECK_CU(cuMemcpyDtoH_v2(&byte, at + kBytes - 1, 1));
  EXPECT_EQ(0, byte) << "what is made is empty";
  CHECK_CU(cuMemsetD8_v2(at, 7, kBytes));
  CHECK_CU(cuMemcpyDtoH_v2(&byte, at + kBytes - 1, 1));
  EXPECT_EQ(7, byte);
  EXPECT_EQ(before, free_bytes());
  CHECK_CU(cuMemUnmap(at, kBytes));
  CHECK_CU(cuMemRelease(opened));
  CHECK_CU(cuMemAddressFree(at, kBytes));
  props.location.id = 4096;
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&made, kBytes, &props, 0));
}

TEST_F(Memory, APoolCanBeOfPinnedHostMemory) {
  CUmemPoolProps props = {};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, {0}};
  props.maxSize = 1 << 20;
  CUmemoryPool pool = nullptr, standard = nullptr;
  CHECK_CU(cuMemPoolCreate(&pool, &props));
  size_t before = free_bytes();
  CUdeviceptr p = 0, more = 0;
  CHECK_CU(cuMemAllocFromPoolAsync(&p, 32 << 20, pool, nullptr));
  EXPECT_EQ(before, free_bytes());
  EXPECT_EQ(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocFromPoolAsync(&more, 8, pool, nullptr));
  unsigned type = 0;
  CUmemoryPool of = nullptr;
  CHECK_CU(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p + 5));
  EXPECT_EQ(unsigned{CU_MEMORYTYPE_HOST}, type);
  CHECK_CU(cuPointerGetAttribute(&of, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, p + 5));
  EXPECT_EQ(pool, of);
  CHECK_CU(cuMemsetD8Async(p, 7, 32 << 20, nullptr));
  CHECK_CU(cuMemFreeAsync(p, nullptr));
  CHECK_CU(cuMemAllocFromPoolAsync(&more, 32 << 20, pool, nullptr));  // once the free has come
  CHECK_CU(cuMemsetD8_v2(more, 9, 32 << 20));
  const auto* bytes = reinterpret_cast<unsigned char*>(more);
  EXPECT_EQ(9, bytes[(32 << 20) - 1]);
  CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  CHECK_CU(cuMemPoolGetAccess(&flags, pool, &props.location));
  EXPECT_EQ(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, flags);
  CUmemLocation device = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  CHECK_CU(cuMemPoolGetAccess(&flags, pool, &device));
  EXPECT_EQ(CU_MEM_ACCESS_FLAGS_PROT_NONE, flags);
  CUmemAccessDesc access = {device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CHECK_CU(cuMemPoolSetAccess(pool, &access, 1));
  CHECK_CU(cuMemPoolGetAccess(&flags, pool, &device));
  EXPECT_EQ(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, flags);
  CHECK_CU(cuMemGetDefaultMemPool(&standard, &props.location, CU_MEM_ALLOCATION_TYPE_PINNED));
  EXPECT_NE(pool, standard);
  CHECK_CU(cuMemSetMemPool(&props.location, CU_MEM_ALLOCATION_TYPE_PINNED, pool));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuDeviceSetMemPool(0, pool));
  CHECK_CU(cuMemFree_v2(more));
  CHECK_CU(cuMemPoolDestroy(pool));
  CHECK_CU(cuMemGetMemPool(&of, &props.location, CU_MEM_ALLOCATION_TYPE_PINNED));
  EXPECT_EQ(standard, of);
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemPoolDestroy(standard));
  props.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemPoolCreate(&pool, &props));
}

TEST_F(Memory, APoolIsSharedByADescriptor) {
  constexpr auto kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  auto shareable = [](int fd) { return reinterpret_cast<void*>(static_cast<intptr_t>(fd)); };
  size_t before = free_bytes();
  CUmemPoolProps props = {};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.handleTypes = kFd;
  props.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemoryPool pool = nullptr, other = nullptr, none = nullptr;
  CHECK_CU(cuMemPoolCreate(&pool, &props));
  CUdeviceptr own[2] = {}, imported = 0, wrong = 0;
  CHECK_CU(cuMemAllocFromPoolAsync(&own[0], 5000, pool, nullptr));
  CHECK_CU(cuMemAllocFromPoolAsync(&own[1], 3 * kGranularity, pool, nullptr));
  EXPECT_EQ(before - 4 * kGranularity, free_bytes());
  CHECK_CU(cuMemsetD8_v2(own[0], 7, 5000));
  CHECK_CU(cuMemsetD8_v2(own[1], 9, 3 * kGranularity));
  int fd = -1;
  CHECK_CU(cuMemPoolExportToShareableHandle(&fd, pool, kFd, 0));
  CHECK_CU(cuMemPoolImportFromShareableHandle(&other, shareable(fd), kFd, 0));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE,
            cuMemPoolImportFromShareableHandle(&none, shareable(0), kFd, 0));
  close(fd);
  CUmemPoolPtrExportData data = {};
  CHECK_CU(cuMemPoolExportPointer(&data, own[1]));
  CHECK_CU(cuMemPoolImportPointer(&imported, other, &data));
  EXPECT_EQ(before - 4 * kGranularity, free_bytes());
  unsigned char value = 0;
  CHECK_CU(cuMemcpyDtoH_v2(&value, imported + 3 * kGranularity - 1, 1));
  EXPECT_EQ(9, value);
  CHECK_CU(cuMemsetD8_v2(imported, 11, 1));
  CHECK_CU(cuMemcpyDtoH_v2(&value, own[1], 1));
  EXPECT_EQ(11, value);
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemAllocFromPoolAsync(&wrong, 8, other, nullptr));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuDeviceSetMemPool(0, other));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemPoolImportPointer(&wrong, pool, &data));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemPoolExportPointer(&data, imported));
  data.reserved[20] ^= 1;
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemPoolImportPointer(&wrong, other, &data));
  CHECK_CU(cuMemFreeAsync(imported, nullptr));
  CHECK_CU(cuMemFreeAsync(own[1], nullptr));
  CHECK_CU(cuCtxSynchronize());
  // What is allocated again holds nothing of before.
  CHECK_CU(cuMemAllocFromPoolAsync(&own[1], kGranularity, pool, nullptr));
  CHECK_CU(cuMemcpyDtoH_v2(&value, own[1], 1));
  EXPECT_EQ(0, value);
  for (CUdeviceptr p : own) CHECK_CU(cuMemFree_v2(p));
  CHECK_CU(cuMemPoolDestroy(other));
  CHECK_CU(cuMemPoolDestroy(pool));
  EXPECT_EQ(before, free_bytes());
}

}  // namespace
}  // namespace sluice::softgpu_test
