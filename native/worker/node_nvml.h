// SPDX-License-Identifier: Apache-2.0
// The node's NVML, NVIDIA's own, for what changes from moment to moment: temperature, power,
// clocks, utilization of the whole GPU. Loaded from beside the driver at the first question; a node
// without one (the software GPU) knows nothing of it. From any thread.
#pragma once

#include <chrono>
#include <map>
#include <mutex>
#include <string>

#include "wire/gpu_figures.h"

namespace sluice::worker {

class NodeNvml {
 public:
  // `driver`: the path of the driver library.
  explicit NodeNvml(std::string driver) : driver_(std::move(driver)) {}

  // What is known of the GPU with this name ("GPU-…"), at most kFreshFor old.
  wire::GpuFigures figures(const std::string& uuid);

 private:
  static constexpr auto kFreshFor = std::chrono::milliseconds(100);
  struct Kept {
    void* device = nullptr;  // nvmlDevice_t
    std::chrono::steady_clock::time_point at;
    wire::GpuFigures figures{};
  };
  void load();
  void sample(void* device, wire::GpuFigures* to) const;

  const std::string driver_;
  std::mutex mutex_;
  bool looked_ = false;
  void* library_ = nullptr;
  std::map<std::string, Kept> kept_;
};

}  // namespace sluice::worker
