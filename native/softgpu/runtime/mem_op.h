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

// With SLUICE_SOFTGPU_LOADS_STAND_STILL, as NVIDIA's driver does it: whoever loads code waits until
// no stream waits for a word, and holds up all who give any stream a copy meanwhile.
class LoadStandsStill {
 public:
  explicit LoadStandsStill(const Context& context);
  ~LoadStandsStill();
  LoadStandsStill(const LoadStandsStill&) = delete;
  LoadStandsStill& operator=(const LoadStandsStill&) = delete;
};
void wait_for_loads();

}  // namespace sluice::softgpu
