// SPDX-License-Identifier: Apache-2.0
// sluice_meter.so before the software GPU: what asks for libcuda.so.1 finds it, every way to memory
// is charged before the driver is asked, and everything comes back.
#include "worker/meter/meter.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "abi/cuda_driver.h"

namespace sluice::test {
namespace {

#define SLUICE_GET(name) get<decltype(&::name)>(#name)

using worker::Metered;

struct Account {
  uint64_t limit = 1ull << 40, taken = 0;
  int takes = 0, gives = 0;
};
Account accounts[4];

bool take(Metered kind, int device, uint64_t bytes, uint32_t* account) {
  Account& a = accounts[static_cast<int>(kind)];
  EXPECT_EQ(device, 0);
  *account = 7;
  if (bytes > a.limit - a.taken) return false;
  ++a.takes;
  a.taken += bytes;
  return true;
}
void give(Metered kind, uint32_t account, uint64_t bytes) {
  Account& a = accounts[static_cast<int>(kind)];
  EXPECT_EQ(account, 7u);
  ++a.gives;
  a.taken -= bytes;
}
bool left(int, uint64_t* free, uint64_t* total) {
  *total = 100 << 20;
  *free = 30 << 20;
  return true;
}

// What was laid, by address: no memory is behind it.
std::map<CUdeviceptr, uint64_t> laid;
bool lays = false;

CUresult lay(int, uint64_t bytes, CUdeviceptr* address) {
  if (!lays) return CUDA_ERROR_NOT_SUPPORTED;
  if (bytes > uint64_t{64} << 20) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = 0x7000'0000'0000 + (laid.size() << 32);
  laid[*address] = bytes;
  return CUDA_SUCCESS;
}
bool lift(CUdeviceptr address, CUresult* status) {
  *status = CUDA_SUCCESS;
  return laid.erase(address) > 0;
}

class MeterTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    meter_ = dlopen(SLUICE_METER, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(meter_, nullptr) << dlerror();
    driver_ = dlopen(SLUICE_SOFTGPU, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(driver_, nullptr) << dlerror();
    EXPECT_EQ(reinterpret_cast<decltype(&::cuInit)>(dlsym(meter_, "cuInit"))(0),
              CUDA_ERROR_NOT_INITIALIZED)
        << "nobody stands behind it yet";
    static worker::MeterHost host{driver_, take, give, left, lay, lift};
    reinterpret_cast<decltype(&sluice_meter_bind)>(dlsym(meter_, "sluice_meter_bind"))(&host);
    // As libraries do.
    found_ = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    ASSERT_EQ(get<decltype(&::cuInit)>("cuInit")(0), CUDA_SUCCESS);
    CUcontext context = nullptr;
    ASSERT_EQ(get<decltype(&::cuDevicePrimaryCtxRetain)>("cuDevicePrimaryCtxRetain")(&context, 0),
              CUDA_SUCCESS);
    ASSERT_EQ(get<decltype(&::cuCtxSetCurrent)>("cuCtxSetCurrent")(context), CUDA_SUCCESS);
  }
  void SetUp() override {
    for (Account& a : accounts) a = Account{};
  }
  template <class F>
  static F get(const char* name) {
    void* at = dlsym(found_, name);
    EXPECT_NE(at, nullptr) << name;
    return reinterpret_cast<F>(at);
  }
  static void* asked(const char* name, int version = 13000, cuuint64_t flags = 0) {
    void* at = nullptr;
    EXPECT_EQ(SLUICE_GET(cuGetProcAddress_v2)(name, &at, version, flags, nullptr), CUDA_SUCCESS);
    return at;
  }
  static bool ours(void* at) {
    Dl_info info;
    return dladdr(at, &info) && std::strstr(info.dli_fname, "sluice_meter");
  }

  static inline void *meter_ = nullptr, *driver_ = nullptr, *found_ = nullptr;
};

TEST_F(MeterTest, WhoAsksForTheDriverFindsTheMeter) {
  EXPECT_EQ(found_, meter_);
  for (const char* name : {"cuMemAlloc", "cuMemFree", "cuMemCreate", "cuMemHostAlloc",
                           "cuLibraryLoadData", "cuGetProcAddress"})
    EXPECT_TRUE(ours(asked(name))) << name;
  EXPECT_TRUE(ours(asked("cuMemAllocAsync", 13000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)));
  EXPECT_NE(asked("cuMemAllocAsync"),
            asked("cuMemAllocAsync", 13000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM));
  for (const char* name : {"cuInit", "cuLaunchKernel", "cuMemcpyHtoD"})
    EXPECT_FALSE(ours(asked(name))) << name << " costs nothing";
  void* at = nullptr;
  EXPECT_EQ(SLUICE_GET(cuGetProcAddress_v2)("cuNoSuchThing", &at, 13000, 0, nullptr),
            CUDA_ERROR_NOT_FOUND);
}

TEST_F(MeterTest, AllocationsAreChargedAsTheDriverRounds) {
  Account& device = accounts[0];
  CUdeviceptr a = 0, b = 0;
  ASSERT_EQ(SLUICE_GET(cuMemAlloc_v2)(&a, 1), CUDA_SUCCESS);
  EXPECT_EQ(device.taken, 512u);
  ASSERT_EQ(SLUICE_GET(cuMemAlloc_v2)(&b, (2 << 20) + 1), CUDA_SUCCESS);
  EXPECT_EQ(device.taken, 512u + (4 << 20));
  EXPECT_EQ(SLUICE_GET(cuMemFree_v2)(a), CUDA_SUCCESS);
  EXPECT_EQ(SLUICE_GET(cuMemFree_v2)(b), CUDA_SUCCESS);
  EXPECT_EQ(device.taken, 0u);
  EXPECT_NE(SLUICE_GET(cuMemFree_v2)(b), CUDA_SUCCESS) << "the driver says what it thinks of it";
  EXPECT_EQ(device.gives, 2);
}

TEST_F(MeterTest, WhatIsNotThereIsRefusedBeforeTheDriverIsAsked) {
  Account& device = accounts[0];
  device.limit = 10 << 20;
  CUdeviceptr p = 0x77;
  EXPECT_EQ(SLUICE_GET(cuMemAlloc_v2)(&p, 12 << 20), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(p, 0x77u);
  std::vector<CUdeviceptr> all;
  while (SLUICE_GET(cuMemAlloc_v2)(&p, 2 << 20) == CUDA_SUCCESS) all.push_back(p);
  EXPECT_EQ(all.size(), 5u);
  for (CUdeviceptr each : all) EXPECT_EQ(SLUICE_GET(cuMemFree_v2)(each), CUDA_SUCCESS);
  EXPECT_EQ(device.taken, 0u);
  // What the driver itself refuses costs nothing.
  device.limit = ~0ull;
  EXPECT_NE(SLUICE_GET(cuMemAlloc_v2)(&p, uint64_t{1} << 50), CUDA_SUCCESS);
  EXPECT_NE(SLUICE_GET(cuMemAlloc_v2)(&p, ~size_t{0}), CUDA_SUCCESS);
  EXPECT_EQ(device.taken, 0u);
}

TEST_F(MeterTest, LargeOnesAreLaidWhereTheWorkerDoesSoAndEndThereWhicheverWayTheyAreFreed) {
  Account& device = accounts[0];
  lays = true;
  CUdeviceptr small = 0, a = 0, b = 0, none = 0x77;
  ASSERT_EQ(SLUICE_GET(cuMemAlloc_v2)(&small, 1 << 20), CUDA_SUCCESS);
  EXPECT_TRUE(laid.empty());
  ASSERT_EQ(SLUICE_GET(cuMemAlloc_v2)(&a, (2 << 20) + 1), CUDA_SUCCESS);
  ASSERT_EQ(SLUICE_GET(cuMemAlloc_v2)(&b, (1 << 20) + 1), CUDA_SUCCESS);
  EXPECT_EQ(laid, (std::map<CUdeviceptr, uint64_t>{{a, 4 << 20}, {b, 2 << 20}}));
  EXPECT_EQ(device.taken, uint64_t{7} << 20);
  EXPECT_EQ(SLUICE_GET(cuMemAlloc_v2)(&none, 100 << 20), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(device.taken, uint64_t{7} << 20) << "what was refused costs nothing";
  EXPECT_EQ(SLUICE_GET(cuMemFree_v2)(a), CUDA_SUCCESS);
  EXPECT_EQ(SLUICE_GET(cuMemFreeAsync)(b, nullptr), CUDA_SUCCESS);
  EXPECT_TRUE(laid.empty());
  EXPECT_EQ(SLUICE_GET(cuMemFree_v2)(small), CUDA_SUCCESS);
  EXPECT_EQ(device.taken, 0u);
  lays = false;
}

TEST_F(MeterTest, OtherWaysToMemory) {
  Account &device = accounts[0], &pinned = accounts[1];
  CUdeviceptr p = 0;
  ASSERT_EQ(SLUICE_GET(cuMemAllocAsync)(&p, 3 << 20, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(device.taken, 4u << 20);
  ASSERT_EQ(SLUICE_GET(cuMemFreeAsync)(p, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(device.taken, 0u);
  size_t pitch = 0;
  ASSERT_EQ(SLUICE_GET(cuMemAllocPitch_v2)(&p, &pitch, 100, 64, 4), CUDA_SUCCESS);
  EXPECT_GE(device.taken, pitch * 64);
  ASSERT_EQ(SLUICE_GET(cuMemFree_v2)(p), CUDA_SUCCESS);
  void* h = nullptr;
  ASSERT_EQ(SLUICE_GET(cuMemHostAlloc)(&h, 5000, 0), CUDA_SUCCESS);
  EXPECT_EQ(pinned.taken, 5120u);
  ASSERT_EQ(SLUICE_GET(cuMemFreeHost)(h), CUDA_SUCCESS);
  pinned.limit = 4096;
  EXPECT_EQ(SLUICE_GET(cuMemAllocHost_v2)(&h, 5000), CUDA_ERROR_OUT_OF_MEMORY);
  std::vector<char> mine(1 << 16);
  EXPECT_EQ(SLUICE_GET(cuMemHostRegister_v2)(mine.data(), mine.size(), 0),
            CUDA_ERROR_OUT_OF_MEMORY);
  pinned.limit = 1 << 20;
  ASSERT_EQ(SLUICE_GET(cuMemHostRegister_v2)(mine.data(), mine.size(), 0), CUDA_SUCCESS);
  EXPECT_EQ(pinned.taken, 1u << 16);
  ASSERT_EQ(SLUICE_GET(cuMemHostUnregister)(mine.data()), CUDA_SUCCESS);
  EXPECT_EQ(pinned.taken + device.taken, 0u);
}

TEST_F(MeterTest, PhysicalMemoryLivesUntilItsLastHandleAndMappingAreGone) {
  Account& device = accounts[0];
  constexpr size_t kBytes = 4 << 20;
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  CUmemGenericAllocationHandle h = 0;
  CUdeviceptr at = 0;
  ASSERT_EQ(SLUICE_GET(cuMemCreate)(&h, kBytes, &prop, 0), CUDA_SUCCESS);
  EXPECT_EQ(device.taken, kBytes);
  ASSERT_EQ(SLUICE_GET(cuMemAddressReserve)(&at, kBytes, 0, 0, 0), CUDA_SUCCESS);
  ASSERT_EQ(SLUICE_GET(cuMemMap)(at, kBytes, 0, h, 0), CUDA_SUCCESS);
  ASSERT_EQ(SLUICE_GET(cuMemRelease)(h), CUDA_SUCCESS);
  EXPECT_EQ(device.taken, kBytes) << "it is mapped";
  ASSERT_EQ(SLUICE_GET(cuMemUnmap)(at, kBytes), CUDA_SUCCESS);
  EXPECT_EQ(device.taken, 0u);
  device.limit = kBytes - 1;
  EXPECT_EQ(SLUICE_GET(cuMemCreate)(&h, kBytes, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(SLUICE_GET(cuMemAddressFree)(at, kBytes), CUDA_SUCCESS);
}

// Code that lies in a file on the node is the operator's, code that was made meanwhile is not.
TEST_F(MeterTest, CodeIsChargedWhenItWasMadeMeanwhile) {
  static const char kText[] =
      ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k() { ret; }\n";
  Account& code = accounts[2];
  CUmodule module = nullptr;
  ASSERT_EQ(SLUICE_GET(cuModuleLoadData)(&module, kText), CUDA_SUCCESS);
  EXPECT_EQ(code.takes, 0);
  ASSERT_EQ(SLUICE_GET(cuModuleUnload)(module), CUDA_SUCCESS);
  const std::string made = kText;
  ASSERT_EQ(SLUICE_GET(cuModuleLoadData)(&module, made.c_str()), CUDA_SUCCESS);
  EXPECT_EQ(code.taken, sizeof kText);
  ASSERT_EQ(SLUICE_GET(cuModuleUnload)(module), CUDA_SUCCESS);
  EXPECT_EQ(code.taken, 0u);
  code.limit = 10;
  EXPECT_EQ(SLUICE_GET(cuModuleLoadData)(&module, made.c_str()), CUDA_ERROR_OUT_OF_MEMORY);
  CUlibrary library = nullptr;
  EXPECT_EQ(SLUICE_GET(cuLibraryLoadData)(&library, made.c_str(), nullptr, nullptr, 0, nullptr,
                                          nullptr, 0),
            CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_F(MeterTest, StreamsAreCounted) {
  Account& streams = accounts[3];
  streams.limit = 2;
  CUstream one = nullptr, other = nullptr, third = nullptr;
  ASSERT_EQ(SLUICE_GET(cuStreamCreate)(&one, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(SLUICE_GET(cuStreamCreateWithPriority)(&other, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(SLUICE_GET(cuStreamCreate)(&third, 0), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(third, nullptr);
  EXPECT_EQ(SLUICE_GET(cuStreamDestroy_v2)(one), CUDA_SUCCESS);
  EXPECT_EQ(SLUICE_GET(cuStreamDestroy_v2)(other), CUDA_SUCCESS);
  EXPECT_EQ(streams.taken, 0u);
  EXPECT_NE(SLUICE_GET(cuStreamCreate)(&one, ~0u), CUDA_SUCCESS);
  EXPECT_EQ(streams.taken, 0u) << "what the driver refuses costs nothing";
}

TEST_F(MeterTest, LibrariesSeeTheSlice) {
  size_t free_bytes = 0, total = 0;
  ASSERT_EQ(SLUICE_GET(cuMemGetInfo_v2)(&free_bytes, &total), CUDA_SUCCESS);
  EXPECT_EQ(total, 100u << 20);
  EXPECT_LE(free_bytes, 30u << 20);
}

}  // namespace
}  // namespace sluice::test
