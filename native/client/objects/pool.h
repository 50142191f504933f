// SPDX-License-Identifier: Apache-2.0
// A memory pool as the application holds it.
#pragma once

#include <cstdint>

namespace sluice::client {

class MemoryPool;
struct Device;
struct ImportedPool;

// What the application has of a memory pool.
struct PoolHandle {
  Device* device = nullptr;  // nullptr: of the host's memory (core/host_pools.h)
  MemoryPool* pool = nullptr;
  ImportedPool* imported = nullptr;  // instead: another process's, from which nothing is allocated
  uint64_t users = 0;                // bit i: opened to the device i
  int node = 0;                      // of the host
};

}  // namespace sluice::client
