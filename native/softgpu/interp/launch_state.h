// SPDX-License-Identifier: Apache-2.0
// One kernel launch while it runs: its shape, parameters and outcome. Made by the launch path,
// shared by every thread that executes blocks of it, read by handlers through Exec::launch.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "softgpu/interp/exec.h"
#include "softgpu/program/program.h"

namespace sluice::softgpu {

// Where device printf goes: one buffer per context, written out when a launch ends.
class PrintfSink {
 public:
  void append(const std::string& text);
  void flush();

 private:
  std::atomic<bool> pending_{false};
  std::mutex mutex_;
  std::string text_;
};

// Memory that kernels allocate with malloc(); owned by the context.
class DeviceHeap {
 public:
  virtual ~DeviceHeap() = default;
  virtual uint64_t allocate(uint64_t size) = 0;  // 0 when there is none left
  virtual void release(uint64_t address) = 0;
};

struct LaunchState {
  const Function* kernel = nullptr;
  const Program* program = nullptr;
  int device = 0;
  uint32_t grid[3] = {1, 1, 1};
  uint32_t block[3] = {1, 1, 1};
  uint32_t dynamic_shared = 0;
  uint64_t grid_id = 0;
  uint32_t sm_count = 1;
  uint64_t stack_limit = 0;  // bytes of local memory per lane for callees
  bool cooperative = false;
  std::vector<uint8_t> params;
  PrintfSink* printf = nullptr;
  DeviceHeap* heap = nullptr;
  const std::atomic<int>* cancelled = nullptr;  // non-zero: the context is dead, stop

  std::atomic<uint64_t> next_block{0};
  std::atomic<bool> stop{false};  // a block faulted
  std::mutex fault_mutex;
  Fault fault = Fault::kNone;
  std::string fault_text;

  uint64_t blocks() const { return static_cast<uint64_t>(grid[0]) * grid[1] * grid[2]; }
  uint32_t threads() const { return block[0] * block[1] * block[2]; }
  bool stopped() const {
    return stop.load(std::memory_order_relaxed) ||
           (cancelled && cancelled->load(std::memory_order_relaxed) != 0);
  }
  void report(Fault why, const std::string& text);
};

// Executes blocks of the launch on the calling thread until none is left. Several threads may do
// so at once.
void run_blocks(LaunchState& launch);

}  // namespace sluice::softgpu
