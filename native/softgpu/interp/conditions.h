// SPDX-License-Identifier: Apache-2.0
// The values that conditional nodes of graphs look at and kernels set, by the handle that kernels
// take as a parameter. Graphs own them; a handle of one that is gone names nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace sluice::softgpu {

struct Condition {
  const uint64_t handle;
  const uint32_t initial;
  const bool assign;  // `initial` is given to it when a run begins
  std::atomic<uint32_t> value;
  bool used = false;  // a node looks at it
  Condition(uint64_t handle, uint32_t initial, bool assign);
  ~Condition();
  Condition(const Condition&) = delete;
  Condition& operator=(const Condition&) = delete;
};

std::shared_ptr<Condition> make_condition(uint32_t initial, bool assign);
// False: there is none of that handle.
bool set_condition(uint64_t handle, uint32_t value);

}  // namespace sluice::softgpu
