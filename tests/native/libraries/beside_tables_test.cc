// SPDX-License-Identifier: Apache-2.0
// What of the libraries no table says: cuBLAS without handles, descriptors of cuBLASLt in the
// program's own memory, cufftXt over one GPU, cuRAND in host memory, getters of cuDNN that are
// narrower than their table, loggers and windows.
#include <array>
#include <bit>
#include <map>

#include "client/core/addresses.h"
#include "client/library/object.h"
#include "tests/native/libraries/arguments.h"
#include "tests/native/libraries/cublas_constants.h"
#include "tests/native/roundtrip/recording_driver.h"

extern "C" {
struct Complex8 {
  float x, y;
};
struct Complex16 {
  double x, y;
};
int32_t cublasInit();
int32_t cublasShutdown();
int32_t cublasGetError();
int32_t cublasAlloc(int32_t n, int32_t size, void** address);
int32_t cublasFree(void* address);
void cublasSgemm(char transa, char transb, int m, int n, int k, float alpha, const void* a, int lda,
                 const void* b, int ldb, float beta, void* c, int ldc);
void cublasStrmm(char side, char uplo, char transa, char diag, int m, int n, float alpha,
                 const void* a, int lda, void* b, int ldb);
void cublasCrotg(void* ca, Complex8 cb, void* sc, void* cs);
void cublasZaxpy(int n, Complex16 alpha, const void* x, int incx, void* y, int incy);
Complex16 cublasZdotc(int n, const void* x, int incx, const void* y, int incy);
int32_t cusolverSpCreate(void** handle);
int32_t cusolverSpDestroy(void* handle);
int32_t cusolverDnCreate(void** handle);
int32_t cusolverDnDestroy(void* handle);
int32_t cusolverDnPotrf_bufferSize(void* handle, void* params, int32_t uplo, int64_t n,
                                   int32_t type, const void* a, int64_t lda, int32_t compute,
                                   size_t* bytes);
int32_t cusolverDnPotrf(void* handle, void* params, int32_t uplo, int64_t n, int32_t type, void* a,
                        int64_t lda, int32_t compute, void* buffer, size_t bytes, int* info);
int32_t cusparseCreateMatDescr(void** descriptor);
int32_t cusparseDestroyMatDescr(void* descriptor);
int32_t cusolverSpZcsreigvsi(void* handle, int m, int nnz, void* descriptor, const void* values,
                             const void* rows, const void* columns, Complex16 mu0, const void* x0,
                             int most, double eps, void* mu, void* x);
float cublasSdot(int n, const void* x, int incx, const void* y, int incy);
int cublasIsamax(int n, const void* x, int incx);
int32_t cublasSetLoggerCallback(void* callback);
int32_t cublasGetLoggerCallback(void** callback);
int32_t cublasCreate_v2(void** handle);
int32_t cublasDestroy_v2(void* handle);
int32_t cublasSetPointerMode_v2(void* handle, int32_t mode);
int32_t cublasSrotg_v2(void* handle, void* a, void* b, void* c, void* s);
int32_t cublasLtLoggerSetLevel(int32_t level);
int32_t cublasLtMatrixLayoutInit_internal(void* memory, size_t size, int32_t type, uint64_t rows,
                                          uint64_t columns, int64_t ld);
int32_t cublasLtMatrixLayoutSetAttribute(void* layout, int32_t attr, const void* buf, size_t size);
int32_t cublasLtMatrixLayoutGetAttribute(void* layout, int32_t attr, void* buf, size_t size,
                                         size_t* written);
int32_t cufftCreate(int32_t* plan);
int32_t cufftDestroy(int32_t plan);
int32_t cufftMakePlan1d(int32_t plan, int32_t nx, int32_t type, int32_t batch, size_t* work);
int32_t cufftXtSetGPUs(int32_t plan, int32_t count, const int32_t* gpus);
int32_t cufftXtMalloc(int32_t plan, void** descriptor, int32_t format);
int32_t cufftXtFree(void* descriptor);
int32_t cufftXtMemcpy(int32_t plan, void* to, void* from, int32_t type);
int32_t cufftXtExecDescriptorR2C(int32_t plan, void* in, void* out);
int32_t cufftXtSetCallback(int32_t plan, void** routine, int32_t type, void** info);
int32_t curandCreateGenerator(void** generator, int32_t type);
int32_t curandCreateGeneratorHost(void** generator, int32_t type);
int32_t curandDestroyGenerator(void* generator);
int32_t curandGenerateNormal(void* generator, float* out, size_t n, float mean, float deviation);
int32_t curandGenerateSeeds(void* generator);
int32_t curandGetDirectionVectors32(void** vectors, int32_t set);
int32_t curandGetDirectionVectors64(void** vectors, int32_t set);
int32_t curandGetScrambleConstants64(void** constants);
int32_t curandCreatePoissonDistribution(double lambda, uint64_t* distribution);
int32_t curandDestroyDistribution(uint64_t distribution);
int32_t cudnnCreateRNNDataDescriptor(void** descriptor);
int32_t cudnnDestroyRNNDataDescriptor(void* descriptor);
int32_t cudnnGetRNNDataDescriptor(void* descriptor, int32_t* type, void* layout, void* most,
                                  void* batch, void* vector, int32_t requested, void* lengths,
                                  void* padding);
int32_t ncclCommWindowRegister(void* comm, void* buffer, size_t size, void** window, int flags);
}

namespace sluice::test {
namespace {

using client::library::State;

class BesideTables : public RoundTrip {
 protected:
  void SetUp() override {
    RoundTrip::SetUp();
    FakeLibraries::get();
    std::lock_guard lock(State::get().mutex);
    State::get().learned.clear();
    State::get().answers.clear();
  }
  void TearDown() override {
    {
      std::lock_guard lock(State::get().mutex);
      State::get().kept.clear(client::Session::get());
    }
    fake().instead.clear();
    fake().status = 0;
    fake().clear();
    RoundTrip::TearDown();
  }
  static FakeLibraries& fake() { return FakeLibraries::get(); }
  void* at(uint64_t offset) { return reinterpret_cast<void*>(world().memory + offset); }
  // The last call of a function that reached the library.
  static const FakeCall* last(const std::string& name) {
    const FakeCall* found = nullptr;
    for (const FakeCall& c : fake().calls)
      if (name == c.function->name) found = &c;
    return found;
  }
  template <class T>
  static T as(const std::vector<std::byte>& bytes) {
    T value{};
    if (bytes.size() >= sizeof value) std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }
};

TEST_F(BesideTables, CublasWithoutHandlesIsCublasWithOne) {
  cublasSgemm('n', 'n', 2, 2, 2, 1, at(0), 2, at(64), 2, 0, at(128), 2);
  EXPECT_EQ(cublasGetError(), 1) << "before cublasInit";
  EXPECT_EQ(cublasGetError(), 0) << "asking takes the error";
  EXPECT_EQ(last("cublasSgemm_v2"), nullptr);
  ASSERT_EQ(cublasInit(), 0);
  ASSERT_EQ(cublasInit(), 0);
  cublasSgemm('N', 't', 3, 4, 5, 1.5f, at(0), 6, at(64), 7, -2.f, at(128), 8);
  EXPECT_EQ(cublasGetError(), 0);
  const FakeCall* gemm = last("cublasSgemm_v2");
  ASSERT_NE(gemm, nullptr);
  EXPECT_EQ(gemm->words[1], 0u);
  EXPECT_EQ(gemm->words[2], 1u);
  EXPECT_EQ(gemm->words[3], 3u);
  EXPECT_EQ(as<float>(gemm->read[6]), 1.5f);
  EXPECT_EQ(gemm->words[9], world().memory + 64);
  EXPECT_EQ(as<float>(gemm->read[11]), -2.f);
  EXPECT_EQ(gemm->words[13], 8u);
  cublasSgemm('?', 'C', 3, 4, 5, 1.5f, at(0), 6, at(64), 7, -2.f, at(128), 8);
  gemm = last("cublasSgemm_v2");
  EXPECT_EQ(static_cast<int32_t>(gemm->words[1]), -1);
  EXPECT_EQ(gemm->words[2], 2u);
  // In place: the result is the second matrix.
  cublasStrmm('R', 'u', 'c', 'U', 2, 3, 4.f, at(0), 5, at(64), 6);
  const FakeCall* trmm = last("cublasStrmm_v2");
  ASSERT_NE(trmm, nullptr);
  for (int i : {1, 2, 4}) EXPECT_EQ(trmm->words[static_cast<size_t>(i)], 1u) << i;
  EXPECT_EQ(trmm->words[3], 2u);
  EXPECT_EQ(trmm->words[12], world().memory + 64);
  EXPECT_EQ(trmm->words[13], 6u);
  // What is returned by value, and a complex number that is passed by value.
  const float dot = cublasSdot(9, at(0), 1, at(64), 1);
  ASSERT_NE(last("cublasSdot_v2"), nullptr);
  EXPECT_TRUE(same(dot, as<float>(last("cublasSdot_v2")->written[6])));
  const int amax = cublasIsamax(9, at(0), 1);
  EXPECT_EQ(amax, as<int32_t>(last("cublasIsamax_v2")->written[4]));
  Complex8 a{1, 2}, s{};
  float c = 0;
  cublasCrotg(&a, {3, 4}, &c, &s);
  ASSERT_NE(last("cublasCrotg_v2"), nullptr);
  EXPECT_TRUE(same(as<Complex8>(last("cublasCrotg_v2")->read[2]), Complex8{3, 4}));
  EXPECT_TRUE(same(c, as<float>(last("cublasCrotg_v2")->written[3])));
  cublasZaxpy(3, {5, 6}, at(0), 1, at(64), 1);
  EXPECT_TRUE(same(as<Complex16>(last("cublasZaxpy_v2")->read[2]), Complex16{5, 6}));
  const Complex16 product = cublasZdotc(3, at(0), 1, at(64), 1);
  EXPECT_TRUE(same(product, as<Complex16>(last("cublasZdotc_v2")->written[6])));
  // An error of the library's stays until it is asked for.
  fake().status = 13;
  cublasIsamax(10, at(0), 1);
  fake().status = 0;
  cublasIsamax(9, at(0), 1);
  EXPECT_EQ(cublasGetError(), 13);
  void* memory = nullptr;
  EXPECT_EQ(cublasAlloc(0, 4, &memory), 7);
  ASSERT_EQ(cublasAlloc(1000, 4, &memory), 0);
  EXPECT_TRUE(
      client::is_device_address(client::Session::get(), reinterpret_cast<uint64_t>(memory)));
  EXPECT_EQ(cublasFree(memory), 0);
  EXPECT_EQ(cublasShutdown(), 0);
  EXPECT_EQ(cublasShutdown(), 1);
}

TEST_F(BesideTables, RotationsTakeTheirNumbersWhereThePointerModeSays) {
  void* handle;
  ASSERT_EQ(cublasCreate_v2(&handle), 0);
  float a = 1, b = 2, c, s;
  EXPECT_EQ(cublasSrotg_v2(handle, &a, &b, &c, &s), 0);
  EXPECT_EQ(as<float>(last("cublasSrotg_v2")->read[2]), 2.f);
  EXPECT_TRUE(same(s, as<float>(last("cublasSrotg_v2")->written[4])));
  ASSERT_EQ(cublasSetPointerMode_v2(handle, 1), 0);
  EXPECT_EQ(cublasSrotg_v2(handle, at(0), at(4), at(8), at(12)), 0);
  EXPECT_EQ(last("cublasSrotg_v2")->words[4], world().memory + 12);
  EXPECT_EQ(cublasSrotg_v2(handle, &a, at(4), at(8), at(12)), 7);
  EXPECT_EQ(cublasDestroy_v2(handle), 0);
}

// Two doubles, as the caller's struct is in two registers.
TEST_F(BesideTables, ComplexNumbersByValue) {
  void *handle, *descriptor;
  ASSERT_EQ(cusolverSpCreate(&handle), 0);
  ASSERT_EQ(cusparseCreateMatDescr(&descriptor), 0);
  const int32_t rows[] = {0, 1, 2, 3, 5}, columns[] = {0, 1, 2, 0, 3};
  recording().memory.write(world().memory + 64, rows, sizeof rows);
  recording().memory.write(world().memory + 128, columns, sizeof columns);
  EXPECT_EQ(cusolverSpZcsreigvsi(handle, 4, 5, descriptor, at(0), at(64), at(128), {1.5, -2.5},
                                 at(192), 6, 0.25, at(256), at(320)),
            0);
  const FakeCall* call = last("cusolverSpZcsreigvsi");
  ASSERT_NE(call, nullptr);
  const auto number = [&](size_t i) { return std::bit_cast<double>(call->words[i]); };
  EXPECT_EQ(number(7), 1.5);
  EXPECT_EQ(number(8), -2.5);
  EXPECT_EQ(number(11), 0.25);
  EXPECT_EQ(call->words[13], world().memory + 320);
  EXPECT_EQ(cusparseDestroyMatDescr(descriptor), 0);
  EXPECT_EQ(cusolverSpDestroy(handle), 0);
}

// Of libcusolver.so.11: a workspace on the device is given, the newest's wants one on the host,
// too.
TEST_F(BesideTables, Cuda12sCholeskyBringsTheHostsWorkspace) {
  constexpr uint64_t kDevice = 4096, kHost = 48;
  void* handle;
  ASSERT_EQ(cusolverDnCreate(&handle), 0);
  FakeLibraries& fakes = FakeLibraries::get();
  fakes.instead["cusolverDnXpotrf_bufferSize"] = [](const uint64_t* words) {
    *reinterpret_cast<uint64_t*>(words[8]) = kDevice;
    *reinterpret_cast<uint64_t*>(words[9]) = kHost;
    return int64_t{0};
  };
  size_t bytes = 0;
  EXPECT_EQ(cusolverDnPotrf_bufferSize(handle, nullptr, 0, 8, 1, at(0), 8, 1, &bytes), 0);
  EXPECT_EQ(bytes, kDevice);
  std::vector<uint64_t> seen;
  fakes.instead["cusolverDnXpotrf"] = [&](const uint64_t* words) {
    seen.assign(words, words + 13);
    std::memset(reinterpret_cast<void*>(words[10]), 1, words[11]);
    return int64_t{0};
  };
  auto* info = static_cast<int*>(at(512));
  EXPECT_EQ(cusolverDnPotrf(handle, nullptr, 0, 8, 1, at(0), 8, 1, at(1024), bytes, info), 0);
  ASSERT_EQ(seen.size(), 13u);
  EXPECT_EQ(seen[3], 8u);
  EXPECT_EQ(seen[5], world().memory);
  EXPECT_EQ(seen[8], world().memory + 1024);
  EXPECT_EQ(seen[9], kDevice);
  EXPECT_EQ(seen[11], kHost);
  EXPECT_EQ(seen[12], world().memory + 512);
  fakes.instead["cusolverDnXpotrf_bufferSize"] = [](const uint64_t*) { return int64_t{3}; };
  EXPECT_EQ(cusolverDnPotrf(handle, nullptr, 0, 9, 1, at(0), 9, 1, at(1024), bytes, info), 3)
      << "what the question answers";
  fakes.instead.clear();
  EXPECT_EQ(cusolverDnDestroy(handle), 0);
}

TEST_F(BesideTables, LoggersAreKeptAndAskedFor) {
  int logger;
  void* found = nullptr;
  EXPECT_EQ(cublasSetLoggerCallback(&logger), 0);
  EXPECT_EQ(cublasGetLoggerCallback(&found), 0);
  EXPECT_EQ(found, &logger);
  EXPECT_EQ(cublasSetLoggerCallback(nullptr), 0);
  EXPECT_EQ(cublasLtLoggerSetLevel(5), 0);
  void* window = &logger;
  EXPECT_EQ(ncclCommWindowRegister(&logger, at(0), 64, &window, 0), 4) << "no communicator";
}

// The opaque structs of cublasLt.h on the program's stack.
TEST_F(BesideTables, DescriptorsInTheProgramsMemory) {
  struct Layout {
    uint64_t data[8];
  };
  Layout first, copy;
  size_t written;
  int32_t batches = 3, got;
  const auto ask = [&](Layout& l) {
    fake().calls.clear();
    return cublasLtMatrixLayoutGetAttribute(&l, kBatchCount, &got, 4, &written);
  };
  // The library's object that was asked, with what it was made of and told since.
  const auto made_of = [&] {
    const FakeCall* create = last("cublasLtMatrixLayoutCreate");
    return create ? create->words[2] : 0;
  };
  EXPECT_EQ(cublasLtMatrixLayoutInit_internal(&first, 8, 0, 64, 32, 64), 7) << "no room";
  ASSERT_EQ(cublasLtMatrixLayoutInit_internal(&first, sizeof first, 0, 64, 32, 64), 0);
  EXPECT_EQ(made_of(), 64u);
  EXPECT_EQ(cublasLtMatrixLayoutSetAttribute(&first, kBatchCount, &batches, 4), 0);
  EXPECT_EQ(ask(first), 0);
  ASSERT_NE(last("cublasLtMatrixLayoutGetAttribute"), nullptr);
  // A copy of the memory is a descriptor of its own: what is set in it does not show in the first.
  copy = first;
  batches = 4;
  EXPECT_EQ(cublasLtMatrixLayoutSetAttribute(&copy, kBatchCount, &batches, 4), 0);
  uint64_t ids[2];
  std::memcpy(&ids[0], &first.data[1], 8);
  std::memcpy(&ids[1], &copy.data[1], 8);
  EXPECT_NE(ids[0], ids[1]);
  {
    std::lock_guard lock(State::get().mutex);
    const auto* a = State::get().objects.find(ids[0]);
    const auto* b = State::get().objects.find(ids[1]);
    ASSERT_TRUE(a && b && a->recipe && b->recipe);
    EXPECT_FALSE(a->recipe->settings.back().exact == b->recipe->settings.back().exact);
    EXPECT_TRUE(a->recipe->made == b->recipe->made);
  }
  // Made again at the same place it is another one; memory that is none is refused.
  ASSERT_EQ(cublasLtMatrixLayoutInit_internal(&first, sizeof first, 0, 16, 32, 64), 0);
  EXPECT_EQ(made_of(), 16u);
  Layout none{};
  EXPECT_EQ(ask(none), 1);
  EXPECT_EQ(cublasLtMatrixLayoutGetAttribute(reinterpret_cast<void*>(0x1000), kBatchCount, &got, 4,
                                             &written),
            1)
      << "no memory at all";
  // A program that makes them in a loop does not use up the handles.
  for (int i = 0; i < 3000; ++i)
    ASSERT_EQ(cublasLtMatrixLayoutInit_internal(&first, sizeof first, 0, 16, 32, 64), 0);
  size_t objects = 0;
  std::lock_guard lock(State::get().mutex);
  State::get().objects.for_each([&](uint64_t, auto&) { ++objects; });
  EXPECT_LT(objects, 1100u);
}

TEST_F(BesideTables, CufftXtOverOneGpu) {
  int32_t plan = 0;
  const int32_t gpus[] = {0, 1}, foreign[] = {7};
  size_t work[2];
  void *in = nullptr, *out = nullptr;
  ASSERT_EQ(cufftCreate(&plan), 0);
  EXPECT_EQ(cufftXtSetGPUs(plan, 2, gpus), 16) << "more than one";
  EXPECT_EQ(cufftXtSetGPUs(plan, 1, foreign), 11);
  ASSERT_EQ(cufftXtSetGPUs(plan, 1, gpus), 0);
  EXPECT_EQ(cufftXtMalloc(plan, &in, 0), 1) << "before the plan is made";
  ASSERT_EQ(cufftMakePlan1d(plan, 100, 0x2a, 3, work), 0);  // R2C
  ASSERT_EQ(cufftXtMalloc(plan, &in, 0), 0);
  ASSERT_EQ(cufftXtMalloc(plan, &out, 1), 0);
  struct Memory {
    int32_t version, gpus, gpu[64];
    void* data[64];
    size_t size[64];
    void* state;
  };
  struct Descriptor {
    int32_t version;
    Memory* memory;
    int32_t library, format;
    void* plan;
  };
  const Memory &from = *static_cast<Descriptor*>(in)->memory,
               &to = *static_cast<Descriptor*>(out)->memory;
  EXPECT_EQ(from.gpus, 1);
  EXPECT_EQ(from.size[0], 3u * 100 * 4);
  EXPECT_EQ(to.size[0], 3u * 51 * 8);
  std::vector<float> numbers(300), back(306);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i);
  EXPECT_EQ(cufftXtMemcpy(plan, in, numbers.data(), 0), 0);
  EXPECT_EQ(cufftXtExecDescriptorR2C(plan, in, out), 0);
  const FakeCall* run = last("cufftExecR2C");
  ASSERT_NE(run, nullptr);
  EXPECT_EQ(run->words[1], reinterpret_cast<uint64_t>(from.data[0]));
  EXPECT_EQ(run->words[2], reinterpret_cast<uint64_t>(to.data[0]));
  EXPECT_EQ(cufftXtExecDescriptorR2C(plan, out, in), 4) << "they hold too little";
  EXPECT_EQ(cufftXtMemcpy(plan, back.data(), in, 1), 0);
  EXPECT_EQ(back[299], 299.f);
  EXPECT_EQ(cufftXtMemcpy(plan, back.data(), numbers.data(), 1), 4) << "no descriptor";
  // Code of the program's in the transform: one routine, one piece of memory for it.
  void *routine = reinterpret_cast<void*>(0x7f0000001000), *info = at(256), *wrong = &routine;
  EXPECT_EQ(cufftXtSetCallback(plan, &routine, 2, &info), 0);
  EXPECT_EQ(as<uint64_t>(last("cufftXtSetCallback")->read[1]), 0x7f0000001000u);
  EXPECT_EQ(as<uint64_t>(last("cufftXtSetCallback")->read[3]), world().memory + 256);
  EXPECT_EQ(cufftXtSetCallback(plan, &routine, 2, &wrong), 4) << "host memory";
  EXPECT_EQ(cufftXtFree(in), 0);
  EXPECT_EQ(cufftXtFree(in), 4) << "twice";
  EXPECT_EQ(cufftXtFree(out), 0);
  EXPECT_EQ(cufftDestroy(plan), 0);
}

TEST_F(BesideTables, GeneratorsInHostMemory) {
  void *host, *device;
  ASSERT_EQ(curandCreateGeneratorHost(&host, 100), 0);
  ASSERT_EQ(curandCreateGenerator(&device, 100), 0);
  std::vector<float> numbers(1000);
  uint64_t made = 0;
  fake().instead["curandGenerateNormal"] = [&](const uint64_t* words) -> int64_t {
    float mean;
    std::memcpy(&mean, &words[3], sizeof mean);
    auto* out = reinterpret_cast<float*>(words[1]);
    for (made = 0; made < words[2]; ++made) out[made] = mean + static_cast<float>(made);
    return 0;
  };
  // The copy out of the handler's own memory, which the recording does not know.
  const ScopedAnswer copies(SLUICE_ON(cuMemcpyHtoDAsync_v2),
                            [](CUdeviceptr to, const void* from, size_t n, CUstream) {
                              Recording::get().memory.write(to, from, n);
                              return CUDA_SUCCESS;
                            });
  EXPECT_EQ(curandGenerateNormal(host, numbers.data(), numbers.size(), 0.5f, 1), 0);
  EXPECT_EQ(made, numbers.size());
  EXPECT_EQ(numbers[0], 0.5f);
  EXPECT_EQ(numbers[999], 999.5f);
  EXPECT_EQ(curandGenerateSeeds(host), 0);
  EXPECT_NE(last("curandGenerateSeeds"), nullptr);
  fake().instead["curandGenerateNormal"] = [](const uint64_t*) -> int64_t { return 105; };
  numbers[0] = 8;
  EXPECT_EQ(curandGenerateNormal(host, numbers.data(), 3, 0, 1), 105);
  EXPECT_EQ(numbers[0], 8.f) << "nothing was made";
  // The other one writes where the program said, on the device.
  fake().instead.clear();
  EXPECT_EQ(curandGenerateNormal(device, reinterpret_cast<float*>(at(64)), 4, 0, 1), 0);
  EXPECT_EQ(last("curandGenerateNormal")->words[1], world().memory + 64);
  EXPECT_EQ(curandGenerateNormal(device, numbers.data(), 4, 0, 1), 104);
  EXPECT_EQ(curandDestroyGenerator(device), 0);
  EXPECT_EQ(curandDestroyGenerator(host), 0);
}

TEST_F(BesideTables, TablesOfCurandComeOnce) {
  uint32_t *a, *b;
  uint64_t *c, *again, *scramble;
  const auto get = [](auto** t) { return reinterpret_cast<void**>(t); };
  ASSERT_EQ(curandGetDirectionVectors32(get(&a), 101), 0);
  ASSERT_EQ(curandGetDirectionVectors32(get(&b), 102), 0);
  EXPECT_EQ(curandGetDirectionVectors32(get(&again), 7), 104) << "no such set";
  EXPECT_EQ(a[0], 7u);
  EXPECT_EQ(a[20000 * 32 - 1], 7u + 20000 * 32 - 1);
  EXPECT_EQ(b[0], 9u);
  ASSERT_EQ(curandGetDirectionVectors64(get(&c), 103), 0);
  for (size_t i = 0; i < 20000 * 64; i += 4099) ASSERT_EQ(c[i], 11 + i);
  EXPECT_EQ(c[20000 * 64 - 1], 11u + 20000 * 64 - 1);
  ASSERT_EQ(curandGetScrambleConstants64(get(&scramble)), 0);
  EXPECT_EQ(scramble[19999], 17u + 19999);
  const uint64_t before = world().channel->answered;
  ASSERT_EQ(curandGetDirectionVectors64(get(&again), 103), 0);
  EXPECT_EQ(again, c);
  EXPECT_EQ(world().channel->answered, before);
}

TEST_F(BesideTables, DistributionsAreAddressesThatKernelsRead) {
  uint64_t d = 0;
  EXPECT_EQ(curandCreatePoissonDistribution(-1, &d), 104);
  ASSERT_EQ(curandCreatePoissonDistribution(2, &d), 0);
  EXPECT_EQ(d, 0x700000000020u);
  EXPECT_EQ(curandDestroyDistribution(d), 0);
}

TEST_F(BesideTables, APaddingValueIsAsWideAsItsType) {
  void* descriptor;
  ASSERT_EQ(cudnnCreateRNNDataDescriptor(&descriptor), 0);
  for (const auto& [type, width] : std::map<int32_t, size_t>{{2, 2}, {0, 4}, {1, 8}}) {
    fake().instead["cudnnGetRNNDataDescriptor"] = [&, t = type](const uint64_t* words) -> int64_t {
      *reinterpret_cast<int32_t*>(words[1]) = t;
      std::memset(reinterpret_cast<void*>(words[8]), 0x5a, 8);
      return 0;
    };
    int32_t got = -1;
    std::array<unsigned char, 9> value{};
    ASSERT_EQ(cudnnGetRNNDataDescriptor(descriptor, &got, nullptr, nullptr, nullptr, nullptr, 0,
                                        nullptr, value.data()),
              0);
    EXPECT_EQ(got, type);
    EXPECT_EQ(value[width - 1], 0x5a);
    EXPECT_EQ(value[width], 0) << "type " << type;
  }
  EXPECT_EQ(cudnnDestroyRNNDataDescriptor(descriptor), 0);
}

}  // namespace
}  // namespace sluice::test
