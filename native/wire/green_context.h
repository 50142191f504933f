// SPDX-License-Identifier: Apache-2.0
// Answers about green contexts. A CUdevResource has private parts that only the driver may write,
// so the worker keeps them and the client has a number for each: what a program does to its copy
// reaches no driver.
#pragma once

#include <cstdint>

namespace sluice::wire {

struct DevResource {
  uint32_t number;
  uint32_t type;      // CUdevResourceType; 0: there is none
  uint8_t shown[48];  // the public part
};

// The largest split that is asked for; no GPU has as many pairs of multiprocessors.
inline constexpr uint32_t kMaxResourceGroups = 128;

struct DevResourceGroups {  // as many DevResource follow as the program has room for
  uint32_t groups;
  uint32_t given;
  DevResource remaining;
};

inline constexpr uint32_t kMaxDescribedResources = 64;

struct DevResourceDescription {
  uint64_t number;
};

// Names of functions or kernels: each is a u32 of length and its characters.
struct CodeNames {
  uint32_t total;
  uint32_t count;  // that follow, from the wanted one on
};

}  // namespace sluice::wire
