// SPDX-License-Identifier: Apache-2.0
// What a call of a forwarded library costs its caller, once it is known to be valid: cublasSgemm
// with the same shape and other matrices, in bursts, and as many as the worker keeps up with. One
// JSON object on standard output, with how many had to be sent (counted.py). The worker has the
// stand-in of cuBLAS, which does nothing.
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

extern "C" {
int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void**, int);
int cuCtxSetCurrent(void*);
int cuMemAlloc_v2(uint64_t*, size_t);
int cuCtxSynchronize();
int cublasCreate_v2(void**);
int cublasSgemm_v2(void* handle, int transa, int transb, int m, int n, int k, const float* alpha,
                   const float* a, int lda, const float* b, int ldb, const float* beta, float* c,
                   int ldc);
}

namespace {

void need(int status, const char* what) {
  if (status == 0) return;
  std::fprintf(stderr, "%s: %d\n", what, status);
  std::exit(1);
}

double now_us() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) / 1e3;
}

void* g_handle;
float* g_matrix;
long g_calls;

void sgemm(int i) {
  const float alpha = static_cast<float>(i), beta = 0;
  float* a = g_matrix + i % 64 * 16;
  ++g_calls;
  need(cublasSgemm_v2(g_handle, 0, 1, 64, 64, 64, &alpha, a, 64, a + 4096, 64, &beta, a + 8192, 64),
       "cublasSgemm");
}

}  // namespace

int main() {
  void* context;
  uint64_t memory;
  need(cuInit(0), "cuInit");
  need(cuDevicePrimaryCtxRetain(&context, 0), "context");
  need(cuCtxSetCurrent(context), "context");
  need(cuMemAlloc_v2(&memory, 1 << 20), "memory");
  g_matrix = reinterpret_cast<float*>(memory);
  need(cublasCreate_v2(&g_handle), "cublasCreate");
  for (int i = 0; i < 10000; ++i) sgemm(i);
  need(cuCtxSynchronize(), "synchronize");
  constexpr int kBurst = 1000, kMany = 500000;
  std::vector<double> bursts;
  for (int b = 0; b < 200; ++b) {
    const double start = now_us();
    for (int i = 0; i < kBurst; ++i) sgemm(i);
    bursts.push_back((now_us() - start) / kBurst);
    need(cuCtxSynchronize(), "synchronize");
  }
  std::sort(bursts.begin(), bursts.end());
  const double start = now_us();
  for (int i = 0; i < kMany; ++i) sgemm(i);
  need(cuCtxSynchronize(), "synchronize");
  std::printf("{\"library_call_us\": %.4f, \"library_call_drained_us\": %.4f, \"commands\": %ld}\n",
              bursts[bursts.size() / 2], (now_us() - start) / kMany, g_calls);
  return 0;
}
