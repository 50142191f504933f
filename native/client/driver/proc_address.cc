// SPDX-License-Identifier: Apache-2.0
// cuGetProcAddress: which of our functions answers for a name, a CUDA version and the per-thread
// default stream, as the headers' own tables say.
#include <algorithm>
#include <cstring>
#include <string_view>

#include "abi/cuda_driver.h"

extern "C" {
#define SLUICE_UNDECLARED(name) int name();
#include "client/undeclared_driver.inc"
#undef SLUICE_UNDECLARED
}

namespace {

struct Row {
  const char* symbol;
  int version;
  bool per_thread;
  void* function;
};

const Row kRows[] = {
#define SLUICE_PROC_ADDRESS(symbol, version, per_thread, exported) \
  {#symbol, version, per_thread, reinterpret_cast<void*>(&exported)},
#include "client/proc_address.inc"
#undef SLUICE_PROC_ADDRESS
};

constexpr cuuint64_t kLegacy = CU_GET_PROC_ADDRESS_LEGACY_STREAM;
constexpr cuuint64_t kPerThread = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;

}  // namespace

extern "C" {

CUresult cuGetProcAddress_v2(const char* symbol, void** function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* status) {
  if (!symbol || !function || flags & ~(kLegacy | kPerThread) || flags == (kLegacy | kPerThread))
    return CUDA_ERROR_INVALID_VALUE;
  *function = nullptr;
  const auto [first, last] = std::equal_range(
      std::begin(kRows), std::end(kRows), Row{symbol, 0, false, nullptr},
      [](const Row& a, const Row& b) { return std::strcmp(a.symbol, b.symbol) < 0; });
  const bool wants_per_thread = flags & kPerThread;
  const bool has_per_thread =
      std::any_of(first, last, [&](const Row& r) { return r.per_thread && r.version <= version; });
  bool newer = false;
  for (const Row* r = first; r != last; ++r) {
    if (r->per_thread != (wants_per_thread && has_per_thread)) continue;
    if (r->version <= version)
      *function = r->function;
    else
      newer = true;
  }
  if (status)
    *status = *function ? CU_GET_PROC_ADDRESS_SUCCESS
              : newer   ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                        : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetProcAddress(const char* symbol, void** function, int version, cuuint64_t flags) {
  return cuGetProcAddress_v2(symbol, function, version, flags, nullptr);
}

}  // extern "C"
