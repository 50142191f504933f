// SPDX-License-Identifier: Apache-2.0
// cuGetProcAddress: which exported function answers a name at a version, from the generated table,
// as far as this library has it.
#include <dlfcn.h>

#include <cstring>
#include <string>

#include "softgpu/api/api.h"

namespace sluice::softgpu {
namespace {

struct Row {
  const char* symbol;
  int version;
  bool per_thread;
  const char* exported;
};

constexpr Row kRows[] = {
#define SLUICE_PROC_ADDRESS(symbol, version, per_thread, exported) \
  {#symbol, version, per_thread, #exported},
#include "abi/proc_address.inc"
#undef SLUICE_PROC_ADDRESS
};

// This library's own symbols, whatever else of that name the process holds.
void* own_symbol(const char* name) {
  static void* self = [] {
    Dl_info info;
    if (dladdr(reinterpret_cast<void*>(&own_symbol), &info) == 0)
      return static_cast<void*>(nullptr);
    return dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  }();
  if (!self) return nullptr;
  return dlsym(self, name);
}

CUresult look_up(const char* symbol, void** pfn, int version, cuuint64_t flags,
                 CUdriverProcAddressQueryResult* status) {
  auto answer = [&](CUresult result, CUdriverProcAddressQueryResult why) {
    if (status) *status = why;
    return result;
  };
  if (!symbol || !pfn) return CUDA_ERROR_INVALID_VALUE;
  *pfn = nullptr;
  bool per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  const Row* plain = nullptr;
  const Row* threaded = nullptr;
  bool known = false;
  for (const Row& row : kRows) {
    if (std::strcmp(row.symbol, symbol) != 0) continue;
    known = true;
    if (row.version > version) continue;
    (row.per_thread ? threaded : plain) = &row;
  }
  const Row* chosen = per_thread && threaded ? threaded : plain;
  if (!chosen) {
    return answer(CUDA_ERROR_NOT_FOUND, known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                              : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  }
  *pfn = own_symbol(chosen->exported);
  if (!*pfn) {
    log(1, "cuGetProcAddress: the software GPU does not have %s", chosen->exported);
    return answer(CUDA_ERROR_NOT_FOUND, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  }
  return answer(CUDA_SUCCESS, CU_GET_PROC_ADDRESS_SUCCESS);
}

}  // namespace
}  // namespace sluice::softgpu

using namespace sluice::softgpu;

CUresult cuGetProcAddress_v2(const char* symbol, void** pfn, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* status) {
  return guarded([&] { return look_up(symbol, pfn, version, flags, status); });
}

CUresult cuGetProcAddress(const char* symbol, void** pfn, int version, cuuint64_t flags) {
  return guarded([&] { return look_up(symbol, pfn, version, flags, nullptr); });
}
