// SPDX-License-Identifier: Apache-2.0
// cuSOLVER and cuSPARSE: workspaces too small, and indices that lead elsewhere.
#include <cmath>

#include "tests/gpu/hostile_libraries.h"

extern "C" {
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
}

namespace hostile {

namespace {

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

}  // namespace

Cases solver_cases() {
#define SLUICE_CASE(name) {#name, name}
  return {
      SLUICE_CASE(honest_workspace),
      SLUICE_CASE(honest_solve),
      SLUICE_CASE(honest_analysis),
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
  };
#undef SLUICE_CASE
}

}  // namespace hostile
