// SPDX-License-Identifier: Apache-2.0
// Stands in for NVIDIA's libcublas.so.13 where a test asks what libraries take: a handle has a
// workspace on the device and one on the host. It comes to the driver as the CUDA runtime inside
// NVIDIA's libraries does: libcuda.so.1 by name, then cuGetProcAddress.
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#define WORKSPACE ((size_t)32 << 20)

typedef struct {
  uint64_t device;
  void* host;
} Handle;

static int (*allocate)(uint64_t*, size_t);
static int (*release)(uint64_t);
static int (*allocate_host)(void**, size_t);
static int (*release_host)(void*);
static int (*left)(size_t*, size_t*);
static int (*fill)(uint64_t, unsigned, size_t);
static int (*fetch)(void*, uint64_t, size_t);

static int load(void) {
  if (left) return 0;
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!driver) return 1;
  int (*look)(const char*, void**, int, uint64_t, int*) =
      (int (*)(const char*, void**, int, uint64_t, int*))dlsym(driver, "cuGetProcAddress_v2");
  const struct {
    const char* name;
    void* to;
  } all[] = {
      {"cuMemAlloc", &allocate},        {"cuMemFree", &release}, {"cuMemAllocHost", &allocate_host},
      {"cuMemFreeHost", &release_host}, {"cuMemGetInfo", &left}, {"cuMemsetD32", &fill},
      {"cuMemcpyDtoH", &fetch}};
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i)
    if (!look || look(all[i].name, (void**)all[i].to, 13000, 0, NULL) != 0) return 1;
  return 0;
}

int cublasCreate_v2(void** handle) {
  if (load() != 0) return 1;  // CUBLAS_STATUS_NOT_INITIALIZED
  Handle* h = calloc(1, sizeof *h);
  if (allocate(&h->device, WORKSPACE) != 0) {
    free(h);
    return 3;  // CUBLAS_STATUS_ALLOC_FAILED
  }
  fill(h->device, (unsigned)h->device, WORKSPACE / 4);
  if (allocate_host(&h->host, 1 << 20) != 0) {
    release(h->device);
    free(h);
    return 3;
  }
  *handle = h;
  return 0;
}

int cublasDestroy_v2(void* handle) {
  Handle* h = handle;
  release(h->device);
  release_host(h->host);
  free(h);
  return 0;
}

// How many words of the workspace are not what they were: the call that answers a number of a
// handle's own.
int cublasGetSmCountTarget(void* handle, int* count) {
  const Handle* h = handle;
  unsigned* words = malloc(WORKSPACE);
  if (!words || fetch(words, h->device, WORKSPACE) != 0) return 14;
  *count = 0;
  for (size_t i = 0; i < WORKSPACE / 4; ++i) *count += words[i] != (unsigned)h->device;
  free(words);
  return 0;
}

// What the library sees of the GPU, in MiB: the one call that answers a number.
int cublasGetVersion_v2(void* handle, int* version) {
  (void)handle;
  size_t free_bytes = 0, total = 0;
  if (left(&free_bytes, &total) != 0) return 14;
  *version = (int)(free_bytes >> 20) * 100000 + (int)(total >> 20);
  return 0;
}
