// SPDX-License-Identifier: Apache-2.0
// Stream memory operations: writing a word and waiting for one, as streams and graph nodes do.
#pragma once

#include "abi/cuda_driver.h"
#include "softgpu/runtime/context.h"

namespace sluice::softgpu {

// What CUDA refuses at the call.
CUresult check_mem_op(const CUstreamBatchMemOpParams& op);
// On the stream's thread. Ends the context if the word has gone meanwhile.
void run_mem_op(Context& context, const CUstreamBatchMemOpParams& op);

}  // namespace sluice::softgpu
