// SPDX-License-Identifier: Apache-2.0
// Tests on kernels/programs.cu as nvcc compiled it, once per architecture. Without nvcc they skip.
#pragma once

#include "gpu.h"

namespace sluice::softgpu_test {

class Compiled : public GpuTest, public ::testing::WithParamInterface<int> {
 protected:
  void SetUp() override {
    std::string path = std::string(SLUICE_SOFTGPU_COMPILED_DIR) + "/programs." +
                       std::to_string(GetParam()) + ".ptx";
    if (!std::ifstream(path).good()) GTEST_SKIP() << "nvcc was not there to compile " << path;
    GpuTest::SetUp();
    module_ = load(read_text(path));
  }
  void TearDown() override {
    if (module_) GpuTest::TearDown();
  }
  CUfunction kernel(const char* name) { return function(module_, name); }

  CUmodule module_ = nullptr;
};

}  // namespace sluice::softgpu_test
