// SPDX-License-Identifier: Apache-2.0
// The driver knows the arena in pieces (wire::kArenaChunk) and takes no copy that runs from one
// into the next. Where a copy cannot be divided, as it is one node of a graph, it gets a view: the
// pages of its pieces mapped a second time and made known to the driver as one. Views are kept and
// shared until the session ends; they take addresses and the driver's tables, no memory.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

namespace sluice::worker {

class Session;

class ArenaViews {
 public:
  // An address at which the driver has all of these bytes of the arena in one piece. Where it can
  // have no view it is the arena's own, and the driver refuses.
  uint64_t whole(Session& s, uint64_t address, uint64_t bytes);
  // The arena's address of one in a view; others as they are.
  uint64_t original(uint64_t address) const;

 private:
  static constexpr size_t kMost = 256;
  struct View {
    uint64_t begin, bytes, at;
  };
  mutable std::mutex mutex_;
  std::vector<View> all_;
};

}  // namespace sluice::worker
