// SPDX-License-Identifier: Apache-2.0
// In a forwarding library under an older CUDA version's SONAME (libcublas.so.12): says which
// version that is as soon as it is loaded, for programs that have no libcudart.so of ours.
#include "abi/runtime_version.h"
#include "client/core/runtime_version.h"

namespace {

[[gnu::constructor]] void say_version() { sluice_runtime_version(SLUICE_CUDART_VERSION); }

}  // namespace
