// SPDX-License-Identifier: Apache-2.0
// The driver's checkpoint of a process, asked for by another one.
#include "softgpu/runtime/checkpoint.h"

#include "softgpu/api/api.h"

namespace sluice::softgpu {
namespace {

using checkpoint::Order;

// Whoever asks need not have a context, and is not the one that waits.
template <class F>
CUresult asked(F&& body) noexcept {
  return guarded([&]() -> CUresult {
    if (CUresult state = ready(); state != CUDA_SUCCESS) return state;
    return body();
  });
}

}  // namespace
}  // namespace sluice::softgpu

using namespace sluice::softgpu;

CUresult cuCheckpointProcessGetState(int pid, CUprocessState* state) {
  return asked([&]() -> CUresult {
    return state ? checkpoint::state(pid, state) : CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs* args) {
  return asked([&] { return checkpoint::ask(pid, Order::kLock, args ? args->timeoutMs : 0); });
}

CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs*) {
  return asked([&] { return checkpoint::ask(pid, Order::kCheckpoint); });
}

CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs* args) {
  return asked([&]() -> CUresult {
    if (args && args->gpuPairsCount != 0) return CUDA_ERROR_NOT_SUPPORTED;
    return checkpoint::ask(pid, Order::kRestore);
  });
}

CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs*) {
  return asked([&] { return checkpoint::ask(pid, Order::kUnlock); });
}
