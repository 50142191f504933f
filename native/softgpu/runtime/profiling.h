// SPDX-License-Identifier: Apache-2.0
// What the software GPU's own CUPTI records (api/profiling.cc): kernels, copies and fills as they
// run, with the calls that gave them. Off, it costs a load for each operation and nothing else.
// Times are nanoseconds of CLOCK_REALTIME, as NVIDIA's.
#pragma once

#include <atomic>
#include <cstdint>

#include "softgpu/runtime/copy.h"
#include "softgpu/runtime/launch.h"
#include "softgpu/runtime/stream.h"

namespace sluice::softgpu::profiling {

// Kinds that are recorded, bits 1 << CUpti_ActivityKind.
extern std::atomic<uint64_t> kinds;
inline bool on() { return kinds.load(std::memory_order_relaxed) != 0; }

uint64_t now();

// The operation, as one that this thread's call gives the stream.
Stream::Operation noted(const Stream& stream, Stream::Operation operation);

// While one lives, this thread's GPU is at that work; its record is made at the end.
class Running {
 public:
  explicit Running(const KernelWork& work);
  Running(Context& context, const CopyBox& box);
  Running(Context& context, const Fill& fill);
  ~Running();
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  bool begin(uint32_t kind);
  const KernelWork* kernel_ = nullptr;
  const CopyBox* copy_ = nullptr;
  const Fill* fill_ = nullptr;
  uint32_t kind_ = 0, device_ = 0;
  uint64_t start_ = 0;
};

}  // namespace sluice::softgpu::profiling
