// SPDX-License-Identifier: Apache-2.0
// cuGetProcAddress: versions, the per-thread default stream, and names that there are not.
#include <gtest/gtest.h>

#include <cstring>

#include "abi/cuda_driver.h"

namespace {

struct Row {
  const char* symbol;
  int version;
  bool per_thread;
  void* function;
};
const Row kRows[] = {
#define SLUICE_PROC_ADDRESS(symbol, version, per_thread, exported) \
  {#symbol, version, per_thread, reinterpret_cast<void*>(&exported)},
#include "abi/proc_address.inc"
#undef SLUICE_PROC_ADDRESS
};

constexpr cuuint64_t kLegacy = CU_GET_PROC_ADDRESS_LEGACY_STREAM;
constexpr cuuint64_t kPerThread = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;

template <class F>
void* address(F* f) {
  return reinterpret_cast<void*>(f);
}

struct Answer {
  CUresult result;
  void* function;
  CUdriverProcAddressQueryResult status;
};
Answer ask(const char* symbol, int version, cuuint64_t flags = 0) {
  Answer a{CUDA_ERROR_UNKNOWN, &a, CU_GET_PROC_ADDRESS_SUCCESS};
  a.result = cuGetProcAddress_v2(symbol, &a.function, version, flags, &a.status);
  return a;
}

TEST(ProcAddress, EveryRowIsFoundAtItsVersion) {
  ASSERT_GT(std::size(kRows), 400u);
  for (const Row& r : kRows) {
    const Answer a = ask(r.symbol, r.version, r.per_thread ? kPerThread : kLegacy);
    EXPECT_EQ(a.result, CUDA_SUCCESS) << r.symbol << " " << r.version;
    EXPECT_EQ(a.status, CU_GET_PROC_ADDRESS_SUCCESS);
    EXPECT_EQ(a.function, r.function)
        << r.symbol << " " << r.version << (r.per_thread ? " per thread" : "");
  }
}

TEST(ProcAddress, WhatGraphicsHeadersDeclareIsThereAndNotSupported) {
  const Answer a = ask("cuGraphicsGLRegisterImage", 13000);
  ASSERT_EQ(a.result, CUDA_SUCCESS);
  EXPECT_EQ(reinterpret_cast<int (*)()>(a.function)(), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(ask("cuGLCtxCreate", 2000).result, CUDA_SUCCESS);
  EXPECT_NE(ask("cuGLCtxCreate", 2000).function, ask("cuGLCtxCreate", 3020).function);
  EXPECT_EQ(ask("cuEGLStreamConsumerConnect", 6050).status,
            CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
}

TEST(ProcAddress, EveryNameIsUnknownBeforeItsFirstVersion) {
  for (size_t i = 0; i < std::size(kRows); ++i) {
    const Row& r = kRows[i];
    if (r.per_thread || (i > 0 && std::strcmp(kRows[i - 1].symbol, r.symbol) == 0)) continue;
    const Answer a = ask(r.symbol, r.version - 1);
    EXPECT_EQ(a.result, CUDA_ERROR_NOT_FOUND) << r.symbol;
    EXPECT_EQ(a.function, nullptr);
    EXPECT_EQ(a.status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT) << r.symbol;
  }
}

TEST(ProcAddress, AVersionChoosesAmongVariants) {
  EXPECT_EQ(ask("cuMemAlloc", 3020).function, address(cuMemAlloc_v2));
  EXPECT_EQ(ask("cuMemAlloc", 13000).function, address(cuMemAlloc_v2));
  EXPECT_EQ(ask("cuGetProcAddress", 12000).function, address(cuGetProcAddress_v2));
  EXPECT_EQ(ask("cuGetProcAddress", 11030).function, address(cuGetProcAddress));
  EXPECT_EQ(ask("cuDeviceGetUuid", 13000).function, address(cuDeviceGetUuid_v2));
  EXPECT_EQ(ask("cuCtxCreate", 13000).function, address(cuCtxCreate_v4));
}

TEST(ProcAddress, ThePerThreadStreamIsAskedForByFlag) {
  EXPECT_EQ(ask("cuLaunchKernel", 13000, kLegacy).function, address(cuLaunchKernel));
  EXPECT_EQ(ask("cuLaunchKernel", 13000).function, address(cuLaunchKernel));
  EXPECT_EQ(ask("cuLaunchKernel", 13000, kPerThread).function, address(cuLaunchKernel_ptsz));
  EXPECT_EQ(ask("cuMemcpy", 13000, kPerThread).function, address(cuMemcpy_ptds));
  EXPECT_EQ(ask("cuDeviceGet", 13000, kPerThread).function, address(cuDeviceGet))
      << "has no such variant";
}

TEST(ProcAddress, UnknownNamesAndBadQuestions) {
  for (const char* name :
       {"", "cu", "cuNothing", "cuMemAlloc_v2x", "cuLaunchKerne", "zzz", "CUMEMALLOC", "main"}) {
    const Answer a = ask(name, 13000);
    EXPECT_EQ(a.result, CUDA_ERROR_NOT_FOUND) << name;
    EXPECT_EQ(a.function, nullptr) << name;
    EXPECT_EQ(a.status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND) << name;
  }
  void* f = nullptr;
  EXPECT_EQ(cuGetProcAddress_v2(nullptr, &f, 13000, 0, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGetProcAddress_v2("cuInit", nullptr, 13000, 0, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGetProcAddress_v2("cuInit", &f, 13000, 4, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuGetProcAddress_v2("cuInit", &f, 13000, 0, nullptr), CUDA_SUCCESS)
      << "the status is not a must";
  EXPECT_EQ(f, address(cuInit));
}

}  // namespace
