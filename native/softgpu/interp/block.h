// SPDX-License-Identifier: Apache-2.0
// A thread block: its warps, shared memory, local memory and barriers. Made and reused by
// run_blocks(), one launch and one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "softgpu/interp/launch_state.h"
#include "softgpu/interp/warp.h"

namespace sluice::softgpu {

constexpr uint32_t kBarriers = 16;

struct Barrier {
  uint32_t arrived = 0;   // threads
  uint32_t expected = 0;  // threads; 0: every thread of the block that is still alive
  uint32_t trues = 0;     // arrived threads whose predicate held, for barrier.red
  bool used = false;
};

struct BlockState {
  explicit BlockState(LaunchState& launch);
  ~BlockState();
  BlockState(const BlockState&) = delete;
  BlockState& operator=(const BlockState&) = delete;

  void start(uint64_t index);
  // Runs the warps until all are done, one faulted, or they only wait for the world outside.
  WarpOutcome run_slice(Exec& exec);
  void arrive(Exec& exec, uint32_t barrier, uint32_t threads, uint32_t expected, uint32_t trues);

  uint32_t ctaid[3] = {0, 0, 0};

 private:
  bool release_ready(Exec& exec);
  void prepare(Exec& exec);
  uint32_t live_threads() const;

  LaunchState& launch_;
  std::vector<Warp> warps_;
  std::vector<LaneIds> lane_ids_;
  std::unique_ptr<uint8_t[]> shared_storage_;
  uint8_t* shared_ = nullptr;
  uint32_t shared_size_ = 0;
  uint32_t dynamic_offset_ = 0;
  uint8_t* local_ = nullptr;
  size_t local_bytes_ = 0;
  uint32_t local_stride_ = 0;
  Barrier barriers_[kBarriers];
};

}  // namespace sluice::softgpu
