// SPDX-License-Identifier: Apache-2.0
// A process that another one takes off the software GPU, as NVIDIA's driver does
// (cuCheckpointProcess…), where they share a file (memory/shared_file.h). Locked, its calls wait;
// checkpointed, its memory is nobody's on the device, though it stays where it is in the host's.
// A thread of its own, begun by cuInit, does what is asked, whoever asked and whether he still
// lives. It has the ways that were seen on a card (docs/decisions/0012): a restore needs more room
// than was given back, and fails for good where there is none, or where the process has memory of
// another one open; what it has exported stays on the device. A restore may put what was on each
// device on another; where a card hangs as its map does not name all that the process sees, or as
// it sees one, this is an error, and nothing has changed.
#pragma once

#include <cstdint>
#include <vector>

#include "abi/cuda_driver.h"

namespace sluice::softgpu::checkpoint {

// By cuInit, once; nothing where nothing is shared.
void begin();

// One of a call's that may not be taken apart: made at the begin of each call, waits while the
// process is locked. Calls within calls do not.
class Call {
 public:
  Call();
  ~Call();
  Call(const Call&) = delete;
};

enum class Order : uint32_t { kLock = 1, kCheckpoint, kRestore, kUnlock };

// Devices before CUDA_VISIBLE_DEVICES: what was on one is to be on another.
struct Pair {
  int from, to;
};

// Of the process with that id; `pairs` are of a restore. CUDA_ERROR_NOT_SUPPORTED: nothing is
// shared; CUDA_ERROR_INVALID_VALUE: it has no software GPU.
CUresult ask(int pid, Order order, uint32_t timeout_ms = 0, const std::vector<Pair>& pairs = {});
CUresult state(int pid, CUprocessState* state);

}  // namespace sluice::softgpu::checkpoint
