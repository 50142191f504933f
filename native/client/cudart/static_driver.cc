// SPDX-License-Identifier: Apache-2.0
// The driver, for the runtime that is linked into a program (libcudart_static.a): nothing names
// libcuda.so.1 at link time, so every driver function is a jump through a slot that is filled from
// dlopen and dlsym when the function is first called. Part of the archive alone. A function that
// the driver lacks answers CUDA_ERROR_NOT_SUPPORTED; without a driver, all answer what the runtime
// calls cudaErrorInsufficientDriver. x86-64, as all of Sluice's client.
#include <dlfcn.h>

#include <atomic>

#include "client/cudart/driver.h"

namespace {

struct Slot {
  std::atomic<void*> target;
  const char* name;
};
static_assert(sizeof(Slot) == 16);

// By this `sluice check` tells it from NVIDIA's.
[[gnu::used, gnu::retain]] const char kMark[] = "sluice: the CUDA runtime, relinked";

CUresult no_function() { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult no_driver() { return static_cast<CUresult>(cudaErrorInsufficientDriver); }

void* driver_library() {
  static void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  return library;
}

// nullptr: there is no driver, or none that has it.
void* of_driver(const char* name) {
  void* library = driver_library();
  return library ? dlsym(library, name) : nullptr;
}

}  // namespace

// What driver.h takes from our libcuda.so.1, where that is the driver.
extern "C" [[gnu::visibility("hidden")]] void sluice_runtime_version(int version) {
  void* function = of_driver("sluice_runtime_version");
  if (function) reinterpret_cast<void (*)(int)>(function)(version);
}

extern "C" [[gnu::visibility("hidden")]] const uint32_t* sluice_runtime_contexts() {
  void* function = of_driver("sluice_runtime_contexts");
  return function ? reinterpret_cast<const uint32_t* (*)()>(function)() : nullptr;
}

// Called by the code below with the arguments of the function saved.
extern "C" [[gnu::used, gnu::visibility("hidden")]] void* sluice_find_driver_function(Slot* slot) {
  void* target = of_driver(slot->name);
  if (!target) target = reinterpret_cast<void*>(driver_library() ? no_function : no_driver);
  slot->target.store(target, std::memory_order_release);
  return target;
}

// %r11 holds the slot. All registers that can carry arguments are kept.
asm(R"(
.text
.type sluice_resolve_driver_function,@function
sluice_resolve_driver_function:
  pushq %rdi
  pushq %rsi
  pushq %rdx
  pushq %rcx
  pushq %r8
  pushq %r9
  pushq %rax
  subq $128, %rsp
  movaps %xmm0, (%rsp)
  movaps %xmm1, 16(%rsp)
  movaps %xmm2, 32(%rsp)
  movaps %xmm3, 48(%rsp)
  movaps %xmm4, 64(%rsp)
  movaps %xmm5, 80(%rsp)
  movaps %xmm6, 96(%rsp)
  movaps %xmm7, 112(%rsp)
  movq %r11, %rdi
  call sluice_find_driver_function
  movq %rax, %r11
  movaps (%rsp), %xmm0
  movaps 16(%rsp), %xmm1
  movaps 32(%rsp), %xmm2
  movaps 48(%rsp), %xmm3
  movaps 64(%rsp), %xmm4
  movaps 80(%rsp), %xmm5
  movaps 96(%rsp), %xmm6
  movaps 112(%rsp), %xmm7
  addq $128, %rsp
  popq %rax
  popq %r9
  popq %r8
  popq %rcx
  popq %rdx
  popq %rsi
  popq %rdi
  jmpq *%r11
.size sluice_resolve_driver_function, .-sluice_resolve_driver_function
)");

#define SLUICE_DRIVER_FUNCTION(function)              \
  asm(".text\n"                                       \
      ".globl " #function                             \
      "\n"                                            \
      ".hidden " #function                            \
      "\n"                                            \
      ".type " #function ",@function\n" #function     \
      ":\n"                                           \
      "  leaq .Lslot_" #function                      \
      "(%rip), %r11\n"                                \
      "  jmpq *(%r11)\n"                              \
      ".size " #function ", .-" #function             \
      "\n"                                            \
      ".section .rodata.str1.1,\"aMS\",@progbits,1\n" \
      ".Lname_" #function ": .string \"" #function    \
      "\"\n"                                          \
      ".data\n"                                       \
      ".balign 16\n"                                  \
      ".Lslot_" #function                             \
      ":\n"                                           \
      "  .quad sluice_resolve_driver_function\n"      \
      "  .quad .Lname_" #function                     \
      "\n"                                            \
      ".text\n");
#include "abi/driver_functions.inc"
#undef SLUICE_DRIVER_FUNCTION
