// SPDX-License-Identifier: Apache-2.0
// Memory of other processes that this one has opened by CUDA IPC or from an imported memory pool:
// where it lies in the windows, and how often each handle was opened. One mapping serves all
// handles of one slab. The memory is charged to whoever allocated it.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>

#include "abi/cuda_driver.h"
#include "wire/bodies/commands.h"

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

  // The slabs behind a key, for somebody who divides them himself: where they lie. `flags` are
  // OpenShared's. Each hold() needs a let_go(), when nothing uses them any more.
  CUresult hold(Device& device, const wire::ShareKey& key, uint64_t bytes, uint32_t flags,
                uint64_t* address);
  CUresult let_go(const wire::ShareKey& key);

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

  using Mappings = std::map<wire::ShareKey, Mapping>;

  CUresult map(Device& device, const wire::ShareKey& key, uint64_t bytes, uint32_t flags,
               Mappings::iterator* mapping);
  CUresult drop_use(Mappings::iterator mapping);

  Session& session_;
  std::mutex mutex_;
  Mappings mappings_;
  std::map<uint64_t, Opened> opened_;  // by address
};

}  // namespace sluice::client
