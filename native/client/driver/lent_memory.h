// SPDX-License-Identifier: Apache-2.0
// Pinned or registered host memory as a kernel's argument where the device does not reach it (TCP,
// or memory outside the arena). By unified addressing a kernel may read and write there, and XLA's
// autotuner has one count its mismatches so. The kernel is lent a copy on the device, and what it
// changed comes back before the launch returns. Only addresses among the arguments are seen, not
// those in memory; a kernel that waits for the host to write there waits for ever.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "abi/cuda_driver.h"

namespace sluice::client {

class Session;
struct Stream;

// Whether arguments of a launch name such memory: for the hot path.
bool names_unreachable(Session* s, std::span<const std::byte> params);

// The copies of one launch.
class LentMemory {
 public:
  // Of larger memory nothing is lent: a zero-copy program had better say that it cannot run.
  static constexpr uint64_t kMost = 1 << 20;

  LentMemory(Session* s, Stream* stream) : s_(s), stream_(stream) {}
  LentMemory(const LentMemory&) = delete;
  LentMemory& operator=(const LentMemory&) = delete;
  ~LentMemory();

  // In the stream's order. Puts the copies' addresses in the place of the memory's.
  CUresult lend(std::span<std::byte> params);
  // Waits for the kernel and writes to the memory what it changed, and nothing else: the program
  // may have written beside it.
  CUresult take_back();

 private:
  struct Loan {
    uint64_t start = 0, copy = 0;
    std::vector<std::byte> sent;
  };
  CUresult loan_of(uint64_t address, const Loan** loan);

  Session* s_;
  Stream* stream_;
  std::vector<Loan> loans_;
};

}  // namespace sluice::client
