// SPDX-License-Identifier: Apache-2.0
// What the node's NVML says of a GPU at this moment: kGpuFigures asks, for libnvidia-ml.so.1 of the
// client. Append-only; a worker knows as many as its release and its node's NVML have.
#pragma once

#include <cstdint>

namespace sluice::wire {

// Units as in NVML: percent, degrees Celsius, milliwatts, millijoules, MHz.
enum class Figure : uint32_t {
  kGpuUtilization,
  kMemoryUtilization,
  kEncoderUtilization,
  kEncoderPeriod,
  kDecoderUtilization,
  kDecoderPeriod,
  kTemperature,
  kThresholdShutdown,  // the first of four, in the order of nvmlTemperatureThresholds_t
  kThresholdSlowdown,
  kThresholdMemory,
  kThresholdGpu,
  kPower,
  kPowerEnforced,
  kPowerLimit,
  kPowerDefault,
  kPowerLeast,
  kPowerMost,
  kPowerManaged,
  kEnergy,
  kClockGraphics,  // the first of four, in the order of nvmlClockType_t
  kClockSm,
  kClockMemory,
  kClockVideo,
  kMostGraphics,
  kMostSm,
  kMostMemory,
  kMostVideo,
  kApplicationGraphics,
  kApplicationSm,
  kApplicationMemory,
  kApplicationVideo,
  kDefaultGraphics,
  kDefaultSm,
  kDefaultMemory,
  kDefaultVideo,
  kClockReasons,
  kClockReasonsKnown,
  kPerformanceState,
  kFan,
  kFans,
  kPcieGeneration,
  kPcieGenerationMost,
  kPcieGenerationGpu,
  kPcieWidth,
  kPcieWidthMost,
  kPcieReplays,
  kPersistence,
  kCount,
};
static_assert(static_cast<uint32_t>(Figure::kCount) <= 64, "a bit of a word each");

struct GpuFiguresAsk {
  uint32_t device;
  uint32_t reserved;
};

struct GpuFigures {
  uint64_t known;  // bit i: value[i] is there
  uint64_t value[64];

  bool get(Figure f, uint64_t* to) const {
    const auto i = static_cast<uint32_t>(f);
    *to = value[i];
    return known >> i & 1;
  }
  void set(Figure f, uint64_t to) {
    const auto i = static_cast<uint32_t>(f);
    value[i] = to;
    known |= uint64_t{1} << i;
  }
};

}  // namespace sluice::wire
