// SPDX-License-Identifier: Apache-2.0
// Reading and writing of what the node's NVML says of a GPU (native/api/bodies/gpu_figures.yaml).
#pragma once

#include "wire/bodies/gpu_figures.h"

namespace sluice::wire {

// False: this GPU, its NVML or the worker's release lacks it.
inline bool get_figure(const GpuFigures& figures, Figure f, uint64_t* to) {
  const auto i = static_cast<uint32_t>(f);
  *to = figures.value[i];
  return figures.known >> i & 1;
}
inline void set_figure(GpuFigures* figures, Figure f, uint64_t to) {
  const auto i = static_cast<uint32_t>(f);
  figures->value[i] = to;
  figures->known |= uint64_t{1} << i;
}

}  // namespace sluice::wire
