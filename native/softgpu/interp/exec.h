// SPDX-License-Identifier: Apache-2.0
// The state that instruction handlers see: the registers of the warp that is running, the lanes
// that take part, and the memory windows of its block. One per executing thread; the warp
// scheduler points it at a warp before it runs it. Handlers own nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "softgpu/memory/range_map.h"
#include "softgpu/program/program.h"

// Iterations of the loop that follows do not depend on each other, even where pointers alias: lanes
// only meet in their own element. A pragma, so it has to be a macro.
#if defined(__clang__)
#define SLUICE_INDEPENDENT_LANES _Pragma("clang loop vectorize(assume_safety)")
#else
#define SLUICE_INDEPENDENT_LANES _Pragma("GCC ivdep")
#endif

namespace sluice::softgpu {

enum class Fault : uint8_t {
  kNone,
  kIllegalAddress,
  kMisaligned,
  kTrap,
  kAssert,
  kIllegalInstruction,
  kStackOverflow,
  kDeadlock,
  kAborted,
};

struct LaunchState;
struct BlockState;

// Lane positions of a warp inside its block, read by %tid.
struct LaneIds {
  uint32_t tid[3][kWarpSize];
};

struct Exec {
  uint8_t* regs = nullptr;  // frame of the function that runs
  uint32_t mask = 0;        // lanes that execute
  uint32_t active = 0;      // lanes that are here, whether or not the guard lets them execute

  const LaneIds* lanes = nullptr;
  uint32_t warp_id = 0;
  LaunchState* launch = nullptr;
  BlockState* block = nullptr;

  const uint8_t* params = nullptr;
  uint32_t params_size = 0;
  uint8_t* shared = nullptr;
  uint32_t shared_size = 0;
  uint32_t dynamic_shared_offset = 0;
  uint32_t dynamic_shared_size = 0;
  uint8_t* local = nullptr;  // lane 0's local memory; lane n's lies n * local_stride further
  uint32_t local_stride = 0;
  uint32_t local_frame = 0;  // where the running function's locals start

  uint32_t rest_ns = UINT32_MAX;  // until a warp wants to go on: all that could go on sleep

  Fault fault = Fault::kNone;
  std::string fault_text;
  MemoryView view;

  uint8_t* ptr[kWarpSize] = {};  // host addresses of the access that is being executed

  template <class T>
  T* reg(int32_t slot) {
    return reinterpret_cast<T*>(regs + slot);
  }
  uint32_t& pred(int32_t slot) { return *reinterpret_cast<uint32_t*>(regs + slot); }

  bool fail(Fault why, std::string text) {
    fault = why;
    fault_text = std::move(text);
    return false;
  }

  // Runs `f(lane)` for every executing lane; the full-warp case is a loop that can be vectorised.
  template <class F>
  void each(F&& f) {
    if (mask == 0xffffffffu) {
      SLUICE_INDEPENDENT_LANES
      for (uint32_t lane = 0; lane < kWarpSize; ++lane) f(lane);
    } else {
      for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        f(static_cast<uint32_t>(__builtin_ctz(rest)));
      }
    }
  }
};

}  // namespace sluice::softgpu
