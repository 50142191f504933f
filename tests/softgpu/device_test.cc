// SPDX-License-Identifier: Apache-2.0
// What the environment says about devices, what devices say about themselves, forks, and the
// library under the name libcuda.so.1. Settings are read once per process, so each case runs this
// program again as a child with only its own test.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "gpu.h"

namespace sluice::softgpu_test {
namespace {

// Runs the disabled test `name` of this program with the settings; true if it passes.
bool child(const std::string& name, std::vector<std::pair<std::string, std::string>> environment) {
  pid_t pid = fork();
  if (pid == 0) {
    for (const auto& [key, value] : environment) setenv(key.c_str(), value.c_str(), 1);
    std::string filter = "--gtest_filter=DISABLED_Child." + name;
    execl("/proc/self/exe", "softgpu_tests", filter.c_str(), "--gtest_also_run_disabled_tests",
          static_cast<char*>(nullptr));
    _exit(127);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(DISABLED_Child, ThreeDevicesOf512MiB) {
  CHECK_CU(cuInit(0));
  int count = 0;
  CHECK_CU(cuDeviceGetCount(&count));
  EXPECT_EQ(3, count);
  size_t bytes = 0;
  CHECK_CU(cuDeviceTotalMem_v2(&bytes, 2));
  EXPECT_EQ(512u << 20, bytes);
  CUuuid a, b;
  CHECK_CU(cuDeviceGetUuid_v2(&a, 0));
  CHECK_CU(cuDeviceGetUuid_v2(&b, 1));
  EXPECT_NE(0, std::memcmp(&a, &b, sizeof a));
  EXPECT_EQ(CUDA_ERROR_INVALID_DEVICE, cuDeviceTotalMem_v2(&bytes, 3));
  // Memory of a peer is out of reach until it is enabled.
  CUcontext first = nullptr, second = nullptr;
  CHECK_CU(cuDevicePrimaryCtxRetain(&second, 1));
  CHECK_CU(cuCtxSetCurrent(second));
  CUdeviceptr there = 0;
  CHECK_CU(cuMemAlloc_v2(&there, 64));
  CHECK_CU(cuCtxCreate_v2(&first, 0, 0));
  std::string ptx = one_kernel("st.global.u32 [%out], %r_tid;");
  CUmodule module = nullptr;
  CUfunction f = nullptr;
  CHECK_CU(cuModuleLoadData(&module, ptx.c_str()));
  CHECK_CU(cuModuleGetFunction(&f, module, "f"));
  CHECK_CU(cuCtxEnablePeerAccess(second, 0));
  EXPECT_EQ(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, cuCtxEnablePeerAccess(second, 0));
  CHECK_CU(launch(f, 1, 1, 0, nullptr, there, there));
  CHECK_CU(cuCtxSynchronize());
  CHECK_CU(cuCtxDisablePeerAccess(second));
  CHECK_CU(launch(f, 1, 1, 0, nullptr, there, there));
  EXPECT_EQ(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
  CHECK_CU(cuCtxDestroy_v2(first));
}

TEST(DISABLED_Child, SecondThenFirst) {
  CHECK_CU(cuInit(0));
  int count = 0;
  CHECK_CU(cuDeviceGetCount(&count));
  ASSERT_EQ(2, count);
  char bus[16];
  CHECK_CU(cuDeviceGetPCIBusId(bus, sizeof bus, 0));
  EXPECT_STREQ("FFFF:02:00.0", bus);
  CUdevice device = 7;
  CHECK_CU(cuDeviceGetByPCIBusId(&device, "ffff:01:00.0"));
  EXPECT_EQ(1, device);
  CHECK_CU(cuDeviceGetByPCIBusId(&device, "FFFF:2:0"));
  EXPECT_EQ(0, device);
  EXPECT_EQ(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetByPCIBusId(&device, "01:00.0"));
  EXPECT_EQ(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetByPCIBusId(&device, "FFFF"));
}

// Of 64 MiB each context takes 8; SLUICE_TEST_HELD says how much another process has.
TEST(DISABLED_Child, SeesWhatOthersHave) {
  CHECK_CU(cuInit(0));
  const uint64_t others = std::strtoull(std::getenv("SLUICE_TEST_HELD"), nullptr, 10) << 20;
  CUcontext context = nullptr;
  CHECK_CU(cuDevicePrimaryCtxRetain(&context, 0));
  CHECK_CU(cuCtxSetCurrent(context));
  size_t free = 0, total = 0;
  CHECK_CU(cuMemGetInfo_v2(&free, &total));
  EXPECT_EQ(total, 64u << 20);
  ASSERT_EQ(free, total - (8u << 20) - others);
  CUdeviceptr a = 0, b = 0;
  EXPECT_EQ(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&a, free + 1));
  CHECK_CU(cuMemAlloc_v2(&a, free));
  EXPECT_EQ(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&b, 2u << 20));
  if (others == 0) {
    // One that begins beside has no room for its context; later it has some.
    EXPECT_EQ(CUDA_ERROR_OUT_OF_MEMORY, cuCtxCreate_v2(&context, 0, 0));
    CHECK_CU(cuMemFree_v2(a));
    CHECK_CU(cuMemAlloc_v2(&a, 16u << 20));
    EXPECT_TRUE(child("SeesWhatOthersHave", {{"SLUICE_TEST_HELD", "24"}}));
    CHECK_CU(cuMemGetInfo_v2(&free, &total));
    EXPECT_EQ(free, total - (24u << 20)) << "what the child had is free, though it gave none back";
  } else {
    _exit(HasFailure() ? 1 : 0);  // as a process that is killed
  }
}

TEST(DISABLED_Child, NoDevice) { EXPECT_EQ(CUDA_ERROR_NO_DEVICE, cuInit(0)); }

TEST(DISABLED_Child, AForkedChildIsNotInitialised) {
  CHECK_CU(cuInit(0));
  pid_t pid = fork();
  if (pid == 0) {
    int count = 0;
    bool right = cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED &&
                 cuInit(0) == CUDA_ERROR_NOT_INITIALIZED;
    _exit(right ? 0 : 1);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  EXPECT_EQ(0, status);
}

TEST(DISABLED_Child, UnderTheNameOfTheRealDriver) {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  ASSERT_NE(nullptr, driver) << dlerror();
  auto init = reinterpret_cast<CUresult (*)(unsigned)>(dlsym(driver, "cuInit"));
  auto name =
      reinterpret_cast<CUresult (*)(char*, int, CUdevice)>(dlsym(driver, "cuDeviceGetName"));
  ASSERT_TRUE(init && name);
  char text[64];
  CHECK_CU(init(0));
  CHECK_CU(name(text, sizeof text, 0));
  EXPECT_STREQ("Sluice software GPU (CPU)", text);
}

TEST(Devices, CountAndMemoryComeFromTheEnvironment) {
  EXPECT_TRUE(child("ThreeDevicesOf512MiB",
                    {{"SLUICE_SOFTGPU_COUNT", "3"}, {"SLUICE_SOFTGPU_MEMORY_MIB", "512"}}));
}

TEST(Devices, VisibleDevicesSelectAndReorder) {
  EXPECT_TRUE(child("SecondThenFirst",
                    {{"SLUICE_SOFTGPU_COUNT", "3"}, {"CUDA_VISIBLE_DEVICES", "1,0,9,2"}}));
  EXPECT_TRUE(child("SecondThenFirst",
                    {{"SLUICE_SOFTGPU_COUNT", "3"},
                     {"CUDA_VISIBLE_DEVICES", "GPU-536c7569-6365-4000-8073-6f6674677001,0"}}));
  EXPECT_TRUE(child("NoDevice", {{"CUDA_VISIBLE_DEVICES", "-1"}}));
  EXPECT_TRUE(child("NoDevice", {{"SLUICE_SOFTGPU_COUNT", "0"}}));
}

TEST(Devices, ForkWithoutExecEndsTheDriverForTheChild) {
  EXPECT_TRUE(child("AForkedChildIsNotInitialised", {}));
}

TEST(Devices, TheLibraryStandsInForTheRealDriver) {
  auto folder =
      std::filesystem::temp_directory_path() / ("sluice-softgpu-" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  std::filesystem::create_symlink(SLUICE_SOFTGPU_LIBRARY, folder / "libcuda.so.1");
  EXPECT_TRUE(child("UnderTheNameOfTheRealDriver", {{"LD_LIBRARY_PATH", folder.string()}}));
  std::filesystem::remove_all(folder);
}

class DeviceFacts : public GpuTest {};

TEST_F(DeviceFacts, AttributesAreHonest) {
  auto value = [](CUdevice_attribute which) {
    int v = -1;
    EXPECT_EQ(CUDA_SUCCESS, cuDeviceGetAttribute(&v, which, 0));
    return v;
  };
  EXPECT_EQ(9, value(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR));
  EXPECT_EQ(1, value(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING));
  EXPECT_EQ(1, value(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED));
  EXPECT_EQ(1, value(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED));
  EXPECT_EQ(0, value(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY));
  EXPECT_EQ(0, value(CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH));
  int v = 0;
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE,
            cuDeviceGetAttribute(&v, static_cast<CUdevice_attribute>(9999), 0));
  int version = 0;
  CHECK_CU(cuDriverGetVersion(&version));
  EXPECT_EQ(13000, version);
  const void* private_table = &version;
  CUuuid id = {};
  EXPECT_EQ(CUDA_ERROR_NOT_FOUND, cuGetExportTable(&private_table, &id));
}

TEST_F(DeviceFacts, FunctionsAreFoundByNameAndVersion) {
  void* found = nullptr;
  CUdriverProcAddressQueryResult status;
  CHECK_CU(cuGetProcAddress_v2("cuMemAlloc", &found, 13000, 0, &status));
  EXPECT_EQ(reinterpret_cast<void*>(&cuMemAlloc_v2), found);
  EXPECT_EQ(CU_GET_PROC_ADDRESS_SUCCESS, status);
  EXPECT_EQ(CUDA_ERROR_NOT_FOUND, cuGetProcAddress_v2("cuNothing", &found, 13000, 0, &status));
  EXPECT_EQ(CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND, status);
  EXPECT_EQ(CUDA_ERROR_NOT_FOUND, cuGetProcAddress_v2("cuMemCreate", &found, 9000, 0, &status));
  EXPECT_EQ(CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT, status);
  CHECK_CU(cuGetProcAddress_v2("cuLaunchKernel", &found, 13000,
                               CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &status));
  EXPECT_NE(reinterpret_cast<void*>(&cuLaunchKernel), found);
}

TEST_F(DeviceFacts, ContextsNestAndDieWithTheirObjects) {
  size_t before = 0, after = 0, total = 0;
  CHECK_CU(cuMemGetInfo_v2(&before, &total));
  CUcontext made = nullptr, current = nullptr;
  CHECK_CU(cuCtxCreate_v4(&made, nullptr, CU_CTX_SCHED_SPIN, 0));
  CHECK_CU(cuCtxGetCurrent(&current));
  EXPECT_EQ(made, current);
  CUdeviceptr p = 0;
  CHECK_CU(cuMemAlloc_v2(&p, 64 << 20));
  CHECK_CU(cuCtxPopCurrent_v2(&current));
  EXPECT_EQ(made, current);
  CHECK_CU(cuCtxGetCurrent(&current));
  EXPECT_EQ(context_, current);
  CHECK_CU(cuCtxDestroy_v2(made));
  EXPECT_EQ(CUDA_ERROR_INVALID_CONTEXT, cuCtxSetCurrent(made));
  CHECK_CU(cuMemGetInfo_v2(&after, &total));
  EXPECT_EQ(before, after);
  unsigned flags = 0;
  int active = 0;
  CHECK_CU(cuDevicePrimaryCtxGetState(0, &flags, &active));
  EXPECT_EQ(1, active);
  CHECK_CU(cuDevicePrimaryCtxRelease_v2(0));
  CHECK_CU(cuDevicePrimaryCtxGetState(0, &flags, &active));
  EXPECT_EQ(0, active);
  EXPECT_EQ(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemAlloc_v2(&p, 16));
}

TEST(Device, ProcessesWithOneFileShareItsMemory) {
  const std::string path = std::filesystem::temp_directory_path() / "softgpu-shared-XXXXXX";
  std::string name = path;
  const int fd = mkstemp(name.data());
  ASSERT_GE(fd, 0);
  close(fd);
  EXPECT_TRUE(child("SeesWhatOthersHave", {{"SLUICE_SOFTGPU_SHARED_FILE", name},
                                           {"SLUICE_SOFTGPU_MEMORY_MIB", "64"},
                                           {"SLUICE_SOFTGPU_CONTEXT_MIB", "8"},
                                           {"SLUICE_TEST_HELD", "0"}}));
  EXPECT_FALSE(child("NoDevice", {{"SLUICE_SOFTGPU_SHARED_FILE", name + "-is-not-there"}}));
  std::filesystem::remove(name);
}

}  // namespace
}  // namespace sluice::softgpu_test
