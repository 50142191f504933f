// SPDX-License-Identifier: Apache-2.0
// The meaning of the null stream in the functions compiled for per-thread default streams.
#pragma once

#include "client/cudart/driver.h"

namespace sluice::cudart {

inline cudaStream_t per_thread(cudaStream_t stream) {
  return stream != nullptr ? stream : cudaStreamPerThread;
}

}  // namespace sluice::cudart
