// SPDX-License-Identifier: Apache-2.0
// What code takes of a GPU is the vGPU's: variables, limits and local memory are charged before the
// driver is asked, refused as CUDA refuses them, and given back.
#include "client/objects/device.h"
#include "tests/native/roundtrip/loopback_session.h"
#include "worker/library/charge.h"

namespace sluice::test {
namespace {

std::string ptx_with(uint64_t bytes) {
  return ".version 7.8\n.target sm_90\n.address_size 64\n.visible .global .align 4 .b8 a[" +
         std::to_string(bytes) + "];\n.visible .entry k(){ret;}\n";
}

class CodeMemory : public RoundTrip {
 protected:
  static constexpr uint64_t kThreads = 1024, kBase = 1024;
  void SetUp() override {
    RoundTrip::SetUp();
    auto& l = vgpu().limits;
    l.threads = kThreads;
    l.base_bytes = kBase;
    l.thread_bytes = kBase;
    l.held = {{CU_LIMIT_MALLOC_HEAP_SIZE, {8 * kMiB, 8 * kMiB}}};
    device().record.thread_bytes = kBase;
    device().thread_bytes = kBase;
    begun_ = available();
    recording().clear();
  }
  void TearDown() override {
    EXPECT_EQ(available(), begun_) << "all was given back";
    device().record.thread_bytes = 0;
    device().thread_bytes = ~uint64_t{0};
    vgpu().limits.base_bytes = 0;
    vgpu().limits.thread_bytes = ~uint64_t{0};
    RoundTrip::TearDown();
  }
  worker::Vgpu& vgpu(size_t i = 0) { return *worker_session().vgpus[i]; }
  static client::Device& device() { return *client::Session::get()->devices()[0]; }
  static uint64_t available() {
    size_t free_bytes = 0, total = 0;
    EXPECT_EQ(cuMemGetInfo_v2(&free_bytes, &total), CUDA_SUCCESS);
    return free_bytes;
  }
  size_t asked(const char* function) { return recording().calls_of(function).size(); }
  CUfunction function_with(int local_bytes) {
    ScopedAnswer f(SLUICE_ON(cuFuncGetAttribute), [&](int* v, CUfunction_attribute a, CUfunction) {
      *v = a == CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES ? local_bytes : 1024;
      return CUDA_SUCCESS;
    });
    CUfunction function = nullptr;
    EXPECT_EQ(cuModuleGetFunction(&function, world().module, random_text(20).c_str()),
              CUDA_SUCCESS);
    return function;
  }
  static CUresult launch(CUfunction function, CUstream stream) {
    uint64_t a = 1, b = 2;
    uint32_t c = 3;
    void* params[] = {&a, &b, &c};
    return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, params, nullptr);
  }
  // Back to what comes with the context.
  static void reset_stack() { EXPECT_EQ(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, kBase), CUDA_SUCCESS); }

 private:
  uint64_t begun_ = 0;
};

TEST_F(CodeMemory, VariablesAreTheVgpusMemory) {
  const uint64_t before = available();
  CUmodule module = nullptr;
  EXPECT_EQ(cuModuleLoadData(&module, ptx_with(1024 * kMiB).c_str()), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(asked("cuModuleLoadDataEx"), 0u) << "refused before the driver loads it";
  EXPECT_EQ(available(), before);
  ASSERT_EQ(cuModuleLoadData(&module, ptx_with(3 * kMiB).c_str()), CUDA_SUCCESS);
  EXPECT_EQ(available(), before - 4 * kMiB) << "whole slabs, as the driver takes them";
  CUdeviceptr p = 0;
  EXPECT_EQ(cuMemAlloc_v2(&p, before - 2 * kMiB), CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(cuMemAlloc_v2(&p, before - 4 * kMiB), CUDA_SUCCESS);
  CUmodule other = nullptr;
  EXPECT_EQ(cuModuleLoadData(&other, ptx_with(4096).c_str()), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuMemFree_v2(p), CUDA_SUCCESS);
  ASSERT_EQ(cuModuleLoadData(&other, ptx_with(4096).c_str()), CUDA_SUCCESS);
  EXPECT_EQ(available(), before - 4 * kMiB - 4096);
  EXPECT_EQ(cuModuleUnload(other), CUDA_SUCCESS);
  EXPECT_EQ(cuModuleUnload(module), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
}

TEST_F(CodeMemory, ALibrarysVariablesMayComeToLieOnEachGpu) {
  const uint64_t before = vgpu(1).memory.taken(worker::MemoryUse::kLibrary);
  CUlibrary library = nullptr;
  const std::string image = ptx_with(3 * kMiB);
  ASSERT_EQ(cuLibraryLoadData(&library, image.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0),
            CUDA_SUCCESS);
  EXPECT_EQ(vgpu(0).memory.taken(worker::MemoryUse::kLibrary), 4 * kMiB);
  EXPECT_EQ(vgpu(1).memory.taken(worker::MemoryUse::kLibrary), before + 4 * kMiB);
  EXPECT_EQ(cuLibraryUnload(library), CUDA_SUCCESS);
  EXPECT_EQ(vgpu(1).memory.taken(worker::MemoryUse::kLibrary), before);
  // Room on one of them is not enough, and leaves nothing charged on the other.
  auto& s = worker_session();
  const uint64_t rest = vgpu(1).memory.room();
  ASSERT_TRUE(worker::take_for_library(s, vgpu(1), worker::Metered::kDevice, rest));
  EXPECT_EQ(cuLibraryLoadData(&library, image.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0),
            CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(vgpu(0).memory.taken(worker::MemoryUse::kLibrary), 0u);
  worker::give_for_library(s, vgpu(1), worker::Metered::kDevice, rest);
}

TEST_F(CodeMemory, AnImageThatWasNotLoadedIsNotCharged) {
  const uint64_t before = available(), code = vgpu().memory.taken(worker::MemoryUse::kCode);
  ScopedAnswer a(SLUICE_ON(cuModuleLoadDataEx), [](auto...) { return CUDA_ERROR_INVALID_PTX; });
  CUmodule module = nullptr;
  EXPECT_EQ(cuModuleLoadData(&module, ptx_with(3 * kMiB).c_str()), CUDA_ERROR_INVALID_PTX);
  EXPECT_EQ(available(), before);
  EXPECT_EQ(vgpu().memory.taken(worker::MemoryUse::kCode), code);
}

TEST_F(CodeMemory, SmallImagesAreChargedWhatTheDriverTakesForThem) {
  const uint64_t code = vgpu().memory.taken(worker::MemoryUse::kCode);
  CUmodule module = nullptr;
  ASSERT_EQ(cuModuleLoadData(&module, "x"), CUDA_SUCCESS);
  EXPECT_EQ(vgpu().memory.taken(worker::MemoryUse::kCode), code + (4 << 10));
  EXPECT_EQ(cuModuleUnload(module), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(vgpu().memory.taken(worker::MemoryUse::kCode), code);
}

TEST_F(CodeMemory, StacksAreChargedForEveryThreadThatTheGpuRuns) {
  const uint64_t before = available();
  EXPECT_EQ(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 9 * 1024), CUDA_SUCCESS);
  EXPECT_EQ(available(), before - 8 * kMiB);
  EXPECT_EQ(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 5 * 1024), CUDA_SUCCESS);
  EXPECT_EQ(available(), before - 4 * kMiB);
  recording().clear();
  EXPECT_EQ(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 400 * 1024), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 64ull << 30), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(asked("cuCtxSetLimit"), 0u);
  EXPECT_EQ(available(), before - 4 * kMiB);
  {
    ScopedAnswer a(SLUICE_ON(cuCtxSetLimit), [](auto...) { return CUDA_ERROR_NOT_PERMITTED; });
    EXPECT_EQ(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 9 * 1024), CUDA_ERROR_NOT_PERMITTED);
  }
  EXPECT_EQ(available(), before - 4 * kMiB) << "the driver has not done it";
  EXPECT_EQ(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 512), CUDA_SUCCESS);
  EXPECT_EQ(available(), before) << "what comes with a context is no credit";
}

TEST_F(CodeMemory, TheHeapIsChargedAsFarAsTheDriverTookIt) {
  const uint64_t before = available();
  ScopedAnswer now(SLUICE_ON(cuCtxGetLimit),
                   [](size_t* v, CUlimit) { return *v = 40 * kMiB, CUDA_SUCCESS; });
  EXPECT_EQ(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 108 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(available(), before - 32 * kMiB) << "it made less of it";
  recording().clear();
  EXPECT_EQ(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 64ull << 30), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(asked("cuCtxSetLimit"), 0u);
  {
    ScopedAnswer a(SLUICE_ON(cuCtxSetLimit), [](auto...) { return CUDA_ERROR_INVALID_VALUE; });
    EXPECT_EQ(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 8 * kMiB), CUDA_ERROR_INVALID_VALUE);
  }
  EXPECT_EQ(available(), before - 32 * kMiB) << "in use, it stays";
  ScopedAnswer small(SLUICE_ON(cuCtxGetLimit),
                     [](size_t* v, CUlimit) { return *v = 8 * kMiB, CUDA_SUCCESS; });
  EXPECT_EQ(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 8 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(available(), before);
}

TEST_F(CodeMemory, LocalMemoryIsTakenBeforeTheLaunchThatNeedsIt) {
  const uint64_t before = available();
  const CUfunction small = function_with(kBase), large = function_with(9 * 1024),
                   huge = function_with(400 * 1024), impossible = function_with(512 * 1024);
  const auto round_trips = [&] {
    return std::count(seen().begin(), seen().end(), wire::kLocalMemory);
  };
  seen().clear();
  EXPECT_EQ(launch(small, world().stream), CUDA_SUCCESS);
  EXPECT_EQ(round_trips(), 0);
  EXPECT_EQ(launch(large, world().stream), CUDA_SUCCESS);
  EXPECT_EQ(launch(large, world().stream), CUDA_SUCCESS);
  EXPECT_EQ(round_trips(), 1) << "once for both";
  EXPECT_EQ(available(), before - 8 * kMiB);
  recording().clear();
  EXPECT_EQ(launch(huge, world().stream), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(launch(impossible, world().stream), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(asked("cuLaunchKernel"), 0u);
  EXPECT_EQ(launch(large, world().stream), CUDA_SUCCESS) << "the session lives on";
  // The stack's limit is the same memory: what kernels made of it goes with it, until the next one.
  EXPECT_EQ(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 2 * 1024), CUDA_SUCCESS);
  EXPECT_EQ(available(), before - 2 * kMiB);
  EXPECT_EQ(launch(large, world().stream), CUDA_SUCCESS);
  EXPECT_EQ(available(), before - 8 * kMiB);
  reset_stack();
}

TEST_F(CodeMemory, GraphsTakeTheLocalMemoryOfTheirKernels) {
  const uint64_t before = available();
  CUgraph graph = nullptr;
  ASSERT_EQ(cuGraphCreate(&graph, 0), CUDA_SUCCESS);
  uint64_t a = 1, b = 2;
  uint32_t c = 3;
  void* params[] = {&a, &b, &c};
  CUDA_KERNEL_NODE_PARAMS k{};
  k.gridDimX = k.gridDimY = k.gridDimZ = k.blockDimX = k.blockDimY = k.blockDimZ = 1;
  k.kernelParams = params;
  CUgraphNode node = nullptr;
  k.func = function_with(400 * 1024);
  EXPECT_EQ(cuGraphAddKernelNode_v2(&node, graph, nullptr, 0, &k), CUDA_ERROR_OUT_OF_MEMORY);
  k.func = function_with(9 * 1024);
  EXPECT_EQ(cuGraphAddKernelNode_v2(&node, graph, nullptr, 0, &k), CUDA_SUCCESS);
  EXPECT_EQ(available(), before - 8 * kMiB);
  EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
  reset_stack();
}

// Kernels that launch kernels, and code that lies: the driver says what it has taken.
TEST_F(CodeMemory, LocalMemoryThatNobodyAskedForIsChargedAfterwards) {
  const uint64_t before = available();
  const CUfunction modest = function_with(16), other = function_with(16);
  {
    ScopedAnswer a(SLUICE_ON(cuCtxGetLimit),
                   [](size_t* v, CUlimit) { return *v = 9 * 1024, CUDA_SUCCESS; });
    EXPECT_EQ(launch(modest, world().stream), CUDA_SUCCESS);
  }
  EXPECT_EQ(available(), before - 8 * kMiB);
  reset_stack();
  EXPECT_EQ(available(), before);
  EXPECT_EQ(launch(other, world().stream), CUDA_SUCCESS);
  EXPECT_EQ(available(), before);
}

// Clients of before do not ask: the worker holds the rule itself.
TEST_F(CodeMemory, AClientThatDoesNotAskIsHeldToItAllTheSame) {
  const uint64_t before = available();
  const CUfunction large = function_with(9 * 1024), huge = function_with(400 * 1024);
  device().thread_bytes = ~uint64_t{0};
  EXPECT_EQ(launch(large, world().stream), CUDA_SUCCESS);
  EXPECT_EQ(available(), before - 8 * kMiB);
  recording().clear();
  EXPECT_EQ(launch(huge, world().stream), CUDA_SUCCESS) << "it is told later";
  EXPECT_EQ(asked("cuLaunchKernel"), 0u);
  expect_poisoned(CUDA_ERROR_OUT_OF_MEMORY);
  reset_stack();
}

// Two commands that announced GiBs had the worker hold as much.
TEST_F(CodeMemory, UploadsTakeMemoryAsTheyCome) {
  auto& rig = world().channel->rig;
  auto& s = worker_session();
  const auto send = [&](uint64_t blob, uint64_t total, uint64_t offset) {
    std::vector<uint64_t> body{blob, total, offset, 8, 0x6262626262626262};
    const auto bytes = std::as_bytes(std::span(body));
    const wire::FrameHeader header{static_cast<uint32_t>(sizeof header + bytes.size()),
                                   wire::kUpload, wire::kNoLane, 0, 1};
    Answer answer;
    return rig.dispatch(header, bytes, &answer);
  };
  for (uint64_t blob = 1000; blob < 1004; ++blob) ASSERT_TRUE(send(blob, 2ull << 30, 0));
  EXPECT_EQ(s.uploads.bytes(), 4 * 8u);
  EXPECT_LT(s.uploads.reserved(), 4 * 1024u);
  // Whoever wants an image for which there was no room is told (uploads_test.cc has the rest).
  const auto bounded_by = [&](uint64_t most_bytes) {
    std::destroy_at(&s.uploads);
    std::construct_at(&s.uploads, most_bytes);
  };
  bounded_by(7);
  EXPECT_TRUE(send(1004, 8, 0));
  const uint64_t module = id(world().module) + 7;  // a free place
  wire::CodeLoad load{module, 1004, wire::CodeKind::kModule, 0};
  const auto bytes = std::as_bytes(std::span(&load, 1));
  const wire::FrameHeader header{static_cast<uint32_t>(sizeof header + bytes.size()),
                                 wire::kCodeLoad, 0, 1, 1};
  Answer answer;
  EXPECT_TRUE(rig.dispatch(header, bytes, &answer));
  EXPECT_EQ(answer.status, static_cast<uint32_t>(CUDA_ERROR_OUT_OF_MEMORY));
  bounded_by(worker::Uploads::kMostBytes);
}

TEST_F(CodeMemory, AnImageThatClaimsMoreThanHasComeDoesNotReachTheDriver) {
  auto& rig = world().channel->rig;
  // A fat binary of 64 KiB by its header, of 24 bytes in truth.
  const std::vector<uint64_t> body{2000, 24, 0, 24, 0x00100001ba55ed50, 65536, 0};
  const auto upload = std::as_bytes(std::span(body));
  Answer answer;
  ASSERT_TRUE(
      rig.dispatch({static_cast<uint32_t>(16 + upload.size()), wire::kUpload, wire::kNoLane, 0, 1},
                   upload, &answer));
  wire::CodeLoad load{id(world().module) + 7, 2000, wire::CodeKind::kModule, 0};
  const auto bytes = std::as_bytes(std::span(&load, 1));
  EXPECT_TRUE(rig.dispatch({static_cast<uint32_t>(16 + bytes.size()), wire::kCodeLoad, 0, 1, 1},
                           bytes, &answer));
  EXPECT_EQ(answer.status, static_cast<uint32_t>(CUDA_ERROR_INVALID_IMAGE));
  EXPECT_EQ(asked("cuModuleLoadDataEx"), 0u);
}

}  // namespace
}  // namespace sluice::test
