// SPDX-License-Identifier: Apache-2.0
// Which of NVIDIA's libraries serve a client of CUDA 12: its own version's where the node has them,
// else the newest's. The stand-ins of cuFFT are there under both SONAMEs, cuBLAS's under the
// newest.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <string>

#include "worker/library/library.h"

namespace sluice::worker {
namespace {

std::string file_of(void* function) {
  Dl_info info{};
  if (!function || dladdr(function, &info) == 0) return "";
  const std::string path = info.dli_fname;
  return path.substr(path.rfind('/') + 1);
}

TEST(OlderLibraries, AreTakenForTheirClientsWhereTheyAreInstalled) {
  Libraries::set_path({SLUICE_FAKE_LIBRARIES, SLUICE_FAKE_LIBRARIES "/cuda12"});
  Libraries& libraries = Libraries::get();
  libraries.set_client_version(12090);
  testing::internal::CaptureStderr();
  EXPECT_EQ(file_of(libraries.symbol("cufft", "cufftPlan1d")), "libcufft.so.11");
  EXPECT_EQ(file_of(libraries.symbol("cublas", "cublasCreate_v2")), "libcublas.so.13");
  EXPECT_EQ(file_of(libraries.symbol("cudnn", "cudnnCreate")), "libcudnn.so.9");
  libraries.symbol("cublas", "cublasDestroy_v2");
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("libcufft.so.11 for libcufft.so.11"), std::string::npos) << log;
  const std::string instead = "for a client of CUDA 12: there is no libcublas.so.12 on this node";
  const size_t said = log.find(instead);
  ASSERT_NE(said, std::string::npos) << log;
  EXPECT_EQ(log.find(instead, said + 1), std::string::npos) << "once: " << log;
}

}  // namespace
}  // namespace sluice::worker
