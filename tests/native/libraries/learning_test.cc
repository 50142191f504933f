// SPDX-License-Identifier: Apache-2.0
// When a call of a library is known to be valid, and when it has to be asked for again: told with
// cuBLAS and cuBLASLt, as a program uses them. And what an object remembers: its stream, its
// pointer mode.
#include "client/library/object.h"
#include "client/objects/stream.h"
#include "tests/native/libraries/arguments.h"
#include "tests/native/libraries/cublas_constants.h"

extern "C" {
int32_t cublasCreate_v2(void** handle);
int32_t cublasDestroy_v2(void* handle);
int32_t cublasSetStream_v2(void* handle, CUstream stream);
int32_t cublasGetStream_v2(void* handle, CUstream* stream);
int32_t cublasSetPointerMode_v2(void* handle, int32_t mode);
int32_t cublasSetMathMode(void* handle, int32_t mode);
int32_t cublasGetMathMode(void* handle, int32_t* mode);
int32_t cublasSgemm_v2(void* handle, int32_t transa, int32_t transb, int32_t m, int32_t n,
                       int32_t k, const void* alpha, const void* a, int32_t lda, const void* b,
                       int32_t ldb, const void* beta, void* c, int32_t ldc);
int32_t cublasLtMatrixLayoutCreate(void** layout, int32_t type, uint64_t rows, uint64_t cols,
                                   int64_t ld);
int32_t cublasLtMatrixLayoutSetAttribute(void* layout, int32_t attr, const void* buf, size_t size);
int32_t cublasLtMatmulDescCreate(void** desc, int32_t compute, int32_t scale);
int32_t cublasLtMatmulDescSetAttribute(void* desc, int32_t attr, const void* buf, size_t size);
int32_t cublasLtMatmul(void* handle, void* desc, const void* alpha, const void* a, void* a_layout,
                       const void* b, void* b_layout, const void* beta, const void* c,
                       void* c_layout, void* d, void* d_layout, const void* algo, void* workspace,
                       size_t workspace_bytes, CUstream stream);
}

namespace sluice::test {
namespace {

using client::library::State;

class Learning : public RoundTrip {
 protected:
  void SetUp() override {
    RoundTrip::SetUp();
    FakeLibraries::get();
    {
      std::lock_guard lock(State::get().mutex);
      State::get().learned.clear();
      State::get().answers.clear();
    }
    ASSERT_EQ(cublasCreate_v2(&handle_), 0);
  }
  void TearDown() override {
    FakeLibraries::get().status = 0;
    {
      std::lock_guard lock(State::get().mutex);
      State::get().kept.clear(client::Session::get());
    }
    EXPECT_EQ(cublasDestroy_v2(handle_), 0);
    FakeLibraries::get().clear();
    RoundTrip::TearDown();
  }
  // How many round trips it took.
  template <class F>
  uint64_t waited(F&& f) {
    const uint64_t before = world().channel->answered;
    EXPECT_EQ(f(), 0);
    return world().channel->answered - before;
  }
  void* at(uint64_t offset) { return reinterpret_cast<void*>(world().memory + offset); }
  int32_t gemm(int32_t m = 64, uint64_t offset = 0) {
    return cublasSgemm_v2(handle_, 0, 1, m, 64, 64, &one_, at(offset), 64, at(4096), 64, &zero_,
                          at(8192), 64);
  }
  static const FakeCall& last() { return FakeLibraries::get().calls.back(); }
  worker::LibraryObject worker_object(void* handle) {
    worker::LibraryObject object;
    EXPECT_TRUE(worker::Libraries::get().objects.get(id(handle), &object));
    return object;
  }

  void* handle_ = nullptr;
  float one_ = 1, zero_ = 0;
};

TEST_F(Learning, TheSameShapeIsAskedForOnce) {
  EXPECT_EQ(waited([&] { return gemm(); }), 1u);
  EXPECT_EQ(waited([&] { return gemm(64, 512); }), 0u) << "other matrices, other numbers";
  one_ = 3;
  EXPECT_EQ(waited([&] { return gemm(); }), 0u);
  EXPECT_EQ(waited([&] { return gemm(32); }), 1u) << "another shape";
  EXPECT_EQ(waited([&] { return gemm(64, 4); }), 1u) << "another alignment";
  EXPECT_EQ(waited([&] { return gemm(64, 16 + 4); }), 0u);
}

TEST_F(Learning, AnErrorIsNotLearned) {
  FakeLibraries::get().status = kInvalidValue;
  EXPECT_EQ(gemm(), kInvalidValue);
  EXPECT_EQ(gemm(), kInvalidValue);
  FakeLibraries::get().status = 0;
  EXPECT_EQ(waited([&] { return gemm(); }), 1u);
  EXPECT_EQ(waited([&] { return gemm(); }), 0u);
}

TEST_F(Learning, WhatIsSetReplacesWhatWasSetBefore) {
  const auto mode = [&](int32_t m) { return cublasSetMathMode(handle_, m); };
  gemm();
  EXPECT_EQ(waited([&] { return mode(1); }), 1u);
  EXPECT_EQ(waited([&] { return gemm(); }), 1u) << "the handle holds something else";
  EXPECT_EQ(waited([&] { return mode(2); }), 1u);
  EXPECT_EQ(waited([&] { return gemm(); }), 1u);
  // All of it has been seen now, in whatever order it comes.
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(waited([&] { return mode(1); }), 0u);
    EXPECT_EQ(waited([&] { return gemm(); }), 0u);
    EXPECT_EQ(waited([&] { return mode(2); }), 0u);
    EXPECT_EQ(waited([&] { return gemm(); }), 0u);
  }
}

TEST_F(Learning, AnswersAreKeptUntilTheirObjectChanges) {
  int32_t first = 0, second = 0;
  EXPECT_EQ(waited([&] { return cublasGetMathMode(handle_, &first); }), 1u);
  EXPECT_EQ(waited([&] { return cublasGetMathMode(handle_, &second); }), 0u);
  EXPECT_EQ(first, second);
  EXPECT_EQ(cublasSetMathMode(handle_, 1), 0);
  EXPECT_EQ(waited([&] { return cublasGetMathMode(handle_, &second); }), 1u);
  EXPECT_NE(first, second) << "the stand-in never says the same twice";
}

// Two objects that were made alike are alike: PyTorch makes new descriptors for every call.
TEST_F(Learning, ObjectsAreKnownByWhatTheyHold) {
  const auto matmul = [&](int32_t batches) {
    void *layout, *desc;
    EXPECT_EQ(cublasLtMatrixLayoutCreate(&layout, 0, 64, 64, 64), 0);
    EXPECT_EQ(cublasLtMatrixLayoutSetAttribute(layout, kBatchCount, &batches, 4), 0);
    EXPECT_EQ(cublasLtMatmulDescCreate(&desc, 68, 0), 0);
    const uint64_t bias = world().memory + 64 * (next() % 64);
    EXPECT_EQ(cublasLtMatmulDescSetAttribute(desc, kBiasPointer, &bias, 8), 0);
    return cublasLtMatmul(handle_, desc, &one_, at(0), layout, at(4096), layout, &zero_, at(8192),
                          layout, at(8192), layout, nullptr, at(65536), 4096, world().stream);
  };
  EXPECT_EQ(waited([&] { return matmul(2); }), 5u);
  EXPECT_EQ(waited([&] { return matmul(2); }), 0u);
  EXPECT_EQ(waited([&] { return matmul(3); }), 2u) << "the attribute, and the product";
  EXPECT_EQ(waited([&] { return matmul(2); }), 0u);
  EXPECT_EQ(waited([&] { return matmul(3); }), 0u);
}

TEST_F(Learning, WorkGoesToTheStreamOfItsHandle) {
  CUstream stream = reinterpret_cast<CUstream>(1);
  EXPECT_EQ(cublasGetStream_v2(handle_, &stream), 0);
  EXPECT_EQ(stream, nullptr);
  EXPECT_EQ(worker_object(handle_).stream, CU_STREAM_LEGACY);
  EXPECT_EQ(cublasSetStream_v2(handle_, world().stream), 0);
  EXPECT_EQ(cublasGetStream_v2(handle_, &stream), 0);
  EXPECT_EQ(stream, world().stream);
  EXPECT_EQ(worker_object(handle_).stream, driver_of(world().stream));
  // The client knows that the stream has something to do: the next query goes to the driver.
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(gemm(), 0);
  client::WorkAccount& work = client::Session::get()->work();
  auto& device = *client::Session::get()->devices()[0];
  EXPECT_FALSE(work.idle(device));
  // … and that no other has.
  work.note_done(device, client::Session::get()->streams.find(world().stream), work.issued(device));
  EXPECT_TRUE(work.idle(device));
  EXPECT_EQ(cublasSetStream_v2(handle_, reinterpret_cast<CUstream>(world().event)), kInvalidValue);
}

TEST_F(Learning, FactorsAreWhereThePointerModeSays) {
  EXPECT_EQ(cublasSetPointerMode_v2(handle_, 1), 0);
  EXPECT_EQ(gemm(), kInvalidValue) << "host memory, where the device's was meant";
  const auto device = [&](uint64_t offset) {
    return cublasSgemm_v2(handle_, 0, 0, 8, 8, 8, at(offset), at(0), 8, at(4096), 8, at(offset + 4),
                          at(8192), 8);
  };
  EXPECT_EQ(waited([&] { return device(128); }), 1u);
  EXPECT_EQ(last().words[6], world().memory + 128);
  EXPECT_EQ(waited([&] { return device(256); }), 0u);
  EXPECT_EQ(last().words[11], world().memory + 260);
  EXPECT_EQ(cublasSetPointerMode_v2(handle_, 0), 0);
  EXPECT_EQ(gemm(), 0);
  EXPECT_EQ(std::memcmp(last().read[6].data(), &one_, 4), 0);
}

// CUBLASLT_POINTER_MODE_ALPHA_DEVICE_VECTOR_BETA_HOST
TEST_F(Learning, AlphaOnTheDeviceWithBetaOnTheHost) {
  void *layout, *desc;
  EXPECT_EQ(cublasLtMatrixLayoutCreate(&layout, 0, 64, 64, 64), 0);
  EXPECT_EQ(cublasLtMatmulDescCreate(&desc, 68, 0), 0);
  const int32_t mode = 4;
  EXPECT_EQ(cublasLtMatmulDescSetAttribute(desc, kPointerMode, &mode, 4), 0);
  const float beta = 2.5;
  EXPECT_EQ(cublasLtMatmul(handle_, desc, at(64), at(0), layout, at(4096), layout, &beta, at(8192),
                           layout, at(8192), layout, nullptr, nullptr, 0, nullptr),
            0);
  EXPECT_EQ(last().words[2], world().memory + 64);
  ASSERT_GE(last().read[7].size(), 4u);
  EXPECT_EQ(std::memcmp(last().read[7].data(), &beta, 4), 0);
}

TEST_F(Learning, AHandleThatWasDestroyedIsNone) {
  void *one, *other;
  ASSERT_EQ(cublasCreate_v2(&one), 0);
  EXPECT_EQ(cublasDestroy_v2(one), 0);
  EXPECT_EQ(cublasSetMathMode(one, 1), kNotInitialized);
  EXPECT_EQ(cublasDestroy_v2(one), kNotInitialized);
  ASSERT_EQ(cublasCreate_v2(&other), 0);
  EXPECT_NE(one, other) << "its place was used again, its name was not";
  EXPECT_EQ(cublasDestroy_v2(other), 0);
}

// The node's library is older than the client's.
TEST_F(Learning, AFunctionThatTheNodeLacksIsSaidToBeUnsupported) {
  worker::Libraries::Entry* entry = nullptr;
  for (const worker::LibraryTable& t : worker::library_tables())
    for (uint16_t i = 0; i < t.spec->count; ++i)
      if (std::strcmp(t.spec->functions[i].name, "cublasSgemm_v2") == 0)
        entry = worker::Libraries::get().find(t.spec->functions[i].id);
  ASSERT_NE(entry, nullptr);
  worker::Libraries::get().resolve(*entry);
  void* const function = entry->function.exchange(nullptr);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(gemm(), kNotSupported);
  EXPECT_EQ(gemm(), kNotSupported);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("has no cublasSgemm_v2"), std::string::npos) << said;
  EXPECT_EQ(said.find("has no cublasSgemm_v2"), said.rfind("has no cublasSgemm_v2")) << said;
  entry->function = function;
  EXPECT_EQ(gemm(), 0) << "the session lives";
}

}  // namespace
}  // namespace sluice::test
