// SPDX-License-Identifier: Apache-2.0
// The locations of memory that the API names.
#pragma once

#include "abi/cuda_driver.h"

namespace sluice::client {

// Anywhere in the host's memory, whichever of its nodes.
inline bool is_on_host(const CUmemLocation& location) {
  return location.type == CU_MEM_LOCATION_TYPE_HOST ||
         location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
         location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

}  // namespace sluice::client
