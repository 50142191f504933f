// SPDX-License-Identifier: Apache-2.0
// One memory pool: chunks of whole slabs, and the blocks that they are divided into, each free or
// in use. Free blocks have an owner, the stream that may use them at once. What is decided over all
// pools of a vGPU is in core/memory_pools.h, which holds the lock.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "client/core/device_memory.h"
#include "client/core/pool_roster.h"
#include "client/core/stream_order.h"

namespace sluice::client {

class MemoryPools;

// One pool. Under the lock of its MemoryPools.
class MemoryPool {
 public:
  MemoryPool(MemoryPools& home, uint64_t most, std::unique_ptr<PoolRoster> roster)
      : home_(home), most_(most), roster_(std::move(roster)) {}

 private:
  friend class MemoryPools;
  // Free memory inside one chunk, of one owner: the stream that may use it at once, nullptr when
  // anybody may.
  struct Block {
    uint64_t bytes;
    Stream* owner;
    StreamPoint point;  // of the owner when it was freed
  };
  using Blocks = std::map<uint64_t, Block>;

  bool take_block(Stream* owner, uint64_t bytes, uint64_t* address);
  void hand_out(Blocks::iterator it, uint64_t bytes);
  void put_block(uint64_t address, Block block);
  void take_back(uint64_t address, Stream* owner, StreamPoint point);
  Blocks::iterator drop_block(Blocks::iterator it);
  // Blocks whose point has passed become anybody's (`by_progress`); those that `stream`, if there
  // is one, has been made to wait for become its own.
  void settle(Stream* stream, bool by_progress);
  bool grow(uint64_t bytes, DeviceMemory::Result* result);
  bool borrow(Stream* stream, uint64_t bytes);
  void give_up_stream(Stream* stream, StreamPoint now);
  // Free chunks go back while more than `threshold` is reserved, but for those without which there
  // would be less than `least`.
  void release(uint64_t threshold, uint64_t least = 0);

  MemoryPools& home_;
  const uint64_t most_;                       // bytes reserved at most; 0: no such limit
  const std::unique_ptr<PoolRoster> roster_;  // what other processes know of it; nullptr: nothing
  Blocks free_;
  std::map<Stream*, std::set<std::pair<uint64_t, uint64_t>>> by_size_;  // bytes, address
  std::map<uint64_t, uint64_t> used_;                                   // address, bytes
  std::map<uint64_t, uint64_t> chunks_;
  uint64_t reserved_ = 0, reserved_high_ = 0, in_use_ = 0, in_use_high_ = 0, threshold_ = 0;
  bool by_events_ = true, opportunistic_ = true, by_waits_ = true;
  bool destroyed_ = false;  // goes when its last allocation does
};

}  // namespace sluice::client
