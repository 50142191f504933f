// SPDX-License-Identifier: Apache-2.0
// Commands that no client of ours sends, to a real worker with NVIDIA's libraries: one case a
// process, as most of them end the session. tests/gpu/hostile_libraries.py runs them all and looks
// at how the worker ended. It is a client (our libcuda and forwarding libraries are linked into
// it): what a case needs is made by exported functions, the hostile command itself is written by
// hand.
//
//   hostile_libraries --list            names, one a line
//   hostile_libraries CASE              prints what came back: `status N`, `session ended`, `ok`
//   hostile_libraries sweep LIBRARY N   each function from the Nth on with each pointer NULL in
//   turn
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "client/core/session.h"
#include "client/library/object.h"
#include "client/library/outgoing.h"
#include "library/objects.h"
#include "wire/cudnn_backend.h"
#include "wire/cudnn_ctc.h"
#include "wire/library_sizes.h"
#include "wire/nccl.h"

namespace tables {
namespace cublas {
#include "library/cublas_table.inc"
}
namespace cublaslt {
#include "library/cublaslt_table.inc"
}
namespace cudnn {
#include "library/cudnn_table.inc"
}
namespace cufft {
#include "library/cufft_table.inc"
}
namespace curand {
#include "library/curand_table.inc"
}
namespace cusolver {
#include "library/cusolver_table.inc"
}
namespace cusparse {
#include "library/cusparse_table.inc"
}
namespace nccl {
#include "library/nccl_table.inc"
}
}  // namespace tables

extern "C" {
int32_t cublasCreate_v2(void** handle);
int32_t cublasLtMatmulDescCreate(void** desc, int32_t compute, int32_t scale);
int32_t cublasLtMatrixLayoutCreate(void** layout, int32_t type, uint64_t rows, uint64_t cols,
                                   int64_t ld);
int32_t cublasLtMatmulPreferenceCreate(void** preference);
int32_t cublasLtMatmulAlgoGetHeuristic(void* handle, void* desc, void* a, void* b, void* c, void* d,
                                       void* preference, int requested, void* results, int* got);
int32_t cublasLtMatmul(void* handle, void* desc, const void* alpha, const void* a, void* la,
                       const void* b, void* lb, const void* beta, const void* c, void* lc, void* d,
                       void* ld, const void* algo, void* workspace, size_t bytes, CUstream stream);
int32_t cusolverDnCreate(void** handle);
int32_t cusolverSpCreate(void** handle);
int32_t cusolverSpCreateCsrqrInfo(void** info);
int32_t cusolverRfCreate(void** handle);
int32_t cusparseCreate(void** handle);
int32_t cusparseCreateMatDescr(void** descriptor);
int32_t cusparseCreatePruneInfo(void** info);
int32_t cusparseSpruneCsr2csrNnzByPercentage(void* handle, int m, int n, int nnz, const void* a,
                                             const float* values, const int* offsets,
                                             const int* columns, float percentage, const void* c,
                                             int* offsets_of_c, int* nnz_of_c, void* info,
                                             void* buffer);
int32_t cusparseSpruneCsr2csrByPercentage(void* handle, int m, int n, int nnz, const void* a,
                                          const float* values, const int* offsets,
                                          const int* columns, float percentage, const void* c,
                                          float* values_of_c, const int* offsets_of_c,
                                          int* columns_of_c, void* info, void* buffer);
int32_t cudnnCreate(void** handle);
int32_t cudnnCreateTensorDescriptor(void** descriptor);
int32_t cudnnSetTensorNdDescriptor(void* descriptor, int32_t type, int n, const int* sizes,
                                   const int* strides);
int32_t cudnnSetTensor4dDescriptor(void* descriptor, int32_t format, int32_t type, int n, int c,
                                   int h, int w);
int32_t cudnnGetTensorNdDescriptor(void* descriptor, int requested, int32_t* type, int* n,
                                   int* sizes, int* strides);
int32_t cudnnCreateCTCLossDescriptor(void** descriptor);
int32_t cudnnSetCTCLossDescriptor(void* descriptor, int32_t type);
int32_t cudnnGetCTCLossWorkspaceSize(void* handle, void* probs, void* gradients, const int* labels,
                                     const int* lengths, const int* inputs, int32_t algorithm,
                                     void* loss, size_t* bytes);
int32_t cudnnBackendCreateDescriptor(int32_t type, void** descriptor);
int32_t cudnnBackendSetAttribute(void* descriptor, int32_t name, int32_t type, int64_t count,
                                 const void* elements);
int32_t cudnnBackendFinalize(void* descriptor);
int32_t cudnnBackendGetAttribute(void* descriptor, int32_t name, int32_t type, int64_t requested,
                                 int64_t* count, void* elements);
int32_t cufftCreate(int32_t* plan);
int32_t ncclGetUniqueId(void* id);
}

namespace {

using sluice::client::Device;
using sluice::client::Session;
using sluice::client::library::State;
using sluice::wire::FunctionSpec;
using sluice::wire::kCarried;
using sluice::wire::LibrarySpec;
using sluice::wire::ParamKind;
using sluice::wire::ParamSpec;
namespace ids = sluice::library;
namespace wire = sluice::wire;

constexpr uint64_t kMemory = 64 << 20;

const std::map<std::string, const LibrarySpec*>& libraries() {
  static const std::map<std::string, const LibrarySpec*> all{
      {"cublas", &tables::cublas::kLibrary},     {"cublaslt", &tables::cublaslt::kLibrary},
      {"cudnn", &tables::cudnn::kLibrary},       {"cufft", &tables::cufft::kLibrary},
      {"curand", &tables::curand::kLibrary},     {"cusolver", &tables::cusolver::kLibrary},
      {"cusparse", &tables::cusparse::kLibrary}, {"nccl", &tables::nccl::kLibrary}};
  return all;
}

const FunctionSpec& function(const std::string& name) {
  for (const auto& [library, spec] : libraries())
    for (uint16_t i = 0; i < spec->count; ++i)
      if (name == spec->functions[i].name) return spec->functions[i];
  std::fprintf(stderr, "%s is in no table\n", name.c_str());
  std::exit(2);
}

// The session, the GPU's context and some memory.
struct World {
  Session* session = nullptr;
  Device* device = nullptr;
  uint64_t memory = 0;

  World() {
    constexpr wire::LibraryStatus kStatus{1, 1, 1, 1, 1};
    CUdeviceptr at = 0;
    if (sluice::client::library::enter_library(kStatus, &session, &device) != 0 ||
        cuMemAlloc_v2(&at, kMemory) != CUDA_SUCCESS || cuMemsetD8_v2(at, 0, kMemory) != 0) {
      std::fprintf(stderr, "there is no session\n");
      std::exit(2);
    }
    memory = at;
  }
  template <class T>
  uint64_t put(uint64_t offset, const std::vector<T>& numbers) {
    cuMemcpyHtoD_v2(memory + offset, numbers.data(), numbers.size() * sizeof(T));
    return memory + offset;
  }
};

World& world() {
  static World w;
  return w;
}

uint64_t id(const void* handle) { return reinterpret_cast<uint64_t>(handle); }

uint64_t bits(float value) {
  uint32_t word;
  std::memcpy(&word, &value, 4);
  return word;
}

// What came of a command.
struct Outcome {
  bool ended = false;
  int64_t status = -1;
  std::vector<std::byte> body;
};

Outcome send(uint16_t function, const std::vector<uint64_t>& words, size_t room = 1 << 16) {
  Outcome o;
  o.body.resize(room);
  size_t got = 0;
  World& w = world();
  const CUresult e = w.session->exchange(function, words.data(), words.size() * 8, {}, o.body, &got,
                                         nullptr, w.device->index + 1);
  o.ended = e != CUDA_SUCCESS || got < 8;
  if (!o.ended) std::memcpy(&o.status, o.body.data(), 8);
  return o;
}

// One command of a table's function, word by word.
struct Frame {
  explicit Frame(const std::string& name) : f(function(name)), words(f.params) {}
  Frame& set(int index, uint64_t word) {
    words[static_cast<size_t>(index)] = word;
    return *this;
  }
  Frame& carry(int index, const void* data, size_t n) {
    words[static_cast<size_t>(index)] = kCarried | n;
    const size_t at = tail.size();
    tail.resize(at + (n + 7) / 8);
    if (n) std::memcpy(tail.data() + at, data, n);
    return *this;
  }
  template <class T>
  Frame& carry(int index, const T& value) {
    return carry(index, &value, sizeof value);
  }
  Frame& expect(int index, size_t n) { return set(index, kCarried | n); }
  Outcome send() const {
    std::vector<uint64_t> all = words;
    all.insert(all.end(), tail.begin(), tail.end());
    return ::send(f.id, all);
  }
  const FunctionSpec& f;
  std::vector<uint64_t> words, tail;
};

int say(const Outcome& o) {
  if (o.ended)
    std::printf("session ended\n");
  else
    std::printf("status %lld\n", static_cast<long long>(o.status));
  return 0;
}

int ok(bool good, const char* what) {
  std::printf(good ? "ok\n" : "wrong: %s\n", what);
  return good ? 0 : 1;
}

void need(int64_t status, const char* what) {
  if (status == 0) return;
  std::printf("wrong: %s returned %lld\n", what, static_cast<long long>(status));
  std::exit(1);
}

uint64_t cublas() {
  void* handle;
  need(cublasCreate_v2(&handle), "cublasCreate");
  return id(handle);
}

// Objects of the node's own making: State's id, made by a raw command.
uint64_t mint() {
  uint64_t made = 0;
  auto& state = State::get();
  std::lock_guard lock(state.mutex);
  state.objects.create(&made);
  return made;
}

Frame scale(uint64_t handle) {
  Frame f("cublasSscal_v2");
  f.set(0, handle).set(1, 4).set(3, world().memory).set(4, 1);
  return f;
}

int honest_scale() {
  world().put<float>(0, {1, 2, 3, 4});
  need(scale(cublas()).carry(2, 3.f).send().status, "cublasSscal");
  float got[4];
  cuMemcpyDtoH_v2(got, world().memory, sizeof got);
  return ok(got[0] == 3 && got[3] == 12, "the product");
}

int scalar_on_device_in_host_mode() {
  return say(scale(cublas()).set(2, world().memory + 4096).send());
}

int scalar_on_host_in_device_mode() {
  const uint64_t handle = cublas();
  need(Frame("cublasSetPointerMode_v2").set(0, handle).set(1, 1).send().status, "the mode");
  return say(scale(handle).carry(2, 3.f).send());
}

int scalar_missing() { return say(scale(cublas()).set(2, 0).send()); }

int pointer_mode_of_none() {
  return say(Frame("cublasSetPointerMode_v2").set(0, cublas()).set(1, 7).send());
}

// A descriptor of the node's.
uint64_t matmul_descriptor() {
  const uint64_t made = mint();
  need(Frame("cublasLtMatmulDescCreate").set(0, made).set(1, 68).set(2, 0).send().status,
       "a matmul");
  return made;
}

int attribute_38() {
  return say(Frame("cublasLtMatmulDescSetAttribute")
                 .set(0, matmul_descriptor())
                 .set(1, 38)
                 .set(3, 8)
                 .carry(2, uint64_t{0x7fff12345678})
                 .send());
}

int attribute_of_another_size() {
  return say(Frame("cublasLtMatmulDescSetAttribute")
                 .set(0, matmul_descriptor())
                 .set(1, 8)
                 .set(3, 4)
                 .carry(2, 1)
                 .send());
}

// D = A * B of 64 by 64 floats with an algorithm of the heuristic's, as `change` leaves it.
int matmul(const std::function<void(uint64_t*)>& change) {
  void *handle, *desc, *layout, *preference;
  need(cublasCreate_v2(&handle), "cublasCreate");
  need(cublasLtMatmulDescCreate(&desc, 68, 0), "a matmul");
  need(cublasLtMatrixLayoutCreate(&layout, 0, 64, 64, 64), "a layout");
  need(cublasLtMatmulPreferenceCreate(&preference), "a preference");
  uint64_t results[2 * 12] = {};
  int got = 0;
  need(cublasLtMatmulAlgoGetHeuristic(handle, desc, layout, layout, layout, layout, preference, 2,
                                      results, &got),
       "the heuristic");
  const float one = 1, zero = 0;
  std::vector<float> a(64 * 64, 1), b(64 * 64, 2);
  const uint64_t at = world().put(0, a), bt = world().put(65536, b), ct = world().memory + 131072;
  change(results);
  const auto pointer = [](uint64_t p) { return reinterpret_cast<void*>(p); };
  const int32_t status =
      cublasLtMatmul(handle, desc, &one, pointer(at), layout, pointer(bt), layout, &zero,
                     pointer(ct), layout, pointer(ct), layout, results, nullptr, 0, nullptr);
  if (status != 0) return std::printf("status %d\n", status), 0;
  float sum = 0;
  cuMemcpyDtoH_v2(&sum, ct, sizeof sum);
  return ok(sum == 128, "the product");
}

int honest_matmul() {
  return matmul([](uint64_t*) {});
}
int forged_algorithm() {
  return matmul([](uint64_t* algo) { algo[0] ^= 0x4141414100000000, algo[3] = ~0ull; });
}
int algorithm_of_nothing_known() {
  return matmul([](uint64_t* algo) {
    for (int i = 0; i < 8; ++i) algo[i] = 0x4141414141414141;
  });
}

// Eigenvalues of a diagonal matrix, with the host workspace that cuSOLVER wants, or with none.
int eigenvalues(bool enough) {
  void* handle;
  need(cusolverDnCreate(&handle), "cusolverDnCreate");
  constexpr uint64_t kN = 64, kDouble = 1, kComplex = 5;
  Frame query("cusolverDnXgeev_bufferSize"), f("cusolverDnXgeev");
  const uint64_t params = mint();
  need(Frame("cusolverDnCreateParams").set(0, params).send().status, "parameters");
  std::vector<double> a(kN * kN);
  for (size_t i = 0; i < kN; ++i) a[i * kN + i] = static_cast<double>(i + 1);
  const uint64_t at = world().put(0, a), values = world().memory + (1 << 20);
  const uint64_t vectors = world().memory + (2 << 20);
  const uint64_t numbers[] = {id(handle), params,  0,        0,      kN,      kDouble,
                              at,         kN,      kComplex, values, kDouble, vectors,
                              kN,         kDouble, vectors,  kN,     kDouble};
  for (int i = 0; i < 17; ++i) query.set(i, numbers[i]), f.set(i, numbers[i]);
  const Outcome sizes = query.expect(17, 8).expect(18, 8).send();
  need(sizes.status, "the sizes");
  uint64_t on_device, on_host;
  std::memcpy(&on_device, sizes.body.data() + 8, 8);
  std::memcpy(&on_host, sizes.body.data() + 16, 8);
  std::printf("cusolverDnXgeev wants %llu bytes on the host\n",
              static_cast<unsigned long long>(on_host));
  f.set(17, world().memory + (8 << 20)).set(18, on_device).set(20, enough ? on_host : on_host / 2);
  f.set(21, world().memory + (4 << 20));
  const Outcome o = f.send();
  if (!enough) return say(o);
  need(o.status, "cusolverDnXgeev");
  double got[2 * kN], sum = 0;
  cuMemcpyDtoH_v2(got, values, sizeof got);
  for (size_t i = 0; i < kN; ++i) sum += got[2 * i];
  return ok(std::abs(sum - 2080) < 1e-6, "the eigenvalues");
}

int honest_workspace() { return eigenvalues(true); }
int workspace_too_small() { return eigenvalues(false); }

// Solves a 3 by 3 system, or one whose index arrays lead elsewhere.
int solve(const std::vector<int32_t>& offsets, const std::vector<int32_t>& columns, int reorder,
          const char* name = "cusolverSpDcsrlsvqr") {
  void *handle, *descriptor;
  need(cusolverSpCreate(&handle), "cusolverSpCreate");
  need(cusparseCreateMatDescr(&descriptor), "a descriptor");
  Frame f(name);
  const uint64_t values = world().put<double>(0, {2, 1, 4, 1, 8}),
                 b = world().put<double>(256, {3, 4, 9});
  f.set(0, id(handle)).set(1, 3).set(2, columns.size());
  // The descriptor is a recipe in the client: the node's own is made here.
  const uint64_t on_node = mint();
  need(Frame("cusparseCreateMatDescr").set(0, on_node).send().status, "a descriptor");
  f.set(3, on_node).set(4, values).set(5, world().put(512, offsets));
  f.set(6, world().put(768, columns)).set(7, b);
  const double tolerance = 1e-12;
  uint64_t word;
  std::memcpy(&word, &tolerance, 8);
  f.set(8, word)
      .set(9, static_cast<uint64_t>(reorder))
      .set(10, world().memory + 1024)
      .expect(11, 4);
  const Outcome o = f.send();
  if (o.ended || o.status != 0) return say(o);
  double x[3];
  cuMemcpyDtoH_v2(x, world().memory + 1024, sizeof x);
  return ok(std::abs(x[0] - 1) < 1e-9 && std::abs(x[1] - 1) < 1e-9 && std::abs(x[2] - 1) < 1e-9,
            "the solution");
}

int honest_solve() { return solve({0, 2, 3, 5}, {0, 2, 1, 0, 2}, 1); }
int solve_column_beyond() { return solve({0, 2, 3, 5}, {0, 1 << 30, 1, 0, 2}, 1); }
int solve_column_before() { return solve({0, 2, 3, 5}, {0, -100000, 1, 0, 2}, 0); }
int solve_offsets_beyond() { return solve({0, 1 << 30, 3, 5}, {0, 2, 1, 0, 2}, 2); }
int solve_offsets_fall() { return solve({0, 3, 2, 5}, {0, 2, 1, 0, 2}, 3); }
int solve_cholesky_beyond() {
  return solve({0, 2, 3, 5}, {0, 1 << 29, 1, 0, 2}, 1, "cusolverSpDcsrlsvchol");
}

int analyse(bool good) {
  void* handle;
  need(cusolverSpCreate(&handle), "cusolverSpCreate");
  void* info;
  need(cusolverSpCreateCsrqrInfo(&info), "an info");
  const uint64_t on_node = mint();
  need(Frame("cusparseCreateMatDescr").set(0, on_node).send().status, "a descriptor");
  Frame f("cusolverSpXcsrqrAnalysis");
  f.set(0, id(handle)).set(1, 3).set(2, 3).set(3, 5).set(4, on_node);
  f.set(5, world().put<int32_t>(0, {0, 2, 3, 5}));
  f.set(6, world().put<int32_t>(256, {0, good ? 2 : 1 << 30, 1, 0, 2})).set(7, id(info));
  const Outcome o = f.send();
  return good ? (need(o.status, "the analysis"), ok(true, "")) : say(o);
}
int honest_analysis() { return analyse(true); }
int analysis_beyond() { return analyse(false); }

int factor_without_analysis() {
  void *handle, *info;
  need(cusolverSpCreate(&handle), "cusolverSpCreate");
  need(cusolverSpCreateCsrqrInfo(&info), "an info");
  Frame f("cusolverSpDcsrqrFactor");
  f.set(0, id(handle)).set(1, 3).set(2, 3).set(3, 5).set(6, id(info));
  f.set(4, world().memory).set(5, world().memory + 4096).set(7, world().memory + 8192);
  return say(f.send());
}

int honest_prune() {
  void *handle, *of_a, *of_c, *info;
  need(cusparseCreate(&handle), "cusparseCreate");
  need(cusparseCreateMatDescr(&of_a), "a descriptor");
  need(cusparseCreateMatDescr(&of_c), "a descriptor");
  need(cusparseCreatePruneInfo(&info), "an info");
  const auto at = [](uint64_t offset) { return reinterpret_cast<float*>(world().memory + offset); };
  const auto ints = [](uint64_t address) { return reinterpret_cast<int*>(address); };
  world().put<float>(0, {5, 1, 4, 2, 3});
  const int* offsets = ints(world().put<int32_t>(256, {0, 2, 3, 5}));
  const int* columns = ints(world().put<int32_t>(512, {0, 2, 1, 0, 2}));
  int* offsets_of_c = ints(world().put<int32_t>(768, {0, 0, 0, 0}));
  // Thirty of a hundred of five are two: 1 and 2.
  void* buffer = at(65536);  // far more than cuSPARSE asks for
  int kept = 0;
  need(cusparseSpruneCsr2csrNnzByPercentage(handle, 3, 3, 5, of_a, at(0), offsets, columns, 30,
                                            of_c, offsets_of_c, &kept, info, buffer),
       "the count");
  need(cusparseSpruneCsr2csrByPercentage(handle, 3, 3, 5, of_a, at(0), offsets, columns, 30, of_c,
                                         at(1024), offsets_of_c, ints(world().memory + 1280), info,
                                         buffer),
       "the pruning");
  float left[3] = {};
  need(cuMemcpyDtoH_v2(left, world().memory + 1024, sizeof left), "what it kept");
  return ok(kept == 3 && left[0] == 5 && left[1] == 4 && left[2] == 3, "what it kept");
}

// Without a count its info leads nowhere, and cuSPARSE follows it.
int prune_without_count() {
  void *handle, *info;
  need(cusparseCreate(&handle), "cusparseCreate");
  need(cusparseCreatePruneInfo(&info), "an info");
  const uint64_t of_a = mint(), of_c = mint(), at = world().memory;
  need(Frame("cusparseCreateMatDescr").set(0, of_a).send().status, "a descriptor");
  need(Frame("cusparseCreateMatDescr").set(0, of_c).send().status, "a descriptor");
  Frame f("cusparseSpruneCsr2csrByPercentage");
  f.set(0, id(handle)).set(1, 3).set(2, 3).set(3, 5).set(4, of_a).set(5, at);
  f.set(6, world().put<int32_t>(256, {0, 2, 3, 5}))
      .set(7, world().put<int32_t>(512, {0, 2, 1, 0, 2}));
  f.set(8, bits(30)).set(9, of_c).set(10, at + 1024).set(11, at + 768).set(12, at + 1280);
  return say(f.set(13, id(info)).set(14, at + 65536).send());
}

int refactor_beyond() {
  void* handle;
  need(cusolverRfCreate(&handle), "cusolverRfCreate");
  Frame f("cusolverRfSetupDevice");
  const uint64_t offsets = world().put<int32_t>(0, {0, 1, 2, 3}),
                 columns = world().put<int32_t>(256, {0, 1, 2}),
                 values = world().put<double>(512, {1, 1, 1}),
                 wrong = world().put<int32_t>(768, {0, 1 << 30, 2});
  f.set(0, 3);
  for (int matrix = 0; matrix < 3; ++matrix)
    f.set(1 + 4 * matrix, 3)
        .set(2 + 4 * matrix, offsets)
        .set(3 + 4 * matrix, columns)
        .set(4 + 4 * matrix, values);
  f.set(13, columns).set(14, wrong).set(15, id(handle));
  return say(f.send());
}

uint64_t plan() {
  int32_t made;
  need(cufftCreate(&made), "cufftCreate");
  return sluice::client::library::id_of_number(made);
}

int transform(int stride, int embedded) {
  Frame f("cufftMakePlanMany");
  const int32_t n[] = {8, 8}, embed[] = {0, embedded};
  f.set(0, plan())
      .set(1, 2)
      .carry(2, n, 8)
      .carry(3, embed, 8)
      .set(4, static_cast<uint32_t>(stride));
  f.set(5, 64).carry(6, embed, 8).set(7, 1).set(8, 64).set(9, 0x29).set(10, 1).expect(11, 8);
  return say(f.send());
}
int honest_transform() { return transform(1, 8); }
int stride_of_zero() { return transform(0, 8); }
int embedding_of_zero() { return transform(1, 0); }

// A communicator of one rank, with `bytes` of a configuration.
std::vector<uint64_t> making(uint64_t made, uint32_t bytes, uint64_t filling) {
  std::vector<uint64_t> unique(wire::kNcclIdBytes / 8);
  need(ncclGetUniqueId(unique.data()), "ncclGetUniqueId");
  wire::NcclMake head{made, 0, wire::NcclHow::kRank, 1, 0, 0, 0, 0, 1, bytes, 0, 0};
  std::vector<uint64_t> body((sizeof head + 7) / 8);
  std::memcpy(body.data(), &head, sizeof head);
  body.insert(body.end(), unique.begin(), unique.end());
  std::vector<uint64_t> config((bytes + 7) / 8, filling);
  if (bytes >= 24)
    config[0] = bytes, config[1] = 0xcafebeef | 22707ull << 32,
    config[2] = 1ull | 0x80000000ull << 32;
  body.insert(body.end(), config.begin(), config.end());
  return body;
}

Outcome group(const std::vector<std::pair<uint16_t, std::vector<uint64_t>>>& calls) {
  std::vector<uint64_t> words{calls.size() | (calls.size() > 1 ? 1ull << 32 : 0)};
  for (const auto& [function, body] : calls) {
    words.push_back(function | uint64_t{world().device->index + 1} << 32);
    words.push_back(body.size() * 8);
    words.insert(words.end(), body.begin(), body.end());
  }
  return send(ids::id_sluiceNcclGroup, words);
}

uint64_t communicator() {
  const uint64_t made = mint();
  need(group({{0, making(made, 32, 0x8000000080000000)}}).status, "a communicator");
  return made;
}

int configuration(uint32_t bytes) {
  return say(group({{0, making(mint(), bytes, 0x4141414141414141)}}));
}
int configuration_39() { return configuration(39); }
int configuration_55() { return configuration(55); }

int honest_reduction() {
  const uint64_t comm = communicator(), at = world().put<float>(0, {5, 6});
  need(group({{ids::id_ncclAllReduce, {at, at + 256, 2, 7, 0, comm, 0}}}).status, "a reduction");
  cuCtxSynchronize();
  float got[2];
  cuMemcpyDtoH_v2(got, at + 256, sizeof got);
  need(group({{ids::id_ncclCommDestroy, {comm}}}).status, "its end");
  return ok(got[1] == 6, "the sum");
}

int destroyed_twice() {
  const uint64_t comm = communicator();
  return say(group({{ids::id_ncclCommDestroy, {comm}}, {ids::id_ncclCommDestroy, {comm}}}));
}

// A loss of two texts, or of one in a command whose descriptor says two.
int loss(uint32_t batch, int label) {
  void *handle, *probs, *loss;
  need(cudnnCreate(&handle), "cudnnCreate");
  need(cudnnCreateTensorDescriptor(&probs), "a tensor");
  const int sizes[] = {8, 2, 5}, strides[] = {10, 5, 1};
  need(cudnnSetTensorNdDescriptor(probs, 0, 3, sizes, strides), "its sizes");
  need(cudnnCreateCTCLossDescriptor(&loss), "a loss");
  need(cudnnSetCTCLossDescriptor(loss, 0), "its type");
  const int labels[] = {1, label, 3}, lengths[] = {2, 1}, inputs[] = {8, 8};
  size_t bytes = 0;
  if (batch == 2) {
    const int32_t status = cudnnGetCTCLossWorkspaceSize(handle, probs, probs, labels, lengths,
                                                        inputs, 0, loss, &bytes);
    if (status != 0) return std::printf("status %d\n", status), 0;
    return ok(bytes > 0, "the workspace");
  }
  // The tensor is a recipe in the client; the node's own is made here.
  const uint64_t on_node = mint();
  need(Frame("cudnnCreateTensorDescriptor").set(0, on_node).send().status, "a tensor");
  Frame set("cudnnSetTensorNdDescriptor");
  set.set(0, on_node).set(1, 0).set(2, 3).carry(3, sizes, 12).carry(4, strides, 12);
  need(set.send().status, "its sizes");
  wire::CtcLoss call{id(handle), on_node, on_node, id(loss), 0, 0, 0, 0, 0, 0, batch, 1, 1};
  std::vector<uint64_t> words((sizeof call + 7) / 8);
  std::memcpy(words.data(), &call, sizeof call);
  words.push_back(1 | 1ull << 32);
  words.push_back(8);
  return say(send(ids::id_sluiceCudnnCtcLoss, words));
}
int honest_loss() { return loss(2, 2); }
int loss_of_another_batch() { return loss(1, 2); }
int loss_of_another_alphabet() { return loss(2, 1 << 20); }

int wide_value() {
  void* handle;
  need(cudnnCreate(&handle), "cudnnCreate");
  const uint64_t tensor = mint();
  need(Frame("cudnnCreateTensorDescriptor").set(0, tensor).send().status, "a tensor");
  Frame set("cudnnSetTensor4dDescriptor");
  const uint64_t numbers[] = {tensor, 2, 8, 1, 32, 2, 2};  // NCHW_VECT_C of INT8x32
  for (int i = 0; i < 7; ++i) set.set(i, numbers[i]);
  need(set.send().status, "its sizes");
  return say(Frame("cudnnSetTensor")
                 .set(0, id(handle))
                 .set(1, tensor)
                 .set(2, world().memory)
                 .carry(3, 7)
                 .send());
}

// y = x * s with s by value, as cuDNN's frontend makes it.
int by_value(bool honest) {
  void* handle;
  need(cudnnCreate(&handle), "cudnnCreate");
  const auto descriptor = [](int32_t type) {
    void* d;
    need(cudnnBackendCreateDescriptor(type, &d), "a descriptor");
    return d;
  };
  const auto set = [](void* d, int32_t name, int32_t type, int64_t n, const void* at) {
    need(cudnnBackendSetAttribute(d, name, type, n, at), "an attribute");
  };
  const auto tensor = [&](int64_t uid, int64_t size, bool value) {
    void* d = descriptor(17);
    const int64_t sizes[] = {1, size, 1}, strides[] = {size, 1, 1}, alignment = 16;
    const int32_t floats = 0;
    const uint8_t yes = 1;
    set(d, 901, 1, 1, &floats), set(d, 902, 3, 3, sizes), set(d, 903, 3, 3, strides);
    set(d, 906, 3, 1, &uid), set(d, 900, 3, 1, &alignment);
    if (value) set(d, 908, 2, 1, &yes);
    need(cudnnBackendFinalize(d), "a tensor");
    return d;
  };
  void *x = tensor(1, 64, false), *s = tensor(2, 1, true), *y = tensor(3, 64, false);
  void* multiply = descriptor(0);
  const int32_t mul = 1, floats = 0;
  set(multiply, 0, 14, 1, &mul), set(multiply, 1, 1, 1, &floats);
  need(cudnnBackendFinalize(multiply), "a pointwise");
  void* operation = descriptor(13);
  set(operation, 750, 15, 1, &multiply), set(operation, 751, 15, 1, &x);
  set(operation, 752, 15, 1, &s), set(operation, 753, 15, 1, &y);
  need(cudnnBackendFinalize(operation), "an operation");
  void* graph = descriptor(15);
  set(graph, 800, 0, 1, &handle), set(graph, 801, 15, 1, &operation);
  need(cudnnBackendFinalize(graph), "a graph");
  void* heuristic = descriptor(4);
  const int32_t instant = 0;
  set(heuristic, 201, 15, 1, &graph), set(heuristic, 200, 8, 1, &instant);
  need(cudnnBackendFinalize(heuristic), "a heuristic");
  void* config = descriptor(3);
  int64_t got = 0;
  need(cudnnBackendGetAttribute(heuristic, 202, 15, 1, &got, &config), "its results");
  void* plan = descriptor(5);
  set(plan, 400, 0, 1, &handle), set(plan, 401, 15, 1, &config);
  need(cudnnBackendFinalize(plan), "a plan");
  world().put<float>(0, std::vector<float>(64, 3));
  wire::BackendExecute head{id(handle), id(plan), world().memory + (1 << 20), 3, honest ? 8u : 0u};
  std::vector<uint64_t> words(sizeof head / 8);
  std::memcpy(words.data(), &head, sizeof head);
  words.insert(words.end(), {1, 2, 3, world().memory, honest ? kCarried : world().memory + 8192,
                             world().memory + 4096});
  if (honest) words.push_back(bits(2));
  const Outcome o = send(ids::id_sluiceCudnnBackendExecute, words);
  if (!honest) return say(o);
  need(o.status, "the execution");
  float product;
  cuMemcpyDtoH_v2(&product, world().memory + 4096 + 63 * 4, sizeof product);
  return ok(product == 6, "the product");
}
int honest_value() { return by_value(true); }
int value_on_the_device() { return by_value(false); }

// One object of each kind that can be made of numbers alone, by the number of its kind.
std::map<uint8_t, uint64_t> furnish() {
  std::map<uint8_t, uint64_t> made;
  for (int round = 0; round < 3; ++round) {
    for (const auto& [name, spec] : libraries()) {
      for (uint16_t i = 0; i < spec->count; ++i) {
        const FunctionSpec& f = spec->functions[i];
        if (f.state != wire::CallState::kCreates) continue;
        std::vector<uint64_t> words(f.params);
        uint8_t kind = 0;
        bool possible = true;
        const uint64_t fresh = mint();
        for (int k = 0; k < f.params; ++k) {
          const ParamSpec& p = f.param[k];
          if (p.kind == ParamKind::kMint)
            kind = p.object, words[static_cast<size_t>(k)] = fresh;
          else if (p.kind == ParamKind::kHandle && made.contains(p.object))
            words[static_cast<size_t>(k)] = made[p.object];
          else if (p.kind == ParamKind::kValue)
            words[static_cast<size_t>(k)] = std::string(f.name).find("curand") == 0 ? 100 : 2;
          else if (p.kind == ParamKind::kAddress)
            words[static_cast<size_t>(k)] = world().memory + static_cast<uint64_t>(k) * 65536;
          else
            possible = false;
        }
        if (!possible || kind == 0 || made.contains(kind) || f.host_memory) continue;
        const Outcome o = ::send(f.id, words);
        if (o.ended) return made;
        if (o.status == 0) made[kind] = fresh;
      }
    }
  }
  return made;
}

// A frame of small numbers; nothing where an object is missing or the function is not for this.
std::vector<uint64_t> ordinary(const FunctionSpec& f, const std::map<uint8_t, uint64_t>& objects) {
  std::vector<uint64_t> words(f.params);
  if (f.params == 0 || f.text || f.state == wire::CallState::kCreates ||
      f.state == wire::CallState::kDestroys || f.grouped)
    return {};
  for (int k = 0; k < f.params; ++k) {
    const ParamSpec& p = f.param[k];
    uint64_t& word = words[static_cast<size_t>(k)];
    if (p.kind == ParamKind::kHandle) {
      if (objects.contains(p.object))
        word = objects.at(p.object);
      else if (!p.nullable)
        return {};
    }
    if (p.kind == ParamKind::kAddress) word = world().memory + static_cast<uint64_t>(k) * 1048576;
    if (p.kind == ParamKind::kValue) word = p.bounded ? static_cast<uint64_t>(p.least) : 1;
    if (p.kind == ParamKind::kEvent) return {};
  }
  for (int k = 0; k < f.params; ++k) {
    const ParamSpec& p = f.param[k];
    if (p.kind == ParamKind::kAttribute) {
      words[static_cast<size_t>(p.by)] = p.attributes[0].name;
      words[static_cast<size_t>(p.count[0])] = p.attributes[0].bytes;
    }
    if (p.size == wire::ScalarSize::kComputeType) words[static_cast<size_t>(p.by)] = 68;
  }
  for (int k = 0; k < f.params; ++k) {
    const ParamSpec& p = f.param[k];
    const uint64_t n = wire::elements(f, p, words.data());
    const auto carry = [&](uint64_t bytes, uint64_t filling) {
      words[static_cast<size_t>(k)] = kCarried | bytes;
      words.resize(words.size() + (bytes + 7) / 8, filling);
    };
    switch (p.kind) {
      case ParamKind::kScalar:
        if (p.size == wire::ScalarSize::kNcclType && words[static_cast<size_t>(p.by2)] == 0)
          words[static_cast<size_t>(k)] = world().memory;
        else
          carry(16, 0x3ff000003f800000);
        break;
      case ParamKind::kResult:
        words[static_cast<size_t>(k)] = kCarried | 16;
        break;
      case ParamKind::kIn:
      case ParamKind::kInOut:
      case ParamKind::kAttribute:
        carry(n * (p.kind == ParamKind::kAttribute ? 1 : wire::element_bytes(p, words.data())),
              0x0000000100000001);
        break;
      case ParamKind::kOut:
        words[static_cast<size_t>(k)] = kCarried | n * wire::element_bytes(p, words.data());
        break;
      case ParamKind::kOutAddress:
      case ParamKind::kOutHandle:
        words[static_cast<size_t>(k)] = kCarried | 8;
        break;
      case ParamKind::kString:
        carry(8, 0x0074786574);
        break;
      case ParamKind::kInHandles:
      case ParamKind::kInAddresses:
        return {};
      default:
        break;
    }
  }
  return words;
}

// Takes a carried piece out of a frame: its pointer is NULL.
std::vector<uint64_t> without(const FunctionSpec& f, std::vector<uint64_t> words, int index) {
  size_t at = f.params;
  for (int k = 0; k <= index; ++k) {
    const ParamSpec& p = f.param[k];
    const uint64_t word = words[static_cast<size_t>(k)];
    const bool sent = (word & kCarried) && p.kind != ParamKind::kOut &&
                      p.kind != ParamKind::kResult && p.kind != ParamKind::kOutAddress &&
                      p.kind != ParamKind::kOutHandle && p.kind != ParamKind::kHandle;
    const size_t n = sent ? ((word & ~kCarried) + 7) / 8 : 0;
    if (k == index) {
      words.erase(words.begin() + static_cast<ptrdiff_t>(at),
                  words.begin() + static_cast<ptrdiff_t>(at + n));
      words[static_cast<size_t>(k)] = 0;
    }
    at += n;
  }
  return words;
}

// What the library follows on the CPU: memory of the worker's, and objects that may be left out.
bool is_on_host(const ParamSpec& p) {
  switch (p.kind) {
    case ParamKind::kValue:
    case ParamKind::kStream:
    case ParamKind::kAddress:
    case ParamKind::kHostWorkspace:
    case ParamKind::kNothing:
      return false;
    case ParamKind::kHandle:
      return p.nullable;
    default:
      return true;
  }
}

// Says what it is about to call, so that whoever reads it knows what ended the session.
int sweep(const std::string& name, uint32_t from) {
  if (!libraries().contains(name)) return 2;
  const LibrarySpec& spec = *libraries().at(name);
  const std::map<uint8_t, uint64_t> objects = furnish();
  uint32_t at = 0, sent = 0;
  for (uint16_t i = 0; i < spec.count; ++i) {
    const FunctionSpec& f = spec.functions[i];
    const std::vector<uint64_t> good = ordinary(f, objects);
    for (int k = -1; k < f.params && !good.empty(); ++k) {
      // NULL on the device ends the GPU's context and nothing else.
      const bool pointer = k < 0 || is_on_host(f.param[k]);
      if (!pointer || at++ < from) continue;
      std::printf("%u %s %d\n", at, f.name, k + 1);
      std::fflush(stdout);
      ++sent;
      const Outcome o = send(f.id, k < 0 ? good : without(f, good, k));
      if (o.ended) {
        std::printf("session ended\n");
        return 0;
      }
      std::printf("  %lld\n", static_cast<long long>(o.status));
      if (cuCtxSynchronize() != CUDA_SUCCESS) {
        std::printf("the GPU ended it\n");
        return 0;
      }
    }
  }
  std::printf("swept %u\n", sent);
  return 0;
}

const std::vector<std::pair<std::string, int (*)()>>& cases() {
#define SLUICE_CASE(name) {#name, name}
  static const std::vector<std::pair<std::string, int (*)()>> all{
      SLUICE_CASE(honest_scale),
      SLUICE_CASE(honest_matmul),
      SLUICE_CASE(honest_workspace),
      SLUICE_CASE(honest_solve),
      SLUICE_CASE(honest_analysis),
      SLUICE_CASE(honest_transform),
      SLUICE_CASE(honest_reduction),
      SLUICE_CASE(honest_loss),
      SLUICE_CASE(honest_value),
      SLUICE_CASE(scalar_on_device_in_host_mode),
      SLUICE_CASE(scalar_on_host_in_device_mode),
      SLUICE_CASE(scalar_missing),
      SLUICE_CASE(pointer_mode_of_none),
      SLUICE_CASE(attribute_38),
      SLUICE_CASE(attribute_of_another_size),
      SLUICE_CASE(forged_algorithm),
      SLUICE_CASE(algorithm_of_nothing_known),
      SLUICE_CASE(workspace_too_small),
      SLUICE_CASE(solve_column_beyond),
      SLUICE_CASE(solve_column_before),
      SLUICE_CASE(solve_offsets_beyond),
      SLUICE_CASE(solve_offsets_fall),
      SLUICE_CASE(solve_cholesky_beyond),
      SLUICE_CASE(analysis_beyond),
      SLUICE_CASE(factor_without_analysis),
      SLUICE_CASE(refactor_beyond),
      SLUICE_CASE(honest_prune),
      SLUICE_CASE(prune_without_count),
      SLUICE_CASE(stride_of_zero),
      SLUICE_CASE(embedding_of_zero),
      SLUICE_CASE(configuration_39),
      SLUICE_CASE(configuration_55),
      SLUICE_CASE(destroyed_twice),
      SLUICE_CASE(loss_of_another_batch),
      SLUICE_CASE(loss_of_another_alphabet),
      SLUICE_CASE(wide_value),
      SLUICE_CASE(value_on_the_device),
  };
#undef SLUICE_CASE
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "--list") {
    for (const auto& [name, run] : cases()) std::printf("%s\n", name.c_str());
    return 0;
  }
  if (what == "sweep" && argc == 4)
    return sweep(argv[2], static_cast<uint32_t>(std::strtoul(argv[3], nullptr, 10)));
  for (const auto& [name, run] : cases())
    if (name == what) return run();
  std::fprintf(stderr, "usage: hostile_libraries --list | CASE | sweep LIBRARY FROM\n");
  return 2;
}
