// SPDX-License-Identifier: Apache-2.0
// Stands in for NVIDIA's libcublas.so.13 and libcublasLt.so.13 where a test asks what a product
// computes: a kernel whose result depends on every number and address that the call and its objects
// were told, each read when the call is made, as the real ones do. It comes to the driver as the
// CUDA runtime inside NVIDIA's libraries does: libcuda.so.1 by name, then cuGetProcAddress.
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define WORDS 256
#define ATTRIBUTES 64
#define BIAS_POINTER 8

static const char ptx[] =
    ".version 7.0\n.target sm_75\n.address_size 64\n"
    ".visible .entry product(.param .u64 to, .param .u64 a, .param .u64 b, .param .u32 salt) {\n"
    "  .reg .b32 %r<9>;\n  .reg .b64 %rd<9>;\n"
    "  ld.param.u64 %rd1, [to];\n  ld.param.u64 %rd2, [a];\n  ld.param.u64 %rd3, [b];\n"
    "  ld.param.u32 %r1, [salt];\n  mov.u32 %r2, %tid.x;\n  mul.wide.u32 %rd4, %r2, 4;\n"
    "  add.s64 %rd5, %rd1, %rd4;\n  add.s64 %rd6, %rd2, %rd4;\n  add.s64 %rd7, %rd3, %rd4;\n"
    "  ld.global.u32 %r3, [%rd5];\n  ld.global.u32 %r4, [%rd6];\n  ld.global.u32 %r5, [%rd7];\n"
    "  xor.b32 %r6, %r3, %r4;\n  mul.lo.s32 %r6, %r6, 1664525;\n  add.s32 %r6, %r6, %r5;\n"
    "  xor.b32 %r6, %r6, %r1;\n  st.global.u32 [%rd5], %r6;\n  ret;\n}\n";

typedef struct {
  void* stream;
  uint64_t workspace;
  int math_mode, pointer_mode;
} Handle;

typedef struct {
  uint64_t values[ATTRIBUTES];
} Descriptor;

static int (*load_module)(void**, const void*);
static int (*get_function)(void**, void*, const char*);
static int (*launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                     void*, void**, void**);
static void* product_function;

static int load(void) {
  if (product_function) return 0;
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!driver) return 1;
  int (*look)(const char*, void**, int, uint64_t, int*) =
      (int (*)(const char*, void**, int, uint64_t, int*))dlsym(driver, "cuGetProcAddress_v2");
  const struct {
    const char* name;
    void* to;
  } all[] = {{"cuModuleLoadData", &load_module},
             {"cuModuleGetFunction", &get_function},
             {"cuLaunchKernel", &launch}};
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i)
    if (!look || look(all[i].name, (void**)all[i].to, 13000, 0, NULL) != 0) return 1;
  void* module = NULL;
  if (load_module(&module, ptx) != 0) return 1;
  return get_function(&product_function, module, "product");
}

static uint32_t mix(uint32_t salt, uint64_t value) {
  salt = (salt ^ (uint32_t)value) * 2654435761u;
  return (salt ^ (uint32_t)(value >> 32)) * 2246822519u;
}

static int product(void* to, const void* a, const void* b, uint32_t salt, void* stream) {
  void* params[] = {&to, &a, &b, &salt};
  return launch(product_function, 1, 1, 1, WORDS, 1, 1, 0, stream, params, NULL) == 0 ? 0 : 13;
}

static uint32_t bits_of(const float* value) {
  uint32_t bits = 0;
  if (value) memcpy(&bits, value, sizeof bits);
  return bits;
}

// cuBLAS

int cublasCreate_v2(void** handle) {
  if (load() != 0) return 1;  // CUBLAS_STATUS_NOT_INITIALIZED
  *handle = calloc(1, sizeof(Handle));
  return 0;
}

int cublasDestroy_v2(void* handle) {
  free(handle);
  return 0;
}

int cublasSetStream_v2(void* handle, void* stream) {
  Handle* h = handle;
  h->stream = stream;
  h->workspace = 0;
  return 0;
}

int cublasSetWorkspace_v2(void* handle, void* workspace, size_t bytes) {
  (void)bytes;
  ((Handle*)handle)->workspace = (uint64_t)workspace;
  return 0;
}

int cublasSetMathMode(void* handle, int mode) {
  ((Handle*)handle)->math_mode = mode;
  return 0;
}

int cublasSetPointerMode_v2(void* handle, int mode) {
  ((Handle*)handle)->pointer_mode = mode;
  return 0;
}

int cublasSgemm_v2(void* handle, int transa, int transb, int m, int n, int k, const float* alpha,
                   const float* A, int lda, const float* B, int ldb, const float* beta, float* C,
                   int ldc) {
  const Handle* h = handle;
  const int numbers[] = {transa, transb, m, n, k, lda, ldb, ldc, h->math_mode, h->pointer_mode};
  uint32_t salt = mix(bits_of(alpha), bits_of(beta));
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; ++i)
    salt = mix(salt, (uint64_t)numbers[i]);
  return product(C, A, B, mix(salt, h->workspace != 0), h->stream);
}

// cuBLASLt

int cublasLtCreate(void** handle) { return cublasCreate_v2(handle); }

int cublasLtDestroy(void* handle) { return cublasDestroy_v2(handle); }

static int create(void** made, uint64_t a, uint64_t b, uint64_t c) {
  Descriptor* d = calloc(1, sizeof *d);
  d->values[60] = a;
  d->values[61] = b;
  d->values[62] = c;
  *made = d;
  return 0;
}

static int set(void* to, int attribute, const void* value, size_t bytes) {
  if (attribute < 0 || attribute >= 60 || bytes > 8) return 7;
  uint64_t word = 0;
  memcpy(&word, value, bytes);
  ((Descriptor*)to)->values[attribute] = word;
  return 0;
}

int cublasLtMatmulDescCreate(void** made, int compute, int scale) {
  return create(made, (uint64_t)compute, (uint64_t)scale, 0);
}

int cublasLtMatmulDescDestroy(void* d) {
  memset(d, 0xee, sizeof(Descriptor));
  free(d);
  return 0;
}

int cublasLtMatmulDescSetAttribute(void* d, int attribute, const void* value, size_t bytes) {
  return set(d, attribute, value, bytes);
}

int cublasLtMatrixLayoutCreate(void** made, int type, uint64_t rows, uint64_t columns, int64_t ld) {
  return create(made, mix((uint32_t)type, rows), columns, (uint64_t)ld);
}

int cublasLtMatrixLayoutDestroy(void* d) { return cublasLtMatmulDescDestroy(d); }

int cublasLtMatrixLayoutSetAttribute(void* d, int attribute, const void* value, size_t bytes) {
  return set(d, attribute, value, bytes);
}

int cublasLtMatmul(void* handle, void* description, const float* alpha, const void* A, void* a,
                   const void* B, void* b, const float* beta, const void* C, void* c, void* D,
                   void* d, const void* algo, void* workspace, size_t bytes, void* stream) {
  (void)handle, (void)C, (void)algo, (void)workspace, (void)bytes;
  const Descriptor* all[] = {description, a, b, c, d};
  uint32_t salt = mix(bits_of(alpha), bits_of(beta));
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i)
    for (int at = 0; at < ATTRIBUTES; ++at)
      if (i > 0 || at != BIAS_POINTER) salt = mix(salt, all[i]->values[at]);
  const uint64_t bias = all[0]->values[BIAS_POINTER];
  if (bias && (!product(D, A, (const void*)bias, salt, stream))) salt = mix(salt, 1);
  return product(D, A, B, salt, stream);
}
