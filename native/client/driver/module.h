// SPDX-License-Identifier: Apache-2.0
// Code images and the names in them; shared by the module, library, linker and function entries.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "client/core/session.h"
#include "client/objects/code.h"
#include "wire/bodies/commands.h"

namespace sluice::client {

CUresult get_function(Session* s, Device* d, wire::CodeKind kind, uint64_t code_id,
                      const char* name, uint64_t* handle);
CUresult get_global(Session* s, Device* d, wire::CodeKind kind, uint64_t code_id, const char* name,
                    CUdeviceptr* address, size_t* bytes);
// A file's bytes, NUL behind them; empty when it cannot be read.
std::vector<char> read_file(const char* path);

// What a CUfunction argument names: a module's function or, as CUDA allows, a library's kernel.
inline Function* find_function(Session* s, const void* handle) {
  if (Function* f = s->functions.find(handle)) return f;
  return s->kernels.find(handle);
}

}  // namespace sluice::client
