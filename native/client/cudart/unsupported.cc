// SPDX-License-Identifier: Apache-2.0
// The exported functions that follow from others, and those that Sluice does not speak yet: both
// are generated. The latter answer cudaErrorNotSupported and say so once each under SLUICE_DEBUG.
#include "client/unsupported.h"

#include <cstdio>
#include <cstdlib>

#include "client/cudart/pointer_map.h"

namespace sluice::client {

void note_unsupported(const char* function) {
  static constinit cudart::PointerMap<const char> said;
  if (std::getenv("SLUICE_DEBUG") == nullptr || said.find(function) != nullptr) return;
  said.insert(function, function);
  std::fprintf(stderr, "sluice: %s is not supported\n", function);
}

}  // namespace sluice::client

#include "client/unsupported_runtime.inc"
#include "client/variants_runtime.inc"
