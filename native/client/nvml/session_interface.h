// SPDX-License-Identifier: Apache-2.0
// What libnvidia-ml.so.1 asks libcuda.so.1, which has the session. libcuda.so.1 exports one
// function of Sluice's own for it, sluice_nvml_session; both libraries come from one build.
// Only figures() waits for the worker, and view() for the server. A record lives as long as the
// process.
#pragma once

#include <cstdint>

#include "abi/cuda_driver.h"
#include "wire/frame.h"
#include "wire/gpu_figures.h"

namespace sluice::client {

struct SessionInterface {
  // Whether this process has a session; opens none.
  bool (*is_open)();
  // Opens it if there is none yet: what cuInit answers.
  CUresult (*open)();
  // With a session only. Indices are the session's, which are CUDA's.
  uint32_t (*device_count)();
  const wire::DeviceRecord* (*device)(uint32_t index);
  void (*memory)(uint32_t index, uint64_t* free, uint64_t* total);
  // Whether the process has a context or memory there.
  bool (*in_use)(uint32_t index);
  // The driver of the node by its own name, "580.65.06"; empty where it has none.
  const char* (*driver_name)();
  uint32_t (*cuda_version)();
  // What the node says of the GPU; a round trip, unless what it said is fresh. False: the session
  // has ended.
  bool (*figures)(uint32_t index, wire::GpuFigures* figures);
  // Of the vGPU's memory, what this process has: others of its job may have the rest.
  uint64_t (*used_memory)(uint32_t index);
  // Without a session, and opening none: what a process that only looks is shown, as JSON, given to
  // `take`. False: `why` says why there is nothing to show. It waits for the server.
  bool (*view)(void (*take)(void* to, const char* text, size_t bytes), void* to, char* why,
               size_t room);
};

}  // namespace sluice::client

extern "C" __attribute__((visibility("default"))) const sluice::client::SessionInterface*
sluice_nvml_session();
