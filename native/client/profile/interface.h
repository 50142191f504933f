// SPDX-License-Identifier: Apache-2.0
// What libcupti asks libcuda.so.1, which has the session: one function of Sluice's own,
// sluice_profile_session; both libraries come from one build. `node` counts the nodes of the
// session's vGPUs, from 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "abi/cuda_driver.h"
#include "client/profile/api_calls.h"
#include "wire/bodies/profiling.h"

namespace sluice::client {

struct ProfileInterface {
  // Opens the session if there is none yet: what cuInit answers.
  CUresult (*open)();
  bool (*is_open)();
  // For all libraries that attached, now or later; nullptr: nobody profiles.
  void (*set_hooks)(const ApiHooks* hooks);
  // Whether commands are to be marked with their calls' ids.
  void (*set_marking)(bool marks);
  // This thread's.
  CallMark* (*mark)();
  uint32_t (*nodes)();
  CUresult (*set)(uint32_t node, const wire::ProfileSet& ask, wire::ProfileState* state);
  // The answer as it came; `got` says how long it is.
  CUresult (*fetch)(uint32_t node, const wire::ProfileFetch& ask, std::span<std::byte> to,
                    size_t* got);
  // CUDA's number of a node's vGPU; false: that node has no such.
  bool (*device)(uint32_t node, uint32_t index, uint32_t* ordinal);
  // Of the context, or of the current one: false if there is none.
  bool (*device_of)(CUcontext context, uint32_t* ordinal);
  // The current context, or nullptr.
  CUcontext (*current)();
  CUresult (*stream_id)(CUcontext context, CUstream stream, uint32_t* id);
};

}  // namespace sluice::client

extern "C" __attribute__((visibility("default"))) const sluice::client::ProfileInterface*
sluice_profile_session();
