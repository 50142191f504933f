// SPDX-License-Identifier: Apache-2.0
// A GPU that the worker sees, and the vGPU of a session on it: its window of addresses, the
// accounting of its memory, its limits and its gate. Session::open() makes the vGPUs from what the
// plan says; the handlers keep the accounts under the vGPU's mutex.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "wire/array_shape.h"
#include "wire/bodies/commands.h"
#include "worker/driver.h"
#include "worker/gate.h"
#include "worker/limits.h"
#include "worker/vgpu_memory.h"

namespace sluice::worker {

// With its primary context retained.
struct Gpu {
  CUdevice ordinal = 0;
  CUuuid uuid{};
  std::string name;
  std::string pci_bus_id;
  std::string attributes;  // for who looks at it without a session: "75=9 76=0"
  uint64_t memory_bytes = 0;
  CUcontext context = nullptr;
  CUstream house = nullptr;  // non-blocking, the worker's own

  bool software() const { return name.find("software GPU") != std::string::npos; }
};

// "GPU-8-4-4-4-12", as nvidia-smi and CUDA_VISIBLE_DEVICES spell it.
std::string uuid_text(const CUuuid& uuid);
// The same read back; false: it is none, and nothing was written.
bool read_uuid(const std::string& text, CUuuid* uuid);

struct Vgpu {
  uint32_t index = 0;
  Gpu* gpu = nullptr;
  uint32_t compute_percent = 100;
  uint64_t window_begin = 0, window_bytes = 0;
  uint32_t grant_index = 0;  // which of the grant's vGPUs it is
  CUuuid uuid{};             // its own, by which its client knows it; before the record: zero
  std::mutex mutex;          // the accounts below
  VgpuMemory memory;
  struct Mapping {
    uint64_t bytes;
    CUmemGenericAllocationHandle handle;
    uint64_t allocation;  // an id of SessionObjects::allocations; 0: the mapping owns its memory
    bool shared = false;  // another session's memory, opened by CUDA IPC and charged there
  };
  std::map<uint64_t, Mapping> mappings;
  // What libraries allocated and moves with it (worker/library/laid.h), beside all windows.
  struct Laid {
    uint64_t bytes;
    CUmemGenericAllocationHandle handle;
  };
  std::map<uint64_t, Laid> laid;
  // What others may open: mappings by address, allocations by id.
  std::map<uint64_t, wire::ShareKey> exported;
  // As the server was told last.
  std::atomic<uint64_t> shown_used{0}, shown_library{0};
  uint64_t users = 0;  // bit i: the vGPU i may use all memory of this window too (worker/peer.cc)
  wire::ArrayCharges array_charges;  // what they come to is the client's in `memory`
  Limits limits;
  std::unique_ptr<Gate> gate;
  CUevent legacy_done = nullptr;  // the legacy stream when something last began to capture

  bool window_holds(uint64_t address) const { return address - window_begin < window_bytes; }
  // Whether all of [address, address + bytes) lies in the window.
  bool window_holds(uint64_t address, uint64_t bytes) const {
    return window_holds(address) && bytes <= window_bytes - (address - window_begin);
  }
};

// Gives each vGPU its window, where the client has it too: large ones to few, smaller ones to many.
// Where the client has vGPUs of other nodes, too, these are `first` and its followers of so many
// `windows`. False with `error`; what was reserved by then stays so.
bool reserve_windows(const Driver& driver, const std::vector<std::unique_ptr<Vgpu>>& vgpus,
                     uint64_t windows, uint64_t first, std::string* error);

}  // namespace sluice::worker
