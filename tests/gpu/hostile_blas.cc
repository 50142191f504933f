// SPDX-License-Identifier: Apache-2.0
// cuBLAS and cuBLASLt: scalars, modes, attributes and algorithms that lie.
#include <functional>

#include "tests/gpu/hostile_libraries.h"

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
}

namespace hostile {

namespace {

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

}  // namespace

Cases blas_cases() {
#define SLUICE_CASE(name) {#name, name}
  return {
      SLUICE_CASE(honest_scale),
      SLUICE_CASE(honest_matmul),
      SLUICE_CASE(scalar_on_device_in_host_mode),
      SLUICE_CASE(scalar_on_host_in_device_mode),
      SLUICE_CASE(scalar_missing),
      SLUICE_CASE(pointer_mode_of_none),
      SLUICE_CASE(attribute_38),
      SLUICE_CASE(attribute_of_another_size),
      SLUICE_CASE(forged_algorithm),
      SLUICE_CASE(algorithm_of_nothing_known),
  };
#undef SLUICE_CASE
}

}  // namespace hostile
