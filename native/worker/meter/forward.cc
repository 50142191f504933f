// SPDX-License-Identifier: Apache-2.0
// Every function that libcuda.so.1 exports, as one jump through a slot of its own: it keeps all
// registers, so that no signature is needed. A slot holds the driver's function, or the metered one
// in its place. What a newer driver has beyond our list is reached through cuGetProcAddress, as the
// CUDA runtime does.
#include "worker/meter/forward.h"

#include <dlfcn.h>

#include <cstring>
#include <iterator>

namespace {
CUresult not_bound() { return CUDA_ERROR_NOT_INITIALIZED; }
CUresult absent() { return CUDA_ERROR_NOT_SUPPORTED; }
}  // namespace

extern "C" {
#define SLUICE_DRIVER_FUNCTION(name)                                     \
  __attribute__((visibility("hidden"), used)) void* sluice_slot_##name = \
      reinterpret_cast<void*>(&not_bound);                               \
  asm(".pushsection .text\n"                                             \
      ".p2align 4\n"                                                     \
      ".globl " #name                                                    \
      "\n"                                                               \
      ".type " #name ", @function\n" #name                               \
      ":\n"                                                              \
      "  endbr64\n"                                                      \
      "  jmp *sluice_slot_" #name                                        \
      "(%rip)\n"                                                         \
      ".size " #name ", . - " #name                                      \
      "\n"                                                               \
      ".popsection\n");
#include "abi/driver_functions.inc"
#undef SLUICE_DRIVER_FUNCTION
}  // extern "C"

namespace sluice::meter {

Real real;
const MeterHost* host = nullptr;

namespace {

struct Row {
  const char* symbol;
  int version;
  bool per_thread;
  const char* exported;
};
const Row kRows[] = {
#define SLUICE_PROC_ADDRESS(symbol, version, per_thread, exported) \
  {#symbol, version, per_thread, #exported},
#include "abi/proc_address.inc"
#undef SLUICE_PROC_ADDRESS
};

}  // namespace

void* metered_answer(const char* symbol, int version, bool per_thread) {
  const Row* best = nullptr;
  for (const Row& r : kRows) {
    if (std::strcmp(r.symbol, symbol) != 0 || r.version > version || (r.per_thread && !per_thread))
      continue;
    // A row of the asked kind beats a plain one, a later version an earlier one.
    if (!best || r.per_thread > best->per_thread ||
        (r.per_thread == best->per_thread && r.version >= best->version))
      best = &r;
  }
  return best ? metered(best->exported) : nullptr;
}

}  // namespace sluice::meter

extern "C" __attribute__((visibility("default"))) void sluice_meter_bind(
    const sluice::worker::MeterHost* host) {
  using namespace sluice::meter;
  sluice::meter::host = host;
#define SLUICE_DRIVER_FUNCTION(name)                                               \
  {                                                                                \
    void* at = dlsym(host->driver, #name);                                         \
    real.name = reinterpret_cast<decltype(real.name)>(at);                         \
    void* ours = at ? metered(#name) : nullptr;                                    \
    sluice_slot_##name = ours ? ours : at ? at : reinterpret_cast<void*>(&absent); \
  }
#include "abi/driver_functions.inc"
#undef SLUICE_DRIVER_FUNCTION
}
