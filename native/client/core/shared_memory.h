// SPDX-License-Identifier: Apache-2.0
// Memory of other processes that this one has opened by CUDA IPC: where it lies in the windows, and
// how often each handle was opened. One mapping serves all handles of one slab. The memory is
// charged to whoever allocated it.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>

#include "abi/cuda_driver.h"
#include "wire/commands.h"

namespace sluice::client {

class Session;
struct Device;

// What a CUipcMemHandle holds.
struct MemoryTicket {
  static constexpr uint64_t kMagic = 0x316d656d63697073;  // "spicmem1"
  uint64_t magic = kMagic;
  wire::ShareKey key{};
  uint64_t mapped_bytes = 0;       // of the slabs that the key stands for
  uint64_t offset = 0, bytes = 0;  // the allocation in them
};
static_assert(sizeof(MemoryTicket) <= sizeof(CUipcMemHandle));

class SharedMemory {
 public:
  explicit SharedMemory(Session& session) : session_(session) {}

  CUresult open(Device& device, const MemoryTicket& ticket, uint64_t* address);
  // The device where an opened allocation begins at `address`; nullptr: none does.
  Device* device_of(uint64_t address);
  // Nothing uses it any more.
  CUresult close(uint64_t address);
  // The opened allocation that contains `address`.
  bool find(uint64_t address, uint64_t* start, uint64_t* bytes);

 private:
  struct Mapping {
    Device* device;
    uint64_t address, bytes;
    uint32_t uses;
  };
  struct Opened {
    wire::ShareKey key;
    uint64_t bytes;
    uint32_t times;
  };

  Session& session_;
  std::mutex mutex_;
  std::map<wire::ShareKey, Mapping> mappings_;
  std::map<uint64_t, Opened> opened_;  // by address
};

}  // namespace sluice::client
