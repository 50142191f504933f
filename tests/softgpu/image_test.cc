// SPDX-License-Identifier: Apache-2.0
// Modules and libraries out of PTX text, fat binaries and broken images.
#include <cstring>
#include <filesystem>
#include <random>

#include "gpu.h"
#include "image_format.h"

namespace sluice::softgpu_test {
namespace {

class Images : public GpuTest {
 protected:
  // The fat binary that nvcc made of kernels/programs.cu; empty if it was not there.
  static std::string fat_binary(const char* kind) {
    std::string path = std::string(SLUICE_SOFTGPU_COMPILED_DIR) + "/programs." + kind + ".fatbin";
    return std::ifstream(path).good() ? read_text(path) : "";
  }
};

// A container as documented by what nvcc writes: header, then one entry with PTX.
std::string container(const std::string& ptx, uint32_t arch, uint16_t kind, uint64_t flags) {
  std::string payload = ptx;
  payload.resize((payload.size() + 8) / 8 * 8, '\0');
  std::string image;
  auto put = [&](auto value) { image.append(reinterpret_cast<char*>(&value), sizeof value); };
  put(uint32_t{0xBA55ED50});
  put(uint16_t{1});
  put(uint16_t{16});
  put(uint64_t{64 + payload.size()});
  put(kind);
  put(uint16_t{0x0101});
  put(uint32_t{64});
  put(uint64_t{payload.size()});
  put(uint32_t{0});
  put(uint32_t{0});
  put(uint16_t{0});
  put(uint16_t{9});
  put(arch);
  put(uint32_t{0});
  put(uint32_t{0});
  put(flags);
  put(uint64_t{0});
  put(uint64_t{0});
  return image + payload;
}

TEST_F(Images, FatBinariesGiveTheirPtx) {
  std::string image = container(hand_written("vector_add"), 80, 1, 0);
  CUmodule module = nullptr;
  CHECK_CU(cuModuleLoadData(&module, image.data()));
  function(module, "vector_add");
  unsigned count = 0;
  CHECK_CU(cuModuleGetFunctionCount(&count, module));
  EXPECT_EQ(1u, count);
  CHECK_CU(cuModuleUnload(module));
  EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE, cuModuleGetFunctionCount(&count, module));
  struct {
    uint32_t magic = 0x466243b1, version = 1;
    const void* data = nullptr;
    const void* unused = nullptr;
  } wrapper;
  wrapper.data = image.data();
  CHECK_CU(cuModuleLoadData(&module, &wrapper));
}

TEST_F(Images, WhatHoldsNoReadablePtxIsRefused) {
  CUmodule module = nullptr;
  std::string compressed = container(hand_written("vector_add"), 80, 1, 0x2000);
  EXPECT_EQ(CUDA_ERROR_NO_BINARY_FOR_GPU, cuModuleLoadData(&module, compressed.data()));
  std::string machine_code = container("code", 80, 2, 0);
  EXPECT_EQ(CUDA_ERROR_NO_BINARY_FOR_GPU, cuModuleLoadData(&module, machine_code.data()));
  std::string too_new = container(hand_written("vector_add"), 120, 1, 0);
  EXPECT_EQ(CUDA_ERROR_NO_BINARY_FOR_GPU, cuModuleLoadData(&module, too_new.data()));
  std::string cubin(
      "\x7f"
      "ELF rest of it",
      16);
  EXPECT_EQ(CUDA_ERROR_NO_BINARY_FOR_GPU, cuModuleLoadData(&module, cubin.data()));
  EXPECT_EQ(CUDA_ERROR_FILE_NOT_FOUND, cuModuleLoad(&module, "/nowhere/at/all.ptx"));
}

TEST_F(Images, NvccsOwnContainersAreReadHoweverTheyArePacked) {
  for (const char* kind : {"plain", "compressed", "fast"}) {
    std::string image = fat_binary(kind);
    if (image.empty()) GTEST_SKIP() << "nvcc was not there to make fat binaries";
    CUmodule module = nullptr;
    CHECK_CU(cuModuleLoadData(&module, image.data()));
    function(module, "matmul");
  }
}

TEST_F(Images, WhatDoesNotUnpackAsItSaysIsRefused) {
  const std::string image = fat_binary("fast");
  if (image.empty()) GTEST_SKIP() << "nvcc was not there to make fat binaries";
  CUmodule module = nullptr;
  const size_t text = sizeof(fat_binary::Container) + sizeof(fat_binary::Part);
  for (size_t at = text; at < text + 64; ++at) {
    std::string other = image;
    other[at] = static_cast<char>(other[at] ^ 0x55);
    const CUresult loaded = cuModuleLoadData(&module, other.data());
    EXPECT_TRUE(loaded == CUDA_SUCCESS || loaded == CUDA_ERROR_NO_BINARY_FOR_GPU ||
                loaded == CUDA_ERROR_INVALID_PTX || loaded == CUDA_ERROR_INVALID_IMAGE)
        << loaded;
  }
  fat_binary::Part part;
  for (const uint64_t bytes : {uint64_t{0}, ~uint64_t{0}, uint64_t{7}}) {
    std::string other = image;
    std::memcpy(&part, other.data() + sizeof(fat_binary::Container), sizeof part);
    part.unpacked_bytes = bytes;
    std::memcpy(other.data() + sizeof(fat_binary::Container), &part, sizeof part);
    EXPECT_EQ(CUDA_ERROR_NO_BINARY_FOR_GPU, cuModuleLoadData(&module, other.data())) << bytes;
  }
}

TEST_F(Images, LibrariesServeKernelsInEveryContext) {
  std::string ptx = hand_written("vector_add");
  CUlibrary library = nullptr;
  CHECK_CU(cuLibraryLoadData(&library, ptx.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  CUkernel kernel = nullptr;
  CHECK_CU(cuLibraryGetKernel(&kernel, library, "vector_add"));
  EXPECT_EQ(CUDA_ERROR_NOT_FOUND, cuLibraryGetKernel(&kernel, library, "other"));
  CHECK_CU(cuLibraryGetKernel(&kernel, library, "vector_add"));
  unsigned count = 0;
  CHECK_CU(cuLibraryGetKernelCount(&count, library));
  EXPECT_EQ(1u, count);
  const char* name = nullptr;
  CHECK_CU(cuKernelGetName(&name, kernel));
  EXPECT_STREQ("vector_add", name);
  size_t offset = 0, size = 0;
  CHECK_CU(cuKernelGetParamInfo(kernel, 3, &offset, &size));
  EXPECT_EQ(24u, offset);
  EXPECT_EQ(4u, size);
  CUcontext other = nullptr;
  CHECK_CU(cuCtxCreate_v2(&other, 0, 0));
  {
    std::vector<float> ones(64, 1.0f);
    Buffer<float> a(ones), b(ones), c(64);
    CHECK_CU(launch(reinterpret_cast<CUfunction>(kernel), 1, 64, 0, nullptr, a.get(), b.get(),
                    c.get(), 64u));
    CHECK_CU(cuCtxSynchronize());
    EXPECT_EQ(2.0f, c.read()[63]);
  }
  CHECK_CU(cuCtxDestroy_v2(other));
  CHECK_CU(cuLibraryUnload(library));
  EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE, cuKernelGetName(&name, kernel));
}

TEST_F(Images, OccupancyFollowsThreadsAndSharedMemory) {
  CUfunction f = function(load(hand_written("vector_add")), "vector_add");
  int blocks = 0;
  CHECK_CU(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, f, 256, 0));
  EXPECT_EQ(8, blocks);
  CHECK_CU(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, f, 32, 40 << 10));
  EXPECT_EQ(5, blocks);
  int grid = 0, block = 0;
  CHECK_CU(cuOccupancyMaxPotentialBlockSize(&grid, &block, f, nullptr, 0, 0));
  EXPECT_EQ(1024, block);
  int threads = 0;
  CHECK_CU(cuFuncGetAttribute(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, f));
  EXPECT_EQ(1024, threads);
}

// Broken texts are refused or load; they never take the process down.
TEST_F(Images, MutatedPtxNeverCrashes) {
  std::vector<std::string> seeds = {hand_written("vector_add"), hand_written("instructions")};
  for (int arch : {75, 90}) {
    std::string path =
        std::string(SLUICE_SOFTGPU_COMPILED_DIR) + "/programs." + std::to_string(arch) + ".ptx";
    if (std::ifstream(path).good()) seeds.push_back(read_text(path).substr(0, 40'000));
  }
  std::mt19937 random(20'26);
  auto below = [&](size_t n) { return n == 0 ? 0 : random() % n; };
  const std::string letters = "{}[]();:,.%<>|@!+-0123456789abfrdpux_$\"/*\n ";
  int loaded = 0;
  for (int round = 0; round < 1500; ++round) {
    std::string text = seeds[below(seeds.size())];
    if (text.size() > 4'000 && round % 8 != 0) {
      // Short pieces mutate more deeply: keep the header and one stretch.
      size_t from = below(text.size());
      text = ".version 9.0\n.target sm_90\n.address_size 64\n" + text.substr(from, 2'000);
    }
    for (size_t change = 0; change < 1 + below(6); ++change) {
      size_t at = below(text.size());
      switch (below(5)) {
        case 0:
          text[at] = letters[below(letters.size())];
          break;
        case 1:
          text.erase(at, 1 + below(20));
          break;
        case 2:
          text.insert(at, 1, letters[below(letters.size())]);
          break;
        case 3:
          text.insert(at, text.substr(below(text.size()), below(60)));
          break;
        default:
          text.resize(at);
          break;
      }
      if (text.empty()) text = ".version";
    }
    CUmodule module = nullptr;
    CUresult result = cuModuleLoadData(&module, text.c_str());
    if (result == CUDA_SUCCESS) {
      ++loaded;
      cuModuleUnload(module);
    }
  }
  EXPECT_GT(loaded, 0);
  EXPECT_EQ(CUDA_SUCCESS, cuCtxSynchronize());
}

}  // namespace
}  // namespace sluice::softgpu_test
