// SPDX-License-Identifier: Apache-2.0
// Pinned memory through which one direction of a link between nodes goes (node_link.h), in pieces:
// a copy has one while the link's kernel writes or reads it, and the connection until the peer has
// acknowledged it. Everything is taken when the link opens: later, while streams wait, a driver
// waits for those before it gives pinned memory.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "worker/pinned_memory.h"

namespace sluice::worker {

class Staging {
 public:
  static constexpr size_t kPieceBytes = 2 << 20;
  static constexpr size_t kPieces = 8;

  // In the current context. nullptr: there is no pinned memory.
  static std::unique_ptr<Staging> make(const Driver& driver);

  struct Piece {
    std::shared_ptr<std::byte> at;  // given back with its last holder
    CUdeviceptr device = 0;         // the same for kernels
    explicit operator bool() const { return at != nullptr; }
  };
  // nullptr: all are held.
  Piece take();
  // Waits until one is given back, at most so long.
  void wait(int milliseconds);

 private:
  Staging() = default;

  std::unique_ptr<PinnedMemory> memory_;
  std::mutex mutex_;
  std::condition_variable given_back_;
  std::vector<size_t> free_;
};

}  // namespace sluice::worker
