// SPDX-License-Identifier: Apache-2.0
// What stays with the client: descriptors that are kept by content, and settings of handles that
// were made before. Told with the products of PyTorch, which makes every descriptor anew and says
// stream, workspace and mode before each; and with what must not be confused.
#include <map>
#include <thread>

#include "client/library/object.h"
#include "tests/native/libraries/arguments.h"
#include "tests/native/libraries/cublas_constants.h"

extern "C" {
int32_t cublasCreate_v2(void** handle);
int32_t cublasDestroy_v2(void* handle);
int32_t cublasSetStream_v2(void* handle, CUstream stream);
int32_t cublasSetPointerMode_v2(void* handle, int32_t mode);
int32_t cublasSetMathMode(void* handle, int32_t mode);
int32_t cublasGetMathMode(void* handle, int32_t* mode);
int32_t cublasSetWorkspace_v2(void* handle, void* workspace, size_t bytes);
int32_t cublasSgemm_v2(void* handle, int32_t transa, int32_t transb, int32_t m, int32_t n,
                       int32_t k, const void* alpha, const void* a, int32_t lda, const void* b,
                       int32_t ldb, const void* beta, void* c, int32_t ldc);
int32_t cublasSdot_v2(void* handle, int32_t n, const void* x, int32_t incx, const void* y,
                      int32_t incy, void* result);
int32_t cublasLtMatrixLayoutCreate(void** layout, int32_t type, uint64_t rows, uint64_t cols,
                                   int64_t ld);
int32_t cublasLtMatrixLayoutSetAttribute(void* layout, int32_t attr, const void* buf, size_t size);
int32_t cublasLtMatrixLayoutDestroy(void* layout);
int32_t cublasLtMatmulDescCreate(void** desc, int32_t compute, int32_t scale);
int32_t cublasLtMatmulDescSetAttribute(void* desc, int32_t attr, const void* buf, size_t size);
int32_t cublasLtMatmulDescGetAttribute(void* desc, int32_t attr, void* buf, size_t size,
                                       size_t* written);
int32_t cublasLtMatmulDescDestroy(void* desc);
int32_t cublasLtMatmulPreferenceCreate(void** preference);
int32_t cublasLtMatmulPreferenceSetAttribute(void* preference, int32_t attr, const void* buf,
                                             size_t size);
int32_t cublasLtMatmulPreferenceDestroy(void* preference);
int32_t cublasLtMatmulAlgoGetHeuristic(void* handle, void* desc, void* a, void* b, void* c, void* d,
                                       void* preference, int32_t requested, void* results,
                                       int32_t* count);
int32_t cublasLtMatmul(void* handle, void* desc, const void* alpha, const void* a, void* a_layout,
                       const void* b, void* b_layout, const void* beta, const void* c,
                       void* c_layout, void* d, void* d_layout, const void* algo, void* workspace,
                       size_t workspace_bytes, CUstream stream);
int32_t cudnnCreate(void** handle);
int32_t cudnnDestroy(void* handle);
int32_t cudnnCreateTensorDescriptor(void** desc);
int32_t cudnnSetTensor4dDescriptor(void* desc, int32_t format, int32_t type, int32_t n, int32_t c,
                                   int32_t h, int32_t w);
int32_t cudnnDeriveBNTensorDescriptor(void* derived, void* x, int32_t mode);
int32_t cudnnDestroyTensorDescriptor(void* desc);
int32_t cudnnGetTensorNdDescriptor(void* desc, int32_t requested, int32_t* type, int32_t* dims,
                                   int32_t sizes[], int32_t strides[]);
int32_t cudnnCreateRNNDescriptor(void** desc);
int32_t cudnnSetRNNDescriptor_v8(void* desc, int32_t algo, int32_t cell, int32_t bias,
                                 int32_t direction, int32_t input, int32_t type, int32_t precision,
                                 int32_t math, int32_t input_size, int32_t hidden_size,
                                 int32_t projection_size, int32_t layers, void* dropout,
                                 uint32_t flags);
int32_t cudnnDestroyRNNDescriptor(void* desc);
int32_t cudnnGetRNNWeightParams(void* handle, void* rnn, int32_t layer, size_t bytes,
                                const void* weights, int32_t id, void* matrix, void** matrix_at,
                                void* bias, void** bias_at);
int32_t cudnnAddTensor(void* handle, const void* alpha, void* a_desc, const void* a,
                       const void* beta, void* c_desc, void* c);
}

namespace sluice::test {
namespace {

using client::library::KeptObjects;
using client::library::State;

class Kept : public RoundTrip {
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
    EXPECT_EQ(cublasDestroy_v2(handle_), 0);
    {
      std::lock_guard lock(State::get().mutex);
      State::get().kept.clear(client::Session::get());
      EXPECT_EQ(State::get().kept.count(), 0u) << "something is still pinned";
    }
    EXPECT_FALSE(worker_session().rejected());
    FakeLibraries::get().clear();
    RoundTrip::TearDown();
  }

  // What reached the library while f ran, by name and in order.
  template <class F>
  std::vector<std::string> sent(F&& f) {
    auto& calls = FakeLibraries::get().calls;
    calls.clear();
    EXPECT_EQ(f(), 0);
    std::vector<std::string> names;
    for (const FakeCall& c : calls) names.emplace_back(c.function->name);
    return names;
  }
  using Names = std::vector<std::string>;

  void* at(uint64_t offset) { return reinterpret_cast<void*>(world().memory + offset); }

  // addmm of PyTorch: gemm_and_bias of aten/src/ATen/cuda/CUDABlas.cpp.
  int32_t addmm(uint64_t bias, uint64_t rows = 64, uint64_t aux = 0) {
    void *desc, *a, *b, *c, *preference;
    int32_t e = cublasLtMatmulDescCreate(&desc, 68, 0);
    const int32_t transposed = 1, epilogue = 4;
    e |= cublasLtMatmulDescSetAttribute(desc, kTransA, &transposed, 4);
    e |= cublasLtMatmulDescSetAttribute(desc, kTransB, &transposed, 4);
    e |= cublasLtMatmulDescSetAttribute(desc, kEpilogue, &epilogue, 4);
    const uint64_t pointer = world().memory + bias, other = world().memory + aux;
    e |= cublasLtMatmulDescSetAttribute(desc, kBiasPointer, &pointer, 8);
    if (aux) e |= cublasLtMatmulDescSetAttribute(desc, kAuxPointer, &other, 8);
    e |= cublasLtMatrixLayoutCreate(&a, 0, rows, 64, 64);
    e |= cublasLtMatrixLayoutCreate(&b, 0, 64, 64, 64);
    e |= cublasLtMatrixLayoutCreate(&c, 0, rows, 64, 64);
    e |= cublasLtMatmulPreferenceCreate(&preference);
    const uint64_t workspace = 4096;
    e |= cublasLtMatmulPreferenceSetAttribute(preference, kMaxWorkspace, &workspace, 8);
    std::byte result[96];
    int32_t found;
    e |= cublasLtMatmulAlgoGetHeuristic(handle_, desc, a, b, c, c, preference, 1, result, &found);
    e |= cublasLtMatmul(handle_, desc, &one_, at(0), a, at(4096), b, &zero_, at(8192), c, at(8192),
                        c, result, at(65536), 4096, world().stream);
    e |= cublasLtMatmulPreferenceDestroy(preference);
    e |= cublasLtMatrixLayoutDestroy(c);
    e |= cublasLtMatrixLayoutDestroy(b);
    e |= cublasLtMatrixLayoutDestroy(a);
    e |= cublasLtMatmulDescDestroy(desc);
    return e;
  }
  int32_t gemm() {
    return cublasSgemm_v2(handle_, 0, 1, 64, 64, 64, &one_, at(0), 64, at(4096), 64, &zero_,
                          at(8192), 64);
  }
  // What PyTorch says to the handle before a product: getCurrentCUDABlasHandle.
  int32_t current_handle(CUstream stream) {
    return cublasSetStream_v2(handle_, stream) | cublasSetWorkspace_v2(handle_, at(65536), 4096) |
           cublasSetMathMode(handle_, 0);
  }
  // What the library's object was told last, by attribute: replays all calls that reached it.
  static std::map<uint64_t, std::vector<std::byte>> holds(const std::vector<FakeCall>& calls,
                                                          uint64_t object) {
    std::map<uint64_t, std::vector<std::byte>> all;
    for (const FakeCall& c : calls)
      if (std::strstr(c.function->name, "SetAttribute") && c.words[0] == object)
        all[c.words[1]] = c.read[2];
    return all;
  }
  static uint64_t pointer_in(const std::vector<std::byte>& bytes) {
    uint64_t p = 0;
    if (bytes.size() == 8) std::memcpy(&p, bytes.data(), 8);
    return p;
  }

  void* handle_ = nullptr;
  float one_ = 1, zero_ = 0;
};

TEST_F(Kept, AProductWithDescriptorsThatWereSeenIsOneCommand) {
  EXPECT_EQ(addmm(0), 0);
  EXPECT_EQ(sent([&] { return addmm(0); }), Names{"cublasLtMatmul"});
  const uint64_t before = client::Session::get()->statistics().commands;
  for (int i = 0; i < 10; ++i) EXPECT_EQ(addmm(0), 0);
  EXPECT_EQ(client::Session::get()->statistics().commands - before, 10u);
}

TEST_F(Kept, EachLayersBiasHasItsOwnDescriptor) {
  for (uint64_t layer = 0; layer < 12; ++layer) EXPECT_EQ(addmm(64 * layer), 0);
  for (int token = 0; token < 3; ++token)
    for (uint64_t layer = 0; layer < 12; ++layer)
      EXPECT_EQ(sent([&] { return addmm(64 * layer); }), Names{"cublasLtMatmul"});
}

// A pointer that is another one each time costs as many commands as there are such pointers, and
// the table does not grow with them.
TEST_F(Kept, AChangingPointerIsToldToAnObjectThatRests) {
  std::vector<FakeCall> all;
  size_t count = 0;
  for (uint64_t i = 0; i < 3 * KeptObjects::kMostAlike; ++i) {
    const uint64_t bias = 64 * (i % 4), aux = 1024 + 64 * i;
    auto names = sent([&] { return addmm(bias, 64, aux); });
    const auto& calls = FakeLibraries::get().calls;
    all.insert(all.end(), calls.begin(), calls.end());
    ASSERT_EQ(names.back(), "cublasLtMatmul");
    const auto now = holds(all, all.back().words[1]);
    EXPECT_EQ(pointer_in(now.at(kBiasPointer)), world().memory + bias);
    EXPECT_EQ(pointer_in(now.at(kAuxPointer)), world().memory + aux);
    if (i < 2 * KeptObjects::kMostAlike) continue;
    EXPECT_LE(names.size(), 3u) << "a command for each pointer that differs";
    if (count == 0) count = State::get().kept.count();
    EXPECT_EQ(State::get().kept.count(), count);
  }
}

TEST_F(Kept, WhatWasReadFromADescriptorIsThisOnes) {
  void *one, *other;
  ASSERT_EQ(cublasLtMatmulDescCreate(&one, 68, 0), 0);
  ASSERT_EQ(cublasLtMatmulDescCreate(&other, 68, 0), 0);
  for (void* desc : {one, other}) {
    const uint64_t bias = world().memory + (desc == one ? 64 : 128);
    ASSERT_EQ(cublasLtMatmulDescSetAttribute(desc, kBiasPointer, &bias, 8), 0);
  }
  std::vector<uint64_t> asked;
  for (void* desc : {one, other}) {
    uint64_t value;
    size_t written;
    ASSERT_EQ(cublasLtMatmulDescGetAttribute(desc, kBiasPointer, &value, 8, &written), 0);
    asked.push_back(FakeLibraries::get().calls.back().words[0]);
  }
  EXPECT_NE(asked[0], asked[1]);
  EXPECT_EQ(cublasLtMatmulDescDestroy(one), 0);
  EXPECT_EQ(cublasLtMatmulDescDestroy(one), 1) << "a descriptor that was destroyed is none";
  EXPECT_EQ(cublasLtMatmulDescDestroy(other), 0);
}

// Of two settings of one thing the last one counts; of two things both.
TEST_F(Kept, TheLastSettingOfEachThingCounts) {
  EXPECT_EQ(addmm(0), 0);
  void *desc, *layout;
  std::vector<FakeCall> all;
  FakeLibraries::get().calls.clear();
  ASSERT_EQ(cublasLtMatrixLayoutCreate(&layout, 0, 64, 64, 64), 0);
  ASSERT_EQ(cublasLtMatmulDescCreate(&desc, 68, 0), 0);
  for (int32_t v : {0, 1, 0, 1, 0}) {
    ASSERT_EQ(cublasLtMatmulDescSetAttribute(desc, kTransA, &v, 4), 0);
    ASSERT_EQ(cublasLtMatmulDescSetAttribute(desc, kTransB, &v, 4), 0);
    ASSERT_EQ(cublasLtMatmul(handle_, desc, &one_, at(0), layout, at(4096), layout, &zero_,
                             at(8192), layout, at(8192), layout, nullptr, nullptr, 0, nullptr),
              0);
    const auto& calls = FakeLibraries::get().calls;
    const auto now = holds(calls, calls.back().words[1]);
    EXPECT_EQ(now.at(kTransA)[0], std::byte(v));
    EXPECT_EQ(now.at(kTransB)[0], std::byte(v));
  }
}

TEST_F(Kept, ASettersErrorIsTheLibrarysAndChangesNothing) {
  EXPECT_EQ(addmm(0), 0);
  void* layout;
  ASSERT_EQ(cublasLtMatrixLayoutCreate(&layout, 0, 64, 64, 64), 0);
  FakeLibraries::get().status = kInvalidValue;
  const int32_t batches = 77;
  EXPECT_EQ(cublasLtMatrixLayoutSetAttribute(layout, kBatchCount, &batches, 4), kInvalidValue);
  EXPECT_EQ(cublasLtMatrixLayoutSetAttribute(layout, kBatchCount, &batches, 4), kInvalidValue);
  void* none = nullptr;
  EXPECT_EQ(cublasLtMatrixLayoutCreate(&none, 99, 64, 64, 64), kInvalidValue);
  EXPECT_EQ(none, nullptr);
  FakeLibraries::get().status = 0;
  // The node's object of this content is the one from before.
  EXPECT_EQ(sent([&] { return addmm(0); }), Names{"cublasLtMatmul"});
  EXPECT_EQ(cublasLtMatrixLayoutDestroy(layout), 0);
}

// Memory that came with a module and went with it: no pointer that the node would take.
TEST_F(Kept, APointerThatIsNoneAnyMoreIsNotTold) {
  EXPECT_EQ(addmm(0, 64, 4096), 0);
  const uint64_t global = 0x7000'0000'1000;
  client::Session& s = *client::Session::get();
  s.module_globals.add({.start = global, .bytes = 64, .device = nullptr, .code = 1});
  void *desc, *layout;
  ASSERT_EQ(cublasLtMatrixLayoutCreate(&layout, 0, 64, 64, 64), 0);
  ASSERT_EQ(cublasLtMatmulDescCreate(&desc, 68, 0), 0);
  ASSERT_EQ(cublasLtMatmulDescSetAttribute(desc, kAuxPointer, &global, 8), 0);
  s.module_globals.drop_of(1);
  EXPECT_EQ(cublasLtMatmul(handle_, desc, &one_, at(0), layout, at(4096), layout, &zero_, at(8192),
                           layout, at(8192), layout, nullptr, nullptr, 0, nullptr),
            0);
  EXPECT_FALSE(worker_session().rejected());
}

TEST_F(Kept, TheTableIsBounded) {
  for (uint64_t rows = 1; rows <= KeptObjects::kMost + 100; ++rows) {
    void* layout;
    ASSERT_EQ(cublasLtMatrixLayoutCreate(&layout, 0, rows, 64, 64), 0);
    ASSERT_EQ(cublasLtMatrixLayoutDestroy(layout), 0);
  }
  EXPECT_LE(State::get().kept.count(), KeptObjects::kMost);
  EXPECT_LE(FakeLibraries::get().objects.size(), KeptObjects::kMost + 8) << "the node's, too";
}

// Several threads with descriptors of equal and of different contents.
TEST_F(Kept, ThreadsDoNotChangeEachOthersDescriptors) {
  for (uint64_t i = 0; i < 8; ++i) EXPECT_EQ(addmm(64 * i, 64, 4096 + 64 * i), 0);
  FakeLibraries::get().calls.clear();
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (uint64_t i = 0; i < 100; ++i)
        EXPECT_EQ(addmm(64 * t, 64, 1024 * (t + 1) + 64 * (i % 50)), 0);
    });
  for (std::thread& t : threads) t.join();
  std::map<uint64_t, std::map<uint64_t, std::vector<std::byte>>> all;
  int products = 0;
  for (const FakeCall& c : FakeLibraries::get().calls) {
    if (std::strstr(c.function->name, "SetAttribute")) all[c.words[0]][c.words[1]] = c.read[2];
    if (std::strcmp(c.function->name, "cublasLtMatmul") != 0) continue;
    ++products;
    auto& now = all[c.words[1]];
    if (!now.contains(kAuxPointer) || !now.contains(kBiasPointer)) continue;
    // Thread t's pointers go together.
    const uint64_t t = (pointer_in(now[kBiasPointer]) - world().memory) / 64;
    const uint64_t aux = pointer_in(now[kAuxPointer]) - world().memory;
    EXPECT_GE(aux, 1024 * (t + 1));
    EXPECT_LT(aux, 1024 * (t + 1) + 64 * 50);
  }
  EXPECT_EQ(products, 400);
}

// cuDNN's: a descriptor that another one is made from is an ordinary one from then on.
TEST_F(Kept, ADerivedDescriptorIsMadeOnTheNode) {
  void *cudnn, *x, *derived;
  ASSERT_EQ(cudnnCreate(&cudnn), 0);
  const auto make = [&] {
    int32_t e = cudnnCreateTensorDescriptor(&x) | cudnnCreateTensorDescriptor(&derived);
    e |= cudnnSetTensor4dDescriptor(x, 0, 0, 8, 3, 32, 32);
    e |= cudnnDeriveBNTensorDescriptor(derived, x, 1);
    e |= cudnnAddTensor(cudnn, &one_, derived, at(0), &zero_, x, at(4096));
    e |= cudnnDestroyTensorDescriptor(x) | cudnnDestroyTensorDescriptor(derived);
    return e;
  };
  EXPECT_EQ(make(), 0);
  const Names expected{"cudnnCreateTensorDescriptor", "cudnnDeriveBNTensorDescriptor",
                       "cudnnAddTensor", "cudnnDestroyTensorDescriptor"};
  EXPECT_EQ(sent(make), expected);
  EXPECT_EQ(cudnnDestroy(cudnn), 0);
}

// ONNX Runtime's way to the weights of an RNN: two descriptors that nothing was put into, which one
// call fills, each with its own.
TEST_F(Kept, DescriptorsThatACallFillsAreTwo) {
  void *cudnn, *rnn, *matrix, *bias, *empty, *at_matrix, *at_bias;
  ASSERT_EQ(cudnnCreate(&cudnn), 0);
  ASSERT_EQ(cudnnCreateRNNDescriptor(&rnn), 0);
  ASSERT_EQ(cudnnSetRNNDescriptor_v8(rnn, 0, 2, 2, 0, 0, 0, 0, 0, 16, 24, 24, 1, nullptr, 0), 0);
  for (void** desc : {&matrix, &bias, &empty}) ASSERT_EQ(cudnnCreateTensorDescriptor(desc), 0);
  auto& calls = FakeLibraries::get().calls;
  const auto asked = [&](void* desc) {
    int32_t type, dims, sizes[3], strides[3];
    EXPECT_EQ(cudnnGetTensorNdDescriptor(desc, 3, &type, &dims, sizes, strides), 0);
    return calls.back().words[0];
  };
  const uint64_t of_empty = asked(empty);
  ASSERT_EQ(
      cudnnGetRNNWeightParams(cudnn, rnn, 0, 4096, at(0), 1, matrix, &at_matrix, bias, &at_bias),
      0);
  const uint64_t filled[] = {calls.back().words[6], calls.back().words[8]};
  EXPECT_NE(filled[0], filled[1]);
  EXPECT_EQ(asked(matrix), filled[0]);
  EXPECT_EQ(asked(bias), filled[1]);
  EXPECT_EQ(asked(empty), of_empty);
  EXPECT_TRUE(filled[0] != of_empty && filled[1] != of_empty);
  for (void* desc : {matrix, bias, empty}) EXPECT_EQ(cudnnDestroyTensorDescriptor(desc), 0);
  EXPECT_EQ(cudnnDestroyRNNDescriptor(rnn), 0);
  EXPECT_EQ(cudnnDestroy(cudnn), 0);
}

TEST_F(Kept, WhatAHandleWasToldBeforeIsNotSaidAgain) {
  const auto product = [&] { return current_handle(world().stream) | gemm(); };
  EXPECT_EQ(product(), 0);
  EXPECT_EQ(sent(product), Names{"cublasSgemm_v2"});
  EXPECT_EQ(sent([&] { return current_handle(nullptr) | gemm(); }),
            (Names{"cublasSetStream_v2", "cublasSetWorkspace_v2", "cublasSgemm_v2"}))
      << "a new stream takes the workspace away, so that is said again";
  // Nobody used the handle in between.
  EXPECT_EQ(sent([&] { return current_handle(world().stream) | current_handle(nullptr) | gemm(); }),
            Names{"cublasSgemm_v2"});
}

// cublasSetStream takes the workspace away: what is not said again must not be kept.
TEST_F(Kept, TheOrderOfSettingsIsKept) {
  EXPECT_EQ(current_handle(world().stream) | gemm(), 0);
  EXPECT_EQ(sent([&] { return cublasSetStream_v2(handle_, world().stream) | gemm(); }),
            (Names{"cublasSetStream_v2", "cublasSgemm_v2"}));
  EXPECT_EQ(sent([&] { return gemm(); }), Names{"cublasSgemm_v2"});
  EXPECT_EQ(sent([&] { return cublasSetWorkspace_v2(handle_, at(65536), 4096) | gemm(); }),
            (Names{"cublasSetWorkspace_v2", "cublasSgemm_v2"}));
}

// torch.dot has its factors' mode changed around it: nothing else is said again for that.
TEST_F(Kept, ASettingThatNoOtherTouchesIsSaidAlone) {
  EXPECT_EQ(current_handle(world().stream) | gemm(), 0);
  const auto dot = [&] {
    return current_handle(world().stream) | cublasSetPointerMode_v2(handle_, 1) |
           cublasSdot_v2(handle_, 8, at(0), 1, at(256), 1, at(512)) |
           cublasSetPointerMode_v2(handle_, 0);
  };
  EXPECT_EQ(dot() | current_handle(world().stream) | gemm(), 0);
  EXPECT_EQ(sent([&] { return dot() | current_handle(world().stream) | gemm(); }),
            (Names{"cublasSetPointerMode_v2", "cublasSdot_v2", "cublasSetPointerMode_v2",
                   "cublasSgemm_v2"}));
}

TEST_F(Kept, WhatIsAskedOfAHandleKnowsItsSettings) {
  EXPECT_EQ(cublasSetMathMode(handle_, 1) | cublasSetMathMode(handle_, 2), 0);
  int32_t mode;
  EXPECT_EQ(sent([&] { return cublasSetMathMode(handle_, 1) | cublasGetMathMode(handle_, &mode); }),
            (Names{"cublasSetMathMode", "cublasGetMathMode"}));
}

// A stream that ended before anybody used the handle again is nothing that the node could take.
TEST_F(Kept, AStreamThatEndedIsNotTold) {
  EXPECT_EQ(current_handle(world().stream) | gemm(), 0);
  CUstream brief;
  ASSERT_EQ(cuStreamCreate(&brief, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  EXPECT_EQ(cublasSetStream_v2(handle_, brief), 0);
  ASSERT_EQ(cuStreamDestroy(brief), CUDA_SUCCESS);
  int32_t mode;
  EXPECT_EQ(cublasGetMathMode(handle_, &mode), 0);
  EXPECT_EQ(current_handle(world().stream) | gemm(), 0);
  EXPECT_FALSE(worker_session().rejected());
}

// What was known to be good and is refused when the object is told is an error of the session.
TEST_F(Kept, AFailureThatNobodyWaitedForPoisonsTheSession) {
  EXPECT_EQ(current_handle(world().stream) | gemm() | current_handle(nullptr) | gemm(), 0);
  EXPECT_EQ(current_handle(world().stream), 0);
  EXPECT_EQ(client::Session::get()->sticky(), CUDA_SUCCESS) << "nobody needed it";
  FakeLibraries::get().status = kInvalidValue;
  gemm();
  FakeLibraries::get().status = 0;
  EXPECT_EQ(gemm(), kFailed);
  expect_poisoned(CUDA_ERROR_UNKNOWN);
}

}  // namespace
}  // namespace sluice::test
