// SPDX-License-Identifier: Apache-2.0
// Host memory that a session's device memory was moved to at one time: pieces that the server made,
// side by side at addresses of their own, registered with the driver where that works: each piece
// when it is about to be used, while the copies of those before it are under way. The process alone
// holds it; with its end the kernel has the pages back, and empties them before it gives them
// to anybody. Owned by memory_moves.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "worker/driver.h"
#include "worker/steps.h"

namespace sluice::worker {

class HostArea {
 public:
  struct Piece {
    int memory;  // shared memory
    uint64_t bytes;
  };
  // Takes the pieces, whose descriptors are closed whatever comes of it; a context is current.
  // nullptr with `error`: they are fewer than `bytes`, no whole slabs, or cannot be mapped.
  static std::unique_ptr<HostArea> take(const Driver& driver, const std::vector<Piece>& pieces,
                                        uint64_t bytes, Steps* steps, std::string* error);
  ~HostArea();  // a context is current
  HostArea(const HostArea&) = delete;

  std::byte* at(uint64_t offset) const { return begin_ + offset; }
  // Registers what is not yet, up to the piece that `offset` is in; a context is current.
  void enlist(uint64_t offset);
  // The driver knows nothing of it any more, until it is enlisted again; a context is current.
  void delist();
  // How much of [offset, end) one copy may take: the driver takes none that reaches over two
  // registered ranges.
  uint64_t in_one(uint64_t offset, uint64_t end) const;

 private:
  explicit HostArea(const Driver& driver) : driver_(driver) {}
  void map(const std::vector<Piece>& pieces, std::string* error);
  void divide(const std::vector<Piece>& pieces);

  const Driver& driver_;
  std::byte *reserved_ = nullptr, *begin_ = nullptr;  // the addresses, and where it begins there
  uint64_t bytes_ = 0;
  std::vector<uint64_t> chunks_;      // where each ends: a copy lies in one
  size_t enlisted_ = 0;               // of them, or tried
  std::vector<uint64_t> registered_;  // where those begin that the driver knows
};

}  // namespace sluice::worker
