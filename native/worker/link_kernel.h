// SPDX-License-Identifier: Apache-2.0
// The kernel by which a link moves a transfer's bytes between staging memory and the program's: one
// launch for all of it, given to the stream ahead, behind the word that says that the bytes are
// about to come. Which staging memory is meant it reads of the transfer's slot (link_slots.h) as it
// goes on. So whoever has bytes to move calls no driver, which may stand still for as long as a
// stream waits for those very bytes (docs/decisions/0009, "Links").
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "worker/vgpu.h"

namespace sluice::worker {

class LinkKernel {
 public:
  // Loaded for each vGPU, so that no launch loads anything. nullptr with `why`: it cannot be.
  static std::unique_ptr<LinkKernel> load(const Driver& driver,
                                          std::vector<std::unique_ptr<Vgpu>>& vgpus,
                                          std::string* why);
  ~LinkKernel();

  struct Copy {
    CUdeviceptr slot;
    uint64_t address, pitch, width, bytes;  // the program's rectangle
    uint32_t generation;                    // of the slot
    uint32_t into;                          // the rectangle, from staging memory
  };
  // The device's context is current.
  CUresult launch(uint32_t device, CUstream stream, const Copy& copy) const;

  // A stream of the worker's own on a device, whose context is current, for a transfer by a stream
  // of another; nothing is in it, and its caller holds streams_mutex() until the transfer is.
  std::mutex& streams_mutex() { return streams_mutex_; }
  CUresult stream(uint32_t device, CUstream* stream);

 private:
  explicit LinkKernel(const Driver& driver) : driver_(driver) {}
  CUresult load_for(const Vgpu& vgpu);

  struct Device {
    CUcontext context = nullptr;
    CUfunction function = nullptr;
    std::vector<CUstream> streams;
  };
  const Driver& driver_;
  CUlibrary library_ = nullptr;
  CUkernel kernel_ = nullptr;
  std::vector<Device> devices_;
  std::mutex streams_mutex_;
};

}  // namespace sluice::worker
