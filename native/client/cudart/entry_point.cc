// SPDX-License-Identifier: Apache-2.0
// Ways past the runtime: the driver's functions by name, and the undocumented tables, which Sluice
// does not answer.
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "client/cudart/state.h"

using namespace sluice::cudart;

namespace {

cudaError_t entry_point(const char* symbol, void** function, unsigned version,
                        unsigned long long flags, cudaDriverEntryPointQueryResult* status) {
  if (symbol == nullptr || function == nullptr) return record(cudaErrorInvalidValue);
  if (const cudaError_t error = ensure_driver(); error != cudaSuccess) return record(error);
  *function = nullptr;
  CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  const CUresult result = driver(cuGetProcAddress_v2, symbol, function, static_cast<int>(version),
                                 cuuint64_t{flags}, &found);
  if (status != nullptr) *status = static_cast<cudaDriverEntryPointQueryResult>(found);
  // A name that the driver does not have is an answer, not an error.
  return result == CUDA_ERROR_NOT_FOUND ? cudaSuccess : record(to_runtime(result));
}

// What a program compiled for per-thread default streams means when it does not say.
unsigned long long per_thread_by_default(unsigned long long flags) {
  return flags != cudaEnableDefault ? flags : unsigned{cudaEnablePerThreadDefaultStream};
}

}  // namespace

extern "C" {

cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** funcPtr, unsigned long long flags,
                                    enum cudaDriverEntryPointQueryResult* driverStatus) {
  return entry_point(symbol, funcPtr, kRuntimeVersion, flags, driverStatus);
}

cudaError_t cudaGetDriverEntryPoint_ptsz(const char* symbol, void** funcPtr,
                                         unsigned long long flags,
                                         enum cudaDriverEntryPointQueryResult* driverStatus) {
  return entry_point(symbol, funcPtr, kRuntimeVersion, per_thread_by_default(flags), driverStatus);
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** funcPtr,
                                             unsigned int cudaVersion, unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult* driverStatus) {
  return entry_point(symbol, funcPtr, cudaVersion, flags, driverStatus);
}

cudaError_t cudaGetDriverEntryPointByVersion_ptsz(
    const char* symbol, void** funcPtr, unsigned int cudaVersion, unsigned long long flags,
    enum cudaDriverEntryPointQueryResult* driverStatus) {
  return entry_point(symbol, funcPtr, cudaVersion, per_thread_by_default(flags), driverStatus);
}

cudaError_t cudaGetExportTable(const void** ppExportTable, const cudaUUID_t*) {
  static std::once_flag said;
  if (std::getenv("SLUICE_DEBUG") != nullptr) {
    std::call_once(said, [] {
      std::fputs(
          "sluice: cudaGetExportTable was called: its tables are not public and are not served\n",
          stderr);
    });
  }
  if (ppExportTable != nullptr) *ppExportTable = nullptr;
  return record(cudaErrorNotSupported);
}

}  // extern "C"
