// SPDX-License-Identifier: Apache-2.0
// The runtime's launch configuration as the driver takes it: the attributes are the same bytes.
#pragma once

#include "client/cudart/driver.h"

namespace sluice::cudart {

static_assert(sizeof(cudaLaunchAttribute) == sizeof(CUlaunchAttribute));

inline CUlaunchConfig native_config(const cudaLaunchConfig_t& config, cudaStream_t stream) {
  CUlaunchConfig native = {};
  native.gridDimX = config.gridDim.x;
  native.gridDimY = config.gridDim.y;
  native.gridDimZ = config.gridDim.z;
  native.blockDimX = config.blockDim.x;
  native.blockDimY = config.blockDim.y;
  native.blockDimZ = config.blockDim.z;
  native.sharedMemBytes = static_cast<unsigned>(config.dynamicSmemBytes);
  native.hStream = stream;
  native.attrs = reinterpret_cast<CUlaunchAttribute*>(config.attrs);
  native.numAttrs = config.numAttrs;
  return native;
}

}  // namespace sluice::cudart
