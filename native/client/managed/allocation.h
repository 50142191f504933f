// SPDX-License-Identifier: Apache-2.0
// One managed allocation, or the pages of one or more __managed__ variables: its pages, whom it is
// attached to, and how its bytes cross the channel. ManagedMemory (managed/memory.h) owns all of
// them, and its lock is held for everything here.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "client/core/range_allocator.h"
#include "client/managed/advice.h"
#include "client/managed/mapping.h"
#include "client/managed/pages.h"

namespace sluice::client {

class Session;
struct Device;
struct Stream;

// Host memory over slabs of one vGPU, for one large allocation or many small ones.
struct ManagedBlock {
  Device* device = nullptr;
  std::unique_ptr<ManagedMapping> mapping;
  RangeAllocator pieces;
};

// A variable of that code: the rest of its pages is other memory of the device's, which is not
// moved. Or memory of the program's own mapping, which is of no code.
struct ManagedExtent {
  static constexpr uint64_t kOfNoCode = ~uint64_t{0};
  uint64_t start, bytes, code;
};

struct ManagedAllocation : PageMover {
  enum class Attached { kGlobal, kHost, kSingle };
  using Extent = ManagedExtent;

  ManagedAllocation(Session& s, Device* d, Stream* m, uint64_t start, uint64_t bytes,
                    const ManagedMapping& at, ManagedPages::State initial)
      : session(s), device(d), mover(m), mapping(at), pages(start, bytes, initial, *this) {}

  bool fetch(uint64_t at, uint64_t bytes) override;
  bool store(uint64_t at, uint64_t bytes) override;
  bool protect(uint64_t at, uint64_t bytes, Access access) override;

  uint64_t start() const { return begin; }
  uint64_t end() const { return begin + whole; }
  IntervalMap<Advice>& advised();

  Session& session;
  Device* device;
  Stream* mover;  // moves of its device's pages and nothing else: it waits for no other stream
  const ManagedMapping& mapping;
  std::unique_ptr<ManagedMapping> own;  // a variable's, or adopted memory's
  ManagedBlock* block = nullptr;        // else
  uint64_t begin = 0, whole = 0;        // in whole pages
  uint64_t asked = 0;                   // what the program asked for
  std::vector<Extent> extents;
  Attached attached = Attached::kGlobal;
  uint64_t stream = 0;  // of kSingle
  // The newest of the works (ManagedMemory::works_) that may touch it by other ways than its
  // attachment says, and the one stream that has all of these; 0: there may be several.
  uint64_t other_work = 0, other_stream = 0;
  std::unique_ptr<IntervalMap<Advice>> advice;
  ManagedPages pages;

 private:
  template <class F>
  bool for_bytes(uint64_t at, uint64_t bytes, F f) const;
};

}  // namespace sluice::client
