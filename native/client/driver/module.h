// SPDX-License-Identifier: Apache-2.0
// Looking names up in loaded code; shared by the module, library and function entry points.
#pragma once

#include "client/core/session.h"

namespace sluice::client {

CUresult get_function(Session* s, Device* d, wire::CodeKind kind, uint64_t code_id,
                      const char* name, uint64_t* handle);
CUresult get_global(Session* s, Device* d, wire::CodeKind kind, uint64_t code_id, const char* name,
                    CUdeviceptr* address, size_t* bytes);

// What a CUfunction argument names: a module's function or, as CUDA allows, a library's kernel.
inline Function* find_function(Session* s, const void* handle) {
  if (Function* f = s->functions.find(handle)) return f;
  return s->kernels.find(handle);
}

}  // namespace sluice::client
