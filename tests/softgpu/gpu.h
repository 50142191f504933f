// SPDX-License-Identifier: Apache-2.0
// What the software GPU's tests share: a context per test, typed buffers, modules and launches.
// Used by every test in this folder; each test gets a fresh primary context and leaves none behind.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "abi/cuda_driver.h"

namespace sluice::softgpu_test {

inline std::string error_name(CUresult result) {
  const char* name = nullptr;
  cuGetErrorName(result, &name);
  return name ? name : std::to_string(result);
}

#define CHECK_CU(call) ASSERT_EQ(CUDA_SUCCESS, (call)) << #call

class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(CUDA_SUCCESS, cuInit(0));
    ASSERT_EQ(CUDA_SUCCESS, cuDeviceGet(&device_, 0));
    ASSERT_EQ(CUDA_SUCCESS, cuDevicePrimaryCtxRetain(&context_, device_));
    ASSERT_EQ(CUDA_SUCCESS, cuCtxSetCurrent(context_));
  }
  void TearDown() override {
    cuDevicePrimaryCtxReset_v2(device_);
    cuCtxSetCurrent(nullptr);
  }

  CUmodule load(const std::string& ptx) {
    char log[1024] = "";
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void* values[] = {log, reinterpret_cast<void*>(sizeof log)};
    CUmodule module = nullptr;
    CUresult result = cuModuleLoadDataEx(&module, ptx.c_str(), 2, options, values);
    EXPECT_EQ(CUDA_SUCCESS, result) << log;
    return module;
  }

  CUfunction function(CUmodule module, const char* name) {
    CUfunction found = nullptr;
    EXPECT_EQ(CUDA_SUCCESS, cuModuleGetFunction(&found, module, name)) << name;
    return found;
  }

  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
};

// Device memory holding values of T.
template <class T>
class Buffer {
 public:
  explicit Buffer(const std::vector<T>& values) : count_(values.size()) {
    allocate();
    EXPECT_EQ(CUDA_SUCCESS, cuMemcpyHtoD_v2(pointer_, values.data(), count_ * sizeof(T)));
  }
  explicit Buffer(size_t count) : count_(count) {
    allocate();
    EXPECT_EQ(CUDA_SUCCESS, cuMemsetD8_v2(pointer_, 0, count_ * sizeof(T)));
  }
  ~Buffer() { cuMemFree_v2(pointer_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  CUdeviceptr get() const { return pointer_; }
  std::vector<T> read() const {
    std::vector<T> values(count_);
    EXPECT_EQ(CUDA_SUCCESS, cuMemcpyDtoH_v2(values.data(), pointer_, count_ * sizeof(T)));
    return values;
  }

 private:
  void allocate() { EXPECT_EQ(CUDA_SUCCESS, cuMemAlloc_v2(&pointer_, count_ * sizeof(T))); }
  size_t count_;
  CUdeviceptr pointer_ = 0;
};

template <class... Arguments>
CUresult launch(CUfunction function, unsigned grid, unsigned block, unsigned shared,
                CUstream stream, Arguments... arguments) {
  void* params[] = {&arguments..., nullptr};
  return cuLaunchKernel(function, grid, 1, 1, block, 1, 1, shared, stream, params, nullptr);
}

inline std::string read_text(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

// A hand-written module of this folder.
inline std::string hand_written(const std::string& name) {
  return read_text(std::string(SLUICE_SOFTGPU_PTX_DIR) + "/" + name + ".ptx");
}

// A module with one kernel `f(.u64 out, .u64 in)` whose body works on the pointers %out and %in and
// the thread number %r_tid.
inline std::string one_kernel(const std::string& body, const std::string& declarations = "") {
  return ".version 8.4\n.target sm_90\n.address_size 64\n" + declarations +
         "\n.visible .entry f(.param .u64 p_out, .param .u64 p_in)\n{\n"
         ".reg .pred %p<16>; .reg .b16 %rs<16>; .reg .b32 %r<32>; .reg .b64 %rd<32>;\n"
         ".reg .f32 %f<16>; .reg .f64 %fd<16>; .reg .b32 %r_tid; .reg .b64 %out, %in, %offset;\n"
         "ld.param.u64 %out, [p_out]; ld.param.u64 %in, [p_in]; mov.u32 %r_tid, %tid.x;\n" +
         body + "\nret;\n}\n";
}

}  // namespace sluice::softgpu_test
