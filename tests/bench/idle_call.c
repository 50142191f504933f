/* SPDX-License-Identifier: Apache-2.0
 * idle_call ROUNDS IDLE_MS: how long a call that waits takes when nothing was asked for a while,
 * and when it follows another one. Prints both medians in microseconds. Started by guest_wake.py.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int ascending(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? atoi(argv[1]) : 51;
  const long idle_ms = argc > 2 ? atol(argv[2]) : 100;
  void* cuda = dlopen("libcuda.so.1", RTLD_NOW);
  if (!cuda) {
    fprintf(stderr, "%s\n", dlerror());
    return 3;
  }
  int (*init)(unsigned) = (int (*)(unsigned))dlsym(cuda, "cuInit");
  int (*retain)(void**, int) = (int (*)(void**, int))dlsym(cuda, "cuDevicePrimaryCtxRetain");
  int (*current)(void*) = (int (*)(void*))dlsym(cuda, "cuCtxSetCurrent");
  int (*allocate)(unsigned long long*, size_t) =
      (int (*)(unsigned long long*, size_t))dlsym(cuda, "cuMemAlloc_v2");
  int (*copy)(void*, unsigned long long, size_t) =
      (int (*)(void*, unsigned long long, size_t))dlsym(cuda, "cuMemcpyDtoH_v2");
  void* context = NULL;
  unsigned long long address = 0;
  unsigned word = 0;
  if (init(0) || retain(&context, 0) || current(context) || allocate(&address, 4096)) {
    fprintf(stderr, "no vGPU\n");
    return 1;
  }
  double* cold = calloc((size_t)rounds, sizeof *cold);
  double* warm = calloc((size_t)rounds, sizeof *warm);
  if (!cold || !warm) return 1;
  for (int i = 0; i < rounds; ++i) {
    const struct timespec idle = {idle_ms / 1000, idle_ms % 1000 * 1000000};
    nanosleep(&idle, NULL);
    const double begun = now_us();
    int failed = copy(&word, address, 4);
    const double between = now_us();
    failed |= copy(&word, address, 4);
    cold[i] = between - begun;
    warm[i] = now_us() - between;
    if (failed) {
      fprintf(stderr, "a copy failed\n");
      return 1;
    }
  }
  qsort(cold, (size_t)rounds, sizeof *cold, ascending);
  qsort(warm, (size_t)rounds, sizeof *warm, ascending);
  printf("%.1f %.1f\n", cold[rounds / 2], warm[rounds / 2]);
  return 0;
}
