// SPDX-License-Identifier: Apache-2.0
// A library that comes after the first managed memory and sets a handler for SIGSEGV (LIBRARY), as
// a JVM does: it passes on what is not its own. And a program with a handler that loads it: from
// the next managed memory on, each has its faults.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

static sigjmp_buf back;
static int faults;

#ifdef LIBRARY

static void* page;
static struct sigaction before;

static void on_fault(int number, siginfo_t* info, void* context) {
  if (info->si_addr == page) {
    ++faults;
    siglongjmp(back, 1);
  }
  if (before.sa_flags & SA_SIGINFO) return before.sa_sigaction(number, info, context);
  before.sa_handler(number);
}

void watch(void* own) {
  struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
  page = own;
  sigaction(SIGSEGV, &action, &before);
}

int fault(void) {
  if (sigsetjmp(back, 1) == 0) *(volatile int*)page = 1;
  return faults;
}

#else

int cudaMallocManaged(void**, size_t, unsigned), cudaMemset(void*, int, size_t);
int cudaDeviceSynchronize(void);

enum { kBytes = 1 << 20 };

static void on_fault(int number) {
  ++faults;
  siglongjmp(back, number);
}

static int fault_at(volatile int* page) {
  if (sigsetjmp(back, 1) == 0) *page = 1;
  return faults;
}

static volatile int* managed(void) {
  void* memory = NULL;
  if (cudaMallocManaged(&memory, kBytes, 1)) exit(1);
  return memory;
}

static int filled_by_the_device(volatile int* memory) {
  if (cudaMemset((void*)memory, 1, kBytes) || cudaDeviceSynchronize()) exit(2);
  return memory[0] == 0x01010101 && memory[kBytes / sizeof(int) - 1] == 0x01010101;
}

int main(int count, char** names) {
  int* pages = mmap(NULL, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  signal(SIGSEGV, on_fault);
  volatile int* first = managed();
  int right = filled_by_the_device(first), theirs = 0;
  void* library = count > 1 ? dlopen(names[1], RTLD_NOW) : NULL;
  if (!library) return 3;
  ((void (*)(void*))dlsym(library, "watch"))(pages);
  volatile int* second = managed();
  for (int i = 0; i < 3; ++i) {
    right += filled_by_the_device(first) + filled_by_the_device(second);
    theirs = ((int (*)(void))dlsym(library, "fault"))();
    fault_at(pages + 1024);
  }
  printf("%d times right, %d and %d faults\n", right, theirs, faults);
  return 0;
}

#endif
