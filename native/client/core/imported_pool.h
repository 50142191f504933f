// SPDX-License-Identifier: Apache-2.0
// Memory pools of other processes that this one has imported, and the allocations of theirs that it
// has opened. Nothing is allocated from such a pool. The memory is charged to whoever allocated it;
// slabs of it are opened as CUDA IPC's are (core/shared_memory.h), stay open while an allocation in
// them is imported, and are closed once all that was given to the device before their last free
// is done: after a synchronisation at the latest, so that freeing waits for nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "client/core/pool_roster.h"
#include "client/core/stream_order.h"

namespace sluice::client {

class Session;
struct Device;

// One pool; importing it again gives the same handle, as CUDA's does, and so often it is to be
// destroyed. It has no attributes. Under the lock of ImportedPools.
struct ImportedPool {
  struct Slab {
    uint64_t address = 0, bytes = 0;
    uint32_t uses = 0;                      // allocations in it that are imported
    std::optional<StreamPoint> freed = {};  // the device's point that must pass before it is closed
  };
  std::unique_ptr<RosterView> roster;
  Device* device = nullptr;
  uint64_t handle = 0;  // the program's
  uint32_t imports = 1;
  uint64_t pointers = 0;  // imported and not freed
  std::map<wire::ShareKey, Slab> slabs;
};

class ImportedPools {
 public:
  explicit ImportedPools(Session& session) : session_(session) {}

  // Of a descriptor, which stays the caller's. The pool has been imported once more.
  CUresult open(int descriptor, ImportedPool** pool);
  // Once less; true: that was the last, and the pool goes with its last allocation.
  bool close(ImportedPool* pool);
  CUresult import(ImportedPool* pool, const PointerTicket& ticket, uint64_t* address);
  // Once for each import of it. Whatever the device has been given may use it, also by a stream in
  // whose order it was not freed, since natively it stays where it is. False: no imported
  // allocation begins there.
  bool free(uint64_t address);
  // The imported allocation that contains `address`.
  bool find(uint64_t address, uint64_t* start, uint64_t* bytes, ImportedPool** pool = nullptr);

  void after_synchronisation() {
    if (holds_.load(std::memory_order_relaxed)) settle_all();
  }
  // Device reset, which has come to rest.
  void clear(Device& device);

 private:
  struct Pointer {
    ImportedPool* pool;
    wire::ShareKey key;
    uint64_t bytes;
    uint32_t times;
  };
  Device* device_of(const PoolBadge& badge);
  CUresult want_slab(ImportedPool& pool, const PointerTicket& ticket, ImportedPool::Slab** slab);
  // Closes what nobody uses any more.
  void settle(ImportedPool& pool);
  void settle_all();
  void bury();

  Session& session_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<ImportedPool>> pools_;
  std::map<uint64_t, Pointer> pointers_;  // by address
  std::atomic<bool> holds_{false};        // there may be slabs that could be closed
};

}  // namespace sluice::client
