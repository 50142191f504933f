// SPDX-License-Identifier: Apache-2.0
// cuDNN's CTC loss with labels in host memory: how many there are is in no parameter, so it is a
// command of its own. Behind the struct: `labels` ints, then `batch` label lengths and `batch`
// input lengths. Answer: i64 status, u64 workspace bytes.
#pragma once

#include <cstdint>

namespace sluice::wire {

struct CtcLoss {
  uint64_t handle, probs_descriptor, gradients_descriptor, loss_descriptor;  // ids, 0: none
  uint64_t probs, costs, gradients, workspace;                               // device addresses
  uint64_t workspace_bytes;
  uint32_t algorithm, batch, labels;
  uint32_t only_size;  // 1: cudnnGetCTCLossWorkspaceSize
};
struct CtcReply {
  int64_t status;
  uint64_t workspace_bytes;
};

inline constexpr uint32_t kMaxCtcBatch = 1 << 20, kMaxCtcLabels = 1 << 24;

}  // namespace sluice::wire
