// SPDX-License-Identifier: Apache-2.0
// The seam between sluice-worker and sluice_meter.so, the library that stands before the driver for
// NVIDIA's own libraries. Its SONAME is libcuda.so.1: loaded before the driver (which the worker
// loads by path), it is what the loader answers when cuBLAS, cuDNN or NCCL ask for libcuda.so.1, by
// name or as a dependency. Every function goes on to the driver; those that take memory are charged
// to the session first, and refused with CUDA_ERROR_OUT_OF_MEMORY when it has none left, as a GPU
// of the vGPU's size would refuse them. The worker's own calls do not come through here.
#pragma once

#include <cstdint>

#include "abi/cuda_driver.h"

namespace sluice::worker {

enum class Metered : uint32_t {
  kDevice,  // the vGPU's memory
  kHost,    // pinned memory of the node
  kCode,    // images that were made while the program ran
  kStream,  // streams, by number
};

// What the worker answers. From any thread; none of them calls a library, and none but the last two
// the driver.
struct MeterHost {
  void* driver;  // the driver's handle from dlopen
  // Charges `bytes` to a vGPU on the device (an ordinal of the driver's): false when it has not so
  // much. `account` is what give() wants to know of it.
  bool (*take)(Metered kind, int device, uint64_t bytes, uint32_t* account);
  void (*give)(Metered kind, uint32_t account, uint64_t bytes);
  // What cuMemGetInfo says on the device; false: no vGPU is there, so the driver's own answer.
  bool (*left)(int device, uint64_t* free, uint64_t* total);
  // Device memory of so many bytes, whole slabs, that moves with the session's; it has been
  // charged. CUDA_ERROR_NOT_SUPPORTED: there is none here, the driver is to be asked.
  CUresult (*lay)(int device, uint64_t bytes, CUdeviceptr* address);
  // Ends it. False: it is no such memory.
  bool (*lift)(CUdeviceptr address, CUresult* status);
};

}  // namespace sluice::worker

// Exported by sluice_meter.so; until it was called, every function fails. Once in a process.
extern "C" void sluice_meter_bind(const sluice::worker::MeterHost* host);
