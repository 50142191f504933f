// SPDX-License-Identifier: Apache-2.0
// Functions that need no frame of their own: batches of copies, the launch interface of CUDA 2,
// CUDA's log, core dump settings, and what is refused because a vGPU has not got it.
#include <unistd.h>

#include <array>
#include <cstdio>
#include <numeric>

#include "client/core/log.h"
#include "tests/native/roundtrip/loopback_session.h"

namespace sluice::test {
namespace {

using Bytes = std::vector<std::byte>;

class Batches : public RoundTrip {
 protected:
  Bytes random_bytes(size_t n) {
    Bytes b(n);
    for (std::byte& x : b) x = static_cast<std::byte>(next());
    return b;
  }
  Bytes on_device(uint64_t at, size_t n) { return recording().memory.read(at, n); }
  static CUmemcpyAttributes in_order(CUmemcpySrcAccessOrder order) {
    CUmemcpyAttributes a{};
    a.srcAccessOrder = order;
    return a;
  }
  bool synchronized() { return !recording().calls_of("cuStreamSynchronize").empty(); }
};

TEST_F(Batches, EachCopyGoesItsWay) {
  const Bytes there = random_bytes(64), here = random_bytes(64);
  Bytes back(64);
  const CUdeviceptr d = world().memory;
  recording().memory.write(d + 4096, there.data(), 64);
  CUdeviceptr to[] = {d, reinterpret_cast<CUdeviceptr>(back.data()), d + 8192};
  CUdeviceptr from[] = {reinterpret_cast<CUdeviceptr>(here.data()), d + 4096, d + 4096};
  size_t sizes[] = {64, 64, 32}, firsts[] = {0, 2};
  CUmemcpyAttributes attributes[] = {in_order(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM),
                                     in_order(CU_MEMCPY_SRC_ACCESS_ORDER_ANY)};
  ASSERT_EQ(cuMemcpyBatchAsync_v2(to, from, sizes, 3, attributes, firsts, 2, world().stream),
            CUDA_SUCCESS);
  EXPECT_EQ(on_device(d, 64), here);
  EXPECT_EQ(back, there);
  EXPECT_EQ(on_device(d + 8192, 32), Bytes(there.begin(), there.begin() + 32));
}

TEST_F(Batches, ASourceOfTheCallIsReadInTheCall) {
  void* pinned = nullptr;
  ASSERT_EQ(cuMemHostAlloc(&pinned, 64, 0), CUDA_SUCCESS);
  CUdeviceptr to[] = {world().memory}, from[] = {reinterpret_cast<CUdeviceptr>(pinned)};
  size_t sizes[] = {64}, firsts[] = {0};
  CUmemcpyAttributes ephemeral = in_order(CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL);
  ASSERT_EQ(cuMemcpyBatchAsync_v2(to, from, sizes, 1, &ephemeral, firsts, 1, world().stream),
            CUDA_SUCCESS);
  EXPECT_TRUE(synchronized()) << "the GPU reads pinned memory when the stream comes to it";
  EXPECT_EQ(cuMemFreeHost(pinned), CUDA_SUCCESS);
}

TEST_F(Batches, WhatIsWrongIsSaid) {
  const CUdeviceptr nobodys = world().memory + (uint64_t{1} << 40);
  CUdeviceptr to[] = {world().memory, nobodys, world().memory};
  CUdeviceptr from[] = {world().memory + 64, world().memory + 64, world().memory + 64};
  size_t sizes[] = {8, 8, 8}, firsts[] = {0, 1}, failed = 77;
  CUmemcpyAttributes fine = in_order(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM), none{};
  const auto batch = [&](CUmemcpyAttributes* a, size_t* first, size_t n, CUstream stream) {
    return cuMemcpyBatchAsync(to, from, sizes, 3, a, first, n, &failed, stream);
  };
  EXPECT_EQ(batch(&fine, firsts, 1, world().stream), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(failed, 1u) << "the second copy's address is nobody's";
  EXPECT_EQ(batch(&none, firsts, 1, world().stream), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(failed, ~size_t{0});
  EXPECT_EQ(batch(&fine, firsts + 1, 1, world().stream), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(batch(&fine, firsts, 0, world().stream), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(batch(&fine, firsts, 1, nullptr), CUDA_ERROR_INVALID_VALUE);
  CUmemcpyAttributes two[] = {fine, fine};
  size_t backwards[] = {0, 0};
  EXPECT_EQ(batch(two, backwards, 2, world().stream), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Batches, Boxes) {
  const Bytes data = random_bytes(6 * 4 * 2);
  Bytes expected(10 * 8 * 2);
  recording().memory.write(world().memory, expected.data(), expected.size());
  CUDA_MEMCPY3D_BATCH_OP op{};
  op.src.type = op.dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
  op.src.op.ptr.ptr = reinterpret_cast<CUdeviceptr>(data.data());  // packed
  op.dst.op.ptr.ptr = world().memory;
  op.dst.op.ptr.rowLength = 10, op.dst.op.ptr.layerHeight = 8;
  op.extent = {6, 4, 2};
  op.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  ASSERT_EQ(cuMemcpy3DBatchAsync_v2(1, &op, 0, world().stream), CUDA_SUCCESS);
  for (size_t z = 0; z < 2; ++z)
    for (size_t y = 0; y < 4; ++y)
      std::memcpy(expected.data() + (z * 8 + y) * 10, data.data() + (z * 4 + y) * 6, 6);
  EXPECT_EQ(on_device(world().memory, expected.size()), expected);

  CUDA_MEMCPY3D_BATCH_OP ops[] = {op, op};
  ops[1].dst.op.ptr.rowLength = 5;
  size_t failed = 77;
  EXPECT_EQ(cuMemcpy3DBatchAsync(2, ops, &failed, 0, world().stream), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(failed, 1u);
  EXPECT_EQ(cuMemcpy3DBatchAsync_v2(1, &op, 1, world().stream), CUDA_ERROR_INVALID_VALUE);
  op.extent.depth = 0;
  EXPECT_EQ(cuMemcpy3DBatchAsync_v2(1, &op, 0, world().stream), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Batches, BetweenArrayAndMemory) {
  CUarray array;
  const CUDA_ARRAY_DESCRIPTOR shape{8, 4, CU_AD_FORMAT_FLOAT, 1};
  ASSERT_EQ(cuArrayCreate_v2(&array, &shape), CUDA_SUCCESS);
  const Bytes data = random_bytes(4 * 2 * sizeof(float));
  Bytes back(data.size());
  CUDA_MEMCPY3D_BATCH_OP op{};
  op.src.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
  op.src.op.ptr.ptr = reinterpret_cast<CUdeviceptr>(data.data());
  op.dst.type = CU_MEMCPY_OPERAND_TYPE_ARRAY;
  op.dst.op.array = {array, {2, 1, 0}};  // elements
  op.extent = {4, 2, 1};
  op.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  ASSERT_EQ(cuMemcpy3DBatchAsync_v2(1, &op, 0, world().stream), CUDA_SUCCESS);
  std::swap(op.src, op.dst);
  op.dst.op.ptr.ptr = reinterpret_cast<CUdeviceptr>(back.data());
  ASSERT_EQ(cuMemcpy3DBatchAsync_v2(1, &op, 0, world().stream), CUDA_SUCCESS);
  EXPECT_EQ(back, data);
  CUarray plane;
  EXPECT_EQ(cuArrayGetPlane(&plane, array, 0), CUDA_ERROR_INVALID_VALUE);
  CUDA_ARRAY_SPARSE_PROPERTIES tiles;
  EXPECT_EQ(cuArrayGetSparseProperties(&tiles, array), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuArrayDestroy(array), CUDA_SUCCESS);
  EXPECT_EQ(cuArrayGetPlane(&plane, array, 0), CUDA_ERROR_INVALID_HANDLE);
}

class Local : public Batches {};

TEST_F(Local, SynchronousFunctionsWaitWhereTheyWereToldTo) {
  unsigned on = 1, off = 0, now = 7;
  const CUdeviceptr d = world().memory;
  ASSERT_EQ(cuMemcpyDtoD_v2(d, d + 64, 8), CUDA_SUCCESS);
  EXPECT_FALSE(recording().calls_of("cuMemcpyDtoDAsync_v2").empty());
  EXPECT_FALSE(synchronized());
  ASSERT_EQ(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, d + 5), CUDA_SUCCESS);
  ASSERT_EQ(cuPointerGetAttribute(&now, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, d), CUDA_SUCCESS);
  EXPECT_EQ(now, 1u);
  recording().clear();
  ASSERT_EQ(cuMemcpyDtoD_v2(d, d + 64, 8), CUDA_SUCCESS);
  EXPECT_TRUE(synchronized());
  recording().clear();
  ASSERT_EQ(cuMemsetD8_v2(d, 1, 8), CUDA_SUCCESS);
  EXPECT_TRUE(synchronized());
  recording().clear();
  ASSERT_EQ(cuMemsetD8Async(d, 1, 8, world().stream), CUDA_SUCCESS);
  EXPECT_FALSE(synchronized());
  ASSERT_EQ(cuPointerSetAttribute(&off, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, d), CUDA_SUCCESS);
  ASSERT_EQ(cuPointerGetAttribute(&now, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, d), CUDA_SUCCESS);
  EXPECT_EQ(now, 0u);
  EXPECT_EQ(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, 8),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_IS_MANAGED, d),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Local, TheOldLaunchInterface) {
  const CUfunction f = world().function;  // takes 8, 8 and 4 bytes
  std::array<unsigned, 7> shape{};
  Bytes arrived;
  ScopedAnswer a(SLUICE_ON(cuLaunchKernel),
                 [&](CUfunction g, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                     unsigned bz, unsigned shared, CUstream, void**, void** extra) {
                   EXPECT_EQ(g, driver_of(f));
                   shape = {gx, gy, gz, bx, by, bz, shared};
                   const auto* at = static_cast<const std::byte*>(extra[1]);
                   arrived.assign(at, at + *static_cast<size_t*>(extra[3]));
                   return CUDA_SUCCESS;
                 });
  CUdeviceptr pointer = world().memory;
  ASSERT_EQ(cuFuncSetBlockShape(f, 4, 2, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuFuncSetSharedSize(f, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuParamSetv(f, 0, &pointer, 8), CUDA_SUCCESS);
  ASSERT_EQ(cuParamSeti(f, 8, 7), CUDA_SUCCESS);
  EXPECT_EQ(cuLaunchGrid(f, 3, 2), CUDA_ERROR_INVALID_VALUE) << "parameters are missing";
  ASSERT_EQ(cuParamSetf(f, 16, 1.5f), CUDA_SUCCESS);
  ASSERT_EQ(cuParamSetSize(f, 20), CUDA_SUCCESS);
  ASSERT_EQ(cuLaunchGridAsync(f, 3, 2, world().stream), CUDA_SUCCESS);
  EXPECT_EQ(shape, (std::array<unsigned, 7>{3, 2, 1, 4, 2, 1, 0}));
  ASSERT_EQ(arrived.size(), 20u);
  unsigned seven;
  float half;
  EXPECT_EQ(std::memcmp(arrived.data(), &pointer, 8), 0);
  std::memcpy(&seven, arrived.data() + 8, 4);
  std::memcpy(&half, arrived.data() + 16, 4);
  EXPECT_EQ(seven, 7u);
  EXPECT_EQ(half, 1.5f);
  EXPECT_EQ(cuFuncSetBlockShape(f, 0, 1, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuParamSeti(f, -4, 7), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuParamSetv(f, 32760, &pointer, 8), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuLaunch(reinterpret_cast<CUfunction>(world().module)), CUDA_ERROR_INVALID_HANDLE);
}

struct Heard {
  int times = 0;
  std::string text;
};

TEST_F(Local, TheLogGivesWhatWasSaid) {
  Heard heard;
  CUlogsCallbackHandle handle = nullptr;
  const auto listen = [](void* data, CUlogLevel level, char* message, size_t n) {
    auto* to = static_cast<Heard*>(data);
    EXPECT_EQ(level, CU_LOG_LEVEL_ERROR);
    ++to->times;
    to->text.assign(message, n);
  };
  ASSERT_EQ(cuLogsRegisterCallback(listen, &heard, &handle), CUDA_SUCCESS);
  CUlogIterator from = 0;
  ASSERT_EQ(cuLogsCurrent(&from, 0), CUDA_SUCCESS);
  client::log_line(client::LogLevel::kInfo, "this is no error");
  client::log_line(client::LogLevel::kError, "the first thing" + std::string(100, '.'));
  client::log_line(client::LogLevel::kError, "the second thing");
  EXPECT_EQ(heard.times, 2);
  EXPECT_NE(heard.text.find("the second thing"), std::string::npos);
  CUlogIterator at = from;
  char text[1000];
  size_t size = sizeof text;
  ASSERT_EQ(cuLogsDumpToMemory(&at, text, &size, 0), CUDA_SUCCESS);
  EXPECT_EQ(size, std::strlen(text));
  const std::string all = text;
  EXPECT_LT(all.find("the first thing"), all.find("the second thing"));
  EXPECT_EQ(all.find("no error"), std::string::npos);
  size = sizeof text;
  ASSERT_EQ(cuLogsDumpToMemory(&at, text, &size, 0), CUDA_SUCCESS);
  EXPECT_EQ(size, 0u) << "the iterator moves on";
  // Room for one line and the word about the other.
  at = from;
  size = 150;
  ASSERT_EQ(cuLogsDumpToMemory(&at, text, &size, 0), CUDA_SUCCESS);
  EXPECT_NE(std::string(text).find("Older messages"), std::string::npos);
  EXPECT_EQ(std::string(text).find("the first thing"), std::string::npos);
  EXPECT_NE(std::string(text).find("the second thing"), std::string::npos);
  at = from;
  size = 10;
  EXPECT_EQ(cuLogsDumpToMemory(&at, text, &size, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(size, 0u);
  // To a file, and only what there is room for in the ring.
  for (int i = 0; i < 40; ++i)
    client::log_line(client::LogLevel::kError,
                     "line " + std::to_string(i) + std::string(1000, '.'));
  const std::string path = ::testing::TempDir() + "/cuda_log_" + std::to_string(getpid());
  ASSERT_EQ(cuLogsDumpToFile(nullptr, path.c_str(), 0), CUDA_SUCCESS);
  std::string file(60000, 0);
  FILE* f = std::fopen(path.c_str(), "r");
  ASSERT_NE(f, nullptr);
  file.resize(std::fread(file.data(), 1, file.size(), f));
  std::fclose(f);
  unlink(path.c_str());
  EXPECT_LE(file.size(), 25600u + 100);
  EXPECT_NE(file.find("line 39."), std::string::npos);
  EXPECT_EQ(file.find("line 1."), std::string::npos);
  EXPECT_NE(file.find("Older messages"), std::string::npos);
  ASSERT_EQ(cuLogsUnregisterCallback(handle), CUDA_SUCCESS);
  const int before = heard.times;
  client::log_line(client::LogLevel::kError, "nobody hears this");
  EXPECT_EQ(heard.times, before);
  EXPECT_EQ(cuLogsUnregisterCallback(handle), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuLogsCurrent(&at, 1), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Local, CoreDumpsStayOff) {
  bool on = true;
  size_t size = sizeof on;
  ASSERT_EQ(cuCoredumpGetAttribute(CU_COREDUMP_ENABLE_ON_EXCEPTION, &on, &size), CUDA_SUCCESS);
  EXPECT_FALSE(on);
  ASSERT_EQ(cuCoredumpSetAttribute(CU_COREDUMP_ENABLE_ON_EXCEPTION, &on, &size), CUDA_SUCCESS);
  on = true;
  EXPECT_EQ(cuCoredumpSetAttributeGlobal(CU_COREDUMP_ENABLE_ON_EXCEPTION, &on, &size),
            CUDA_ERROR_NOT_SUPPORTED);
  char name[1024] = "dump.%p";
  size = sizeof name;
  ASSERT_EQ(cuCoredumpSetAttributeGlobal(CU_COREDUMP_FILE, name, &size), CUDA_SUCCESS);
  char given[1024] = "";
  size = 0;
  ASSERT_EQ(cuCoredumpGetAttributeGlobal(CU_COREDUMP_FILE, nullptr, &size), CUDA_SUCCESS);
  EXPECT_EQ(size, std::strlen(name) + 1);
  ASSERT_EQ(cuCoredumpGetAttributeGlobal(CU_COREDUMP_FILE, given, &size), CUDA_SUCCESS);
  EXPECT_STREQ(given, name);
  EXPECT_EQ(cuCoredumpGetAttributeGlobal(CU_COREDUMP_MAX, given, &size), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Local, ADeviceIsFoundByAnySpellingOfItsBusId) {
  char text[32];
  ASSERT_EQ(cuDeviceGetPCIBusId(text, sizeof text, 1), CUDA_SUCCESS);
  EXPECT_STREQ(text, "0000:0B:00.0");
  for (const char* same : {"0000:0B:00.0", "0000:0b:00.0", "0000:0b:00", "0b:00.0"}) {
    CUdevice found = -1;
    EXPECT_EQ(cuDeviceGetByPCIBusId(&found, same), CUDA_SUCCESS) << same;
    EXPECT_EQ(found, 1) << same;
  }
  CUdevice found = -1;
  for (const char* other : {"0000:0C:00.0", "0001:0B:00.0", "0000:0B:00.1", "0B", ""})
    EXPECT_EQ(cuDeviceGetByPCIBusId(&found, other), CUDA_ERROR_INVALID_DEVICE) << other;
  EXPECT_EQ(found, -1);
}

TEST_F(Local, ContextsAreCounted) {
  CUcontext made = nullptr, again = nullptr, now = nullptr;
  ASSERT_EQ(cuCtxCreate_v3(&made, nullptr, 0, 0, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxAttach(&again, 0), CUDA_SUCCESS);
  EXPECT_EQ(again, made);
  ASSERT_EQ(cuCtxDetach(made), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxGetCurrent(&now), CUDA_SUCCESS);
  EXPECT_EQ(now, made);
  ASSERT_EQ(cuCtxDetach(made), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxDetach(made), CUDA_ERROR_INVALID_CONTEXT);
  CUexecAffinityParam affinity{};
  affinity.type = CU_EXEC_AFFINITY_TYPE_SM_COUNT;
  EXPECT_EQ(cuCtxCreate_v3(&made, &affinity, 1, 0, 0), CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY);
}

// What is refused and what the attributes say are one.
TEST_F(Local, AttributesAgreeWithRefusals) {
  const auto attribute = [](CUdevice_attribute a) {
    int value = -7;
    EXPECT_EQ(cuDeviceGetAttribute(&value, a, 0), CUDA_SUCCESS);
    return value;
  };
  EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED), 0);
  CUmulticastObjectProp property{};
  CUmemGenericAllocationHandle handle = 0;
  size_t granularity = 0;
  EXPECT_EQ(cuMulticastCreate(&handle, &property), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cuMulticastGetGranularity(&granularity, &property, CU_MULTICAST_GRANULARITY_MINIMUM),
            CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED), 0);
  int fd = -1;
  EXPECT_EQ(cuMemGetHandleForAddressRange(&fd, world().memory, 4096,
                                          CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0),
            CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK), 0);
  EXPECT_EQ(cuMemBatchDecompressAsync(nullptr, 1, 0, nullptr, world().stream),
            CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED), 0);
  EXPECT_EQ(cuMemMapArrayAsync(nullptr, 1, world().stream), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS), 0);
  void* pointer;
  EXPECT_EQ(cuLibraryGetUnifiedFunction(&pointer, world().library, "f"), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS), 0);
  EXPECT_EQ(cuFlushGPUDirectRDMAWrites(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                                       CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER),
            CUDA_ERROR_NOT_SUPPORTED);
  for (const auto a :
       {CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS,
        CU_DEVICE_ATTRIBUTE_TIMELINE_SEMAPHORE_INTEROP_SUPPORTED,
        CU_DEVICE_ATTRIBUTE_COOPERATIVE_MULTI_DEVICE_LAUNCH,
        CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED,
        CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES})
    EXPECT_EQ(attribute(a), 0) << a;
  for (const auto a :
       {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED,
        CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED})
    EXPECT_EQ(attribute(a), 1) << a << ", the client's own";
}

}  // namespace
}  // namespace sluice::test
