// SPDX-License-Identifier: Apache-2.0
// What goes wrong goes wrong as in CUDA: which error, at which call, and whether it stays.
#include "compiled.h"

namespace sluice::softgpu_test {
namespace {

class Errors : public GpuTest {
 protected:
  // A fresh primary context after one was killed.
  void restart() {
    TearDown();
    SetUp();
  }
};

const char* kWriteFirst = "st.global.u32 [%out], %r_tid;";

TEST_F(Errors, OutOfBoundsIsIllegalAddressAndStays) {
  CUfunction f = function(load(one_kernel("st.global.u32 [%out+1073741824], %r_tid;")), "f");
  Buffer<int> out(4);
  CHECK_CU(launch(f, 1, 1, 0, nullptr, out.get(), out.get()));
  EXPECT_EQ(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
  EXPECT_EQ(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
  CUdeviceptr p = 0;
  EXPECT_EQ(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemAlloc_v2(&p, 16));
  EXPECT_EQ(CUDA_ERROR_ILLEGAL_ADDRESS, launch(f, 1, 1, 0, nullptr, out.get(), out.get()));
  EXPECT_EQ(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamQuery(nullptr));
  restart();
  CUfunction again = function(load(one_kernel(kWriteFirst)), "f");
  Buffer<int> fresh(4);
  CHECK_CU(launch(again, 1, 1, 0, nullptr, fresh.get(), fresh.get()));
  EXPECT_EQ(CUDA_SUCCESS, cuCtxSynchronize());
}

TEST_F(Errors, EachFaultHasItsOwnResult) {
  struct Case {
    const char* body;
    CUresult wanted;
  } cases[] = {
      {"st.global.u32 [%out+2], %r_tid;", CUDA_ERROR_MISALIGNED_ADDRESS},
      {"ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%out+4];", CUDA_ERROR_MISALIGNED_ADDRESS},
      {"trap;", CUDA_ERROR_LAUNCH_FAILED},
      {"mov.u64 %rd1, 0; ld.global.u32 %r1, [%rd1];", CUDA_ERROR_ILLEGAL_ADDRESS},
      {"mov.u64 %rd1, 0; ld.u32 %r1, [%rd1];", CUDA_ERROR_ILLEGAL_ADDRESS},
      {"mov.u32 %r1, 64; st.shared.u32 [%r1], %r_tid;", CUDA_ERROR_ILLEGAL_ADDRESS},
      {"setp.eq.u32 %p1, %r_tid, 0; @%p1 bar.sync 1, 64;", CUDA_ERROR_LAUNCH_FAILED},
  };
  for (const Case& c : cases) {
    CUfunction f = function(load(one_kernel(c.body)), "f");
    CUdeviceptr out = 0;
    CHECK_CU(cuMemAlloc_v2(&out, 64));
    CHECK_CU(launch(f, 1, 32, 0, nullptr, out, out));
    EXPECT_EQ(c.wanted, cuCtxSynchronize()) << c.body;
    restart();
  }
}

TEST_F(Errors, BadConfigurationsAreRefusedAtOnceAndDoNotStay) {
  CUfunction f = function(load(one_kernel(kWriteFirst)), "f");
  Buffer<int> out(4);
  CUdeviceptr p = out.get();
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, launch(f, 0, 1, 0, nullptr, p, p));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, launch(f, 1, 0, 0, nullptr, p, p));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, launch(f, 1, 1025, 0, nullptr, p, p));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, launch(f, 1, 1, 49153, nullptr, p, p));
  EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE,
            launch(reinterpret_cast<CUfunction>(0x1234), 1, 1, 0, nullptr, p, p));
  EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE,
            launch(f, 1, 1, 0, reinterpret_cast<CUstream>(0x1234), p, p));
  CHECK_CU(cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 100 << 10));
  EXPECT_EQ(CUDA_SUCCESS, launch(f, 1, 1, 100 << 10, nullptr, p, p));
  EXPECT_EQ(CUDA_SUCCESS, cuCtxSynchronize());
}

TEST_F(Errors, UnknownInstructionsAreRefusedAtLoadWithLineAndOpcode) {
  char log[512] = "";
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {log, reinterpret_cast<void*>(sizeof log)};
  CUmodule module = nullptr;
  std::string ptx = one_kernel("frobnicate.u32 %r1, %r2;");
  EXPECT_EQ(CUDA_ERROR_INVALID_PTX, cuModuleLoadDataEx(&module, ptx.c_str(), 2, options, values));
  EXPECT_NE(std::string::npos, std::string(log).find("frobnicate.u32")) << log;
  EXPECT_NE(std::string::npos, std::string(log).find("line 10")) << log;
  ptx = one_kernel("add.u32.rumpelstilz %r1, %r2, %r3;");
  EXPECT_EQ(CUDA_ERROR_INVALID_PTX, cuModuleLoadData(&module, ptx.c_str()));
  ptx = one_kernel("");
  ptx.replace(ptx.find("8.4"), 3, "9.9");
  EXPECT_EQ(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, cuModuleLoadData(&module, ptx.c_str()));
  ptx = one_kernel("");
  ptx.replace(ptx.find("sm_90"), 5, "sm_120");
  EXPECT_EQ(CUDA_ERROR_NO_BINARY_FOR_GPU, cuModuleLoadData(&module, ptx.c_str()));
  EXPECT_EQ(CUDA_ERROR_INVALID_IMAGE, cuModuleLoadData(&module, "hello"));
}

TEST_F(Errors, UnmappingUnderARunningKernelEndsTheContextAndNotTheProcess) {
  CUdeviceptr window = 0;
  CHECK_CU(cuMemAddressReserve(&window, 2 << 20, 0, 0, 0));
  CUmemAllocationProp prop = {};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemGenericAllocationHandle handle = 0;
  CHECK_CU(cuMemCreate(&handle, 2 << 20, &prop, 0));
  CHECK_CU(cuMemMap(window, 2 << 20, 0, handle, 0));
  CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CHECK_CU(cuMemSetAccess(window, 2 << 20, &access, 1));
  CUfunction f =
      function(load(one_kernel("WAIT: ld.volatile.global.u32 %r1, [%out]; setp.eq.u32 %p1, %r1, 0;"
                               "@%p1 bra WAIT;")),
               "f");
  CHECK_CU(launch(f, 4, 64, 0, nullptr, window, window));
  EXPECT_EQ(CUDA_ERROR_NOT_READY, cuStreamQuery(nullptr));
  CHECK_CU(cuMemUnmap(window, 2 << 20));
  EXPECT_EQ(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
  CHECK_CU(cuMemRelease(handle));
  CHECK_CU(cuMemAddressFree(window, 2 << 20));
}

TEST_F(Errors, NamesAndTexts) {
  const char* text = nullptr;
  CHECK_CU(cuGetErrorName(CUDA_ERROR_ILLEGAL_ADDRESS, &text));
  EXPECT_STREQ("CUDA_ERROR_ILLEGAL_ADDRESS", text);
  CHECK_CU(cuGetErrorString(CUDA_ERROR_ILLEGAL_ADDRESS, &text));
  EXPECT_STREQ("an illegal memory access was encountered", text);
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuGetErrorName(static_cast<CUresult>(12345), &text));
}

class CompiledErrors : public Compiled {};
INSTANTIATE_TEST_SUITE_P(Architectures, CompiledErrors, ::testing::Values(80, 90),
                         [](const auto& info) { return "compute_" + std::to_string(info.param); });

TEST_P(CompiledErrors, DeviceAssertsEndTheContext) {
  std::vector<int> in(32, 1);
  in[3] = -1;
  CUdeviceptr data = 0;
  CHECK_CU(cuMemAlloc_v2(&data, 128));
  CHECK_CU(cuMemcpyHtoD_v2(data, in.data(), 128));
  ::testing::internal::CaptureStderr();
  CHECK_CU(launch(kernel("check_all"), 1, 32, 0, nullptr, data));
  EXPECT_EQ(CUDA_ERROR_ASSERT, cuCtxSynchronize());
  std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(std::string::npos, said.find("in[threadIdx.x] >= 0")) << said;
}

}  // namespace
}  // namespace sluice::softgpu_test
