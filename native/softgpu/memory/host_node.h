// SPDX-License-Identifier: Apache-2.0
// The host's NUMA nodes, by which memory of the host is placed.
#pragma once

#include <unistd.h>

#include <string>

namespace sluice::softgpu {

// Whether there is one of that number; kernels without NUMA have the first.
inline bool has_host_node(int number) {
  if (number <= 0) return number == 0;
  const std::string node = "/sys/devices/system/node/node" + std::to_string(number);
  return access(node.c_str(), F_OK) == 0;
}

}  // namespace sluice::softgpu
