// SPDX-License-Identifier: Apache-2.0
// The driver's checkpoint of a process, asked for by another one.
#include "softgpu/runtime/checkpoint.h"

#include "softgpu/api/api.h"
#include "softgpu/runtime/device.h"

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
    std::vector<checkpoint::Pair> pairs;
    const unsigned count = args ? args->gpuPairsCount : 0;
    for (unsigned i = 0; i < count; ++i) {
      const auto place = [](const CUuuid& uuid) {
        return physical_of(reinterpret_cast<const unsigned char*>(uuid.bytes));
      };
      const CUcheckpointGpuPair& pair = args->gpuPairs[i];
      pairs.push_back({place(pair.oldUuid), place(pair.newUuid)});
      if (pairs.back().from < 0 || pairs.back().to < 0) return CUDA_ERROR_INVALID_VALUE;
    }
    return checkpoint::ask(pid, Order::kRestore, 0, pairs);
  });
}

CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs*) {
  return asked([&] { return checkpoint::ask(pid, Order::kUnlock); });
}
