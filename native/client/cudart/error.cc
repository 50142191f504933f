// SPDX-License-Identifier: Apache-2.0
// The last error of a thread, and the names and texts of errors. Sticky errors live in the driver,
// which gives them again to every call; here they are forgotten like any other.
#include <algorithm>
#include <iterator>

#include "abi/names.h"
#include "client/cudart/state.h"

using namespace sluice::cudart;

namespace {

const sluice::abi::ErrorName* lookup(cudaError_t error) {
  const auto* end = std::end(sluice::abi::kRuntimeErrors);
  const auto* found = std::lower_bound(
      std::begin(sluice::abi::kRuntimeErrors), end, static_cast<int>(error),
      [](const sluice::abi::ErrorName& entry, int value) { return entry.value < value; });
  return found != end && found->value == static_cast<int>(error) ? found : nullptr;
}

}  // namespace

extern "C" {

cudaError_t cudaGetLastError(void) {
  const cudaError_t error = thread_state.last_error;
  thread_state.last_error = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError(void) { return thread_state.last_error; }

const char* cudaGetErrorName(cudaError_t error) {
  const auto* entry = lookup(error);
  return entry != nullptr ? entry->name : "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t error) {
  const auto* entry = lookup(error);
  return entry != nullptr ? entry->text : "unrecognized error code";
}

}  // extern "C"
