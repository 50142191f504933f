// SPDX-License-Identifier: Apache-2.0
// What a device address means, over all that the session has: whose window it lies in, what the
// application was given there, and whether there is memory behind it.
#pragma once

#include <cstdint>

namespace sluice::client {

class Session;
struct Device;

// What the application was given as one piece: an allocation or a mapping.
struct AddressRange {
  Device* device = nullptr;  // whose memory it is
  uint64_t start = 0, bytes = 0;
  bool pooled = false;
  bool graphs = false;  // allocated by a node of a graph
  bool plain = false;   // of cuMemAlloc, which can be shared by CUDA IPC
  bool managed = false;
  bool imported = false;  // from another process's memory pool
};

// The vGPU in whose window it lies; nullptr: in none.
Device* device_of_address(Session* s, uint64_t address);
// In a vGPU's window, or a module's global.
bool is_device_address(Session* s, uint64_t address);
// The piece that contains `address`; module globals are none.
bool find_range(Session* s, uint64_t address, AddressRange* range);
// Whether all of [address, address + bytes) is backed: an allocation, a module's global, or pinned
// memory of the arena. `user`: and by memory that its node has, where there are several.
bool is_backed(Session* s, uint64_t address, uint64_t bytes, const Device* user = nullptr);

}  // namespace sluice::client
