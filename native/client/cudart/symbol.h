// SPDX-License-Identifier: Apache-2.0
// Copies to and from the program's __device__ and __constant__ variables: where they touch memory.
// Used by the copies (symbol.cc) and by the graph nodes that hold one (graph_node_params.cc).
#pragma once

#include "client/cudart/driver.h"

namespace sluice::cudart {

// The place of `count` bytes at `offset` into the variable, if a copy of that kind may write it …
cudaError_t symbol_as_destination(const void* symbol, size_t offset, size_t count,
                                  cudaMemcpyKind kind, void** place);
// … or read it.
cudaError_t symbol_as_source(const void* symbol, size_t offset, size_t count, cudaMemcpyKind kind,
                             void** place);

}  // namespace sluice::cudart
