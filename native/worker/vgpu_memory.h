// SPDX-License-Identifier: Apache-2.0
// The accounting of a vGPU's memory: how much is taken, and for what. No number falls below 0, and
// none is taken beyond what is left. Owned by Vgpu, whose mutex the caller holds for everything but
// bytes(), which never changes. In a job all sessions share what its ledger has
// (worker/grant_ledger.h); here is what this session has of that, its credit.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace sluice::worker {

// The first streams are part of what a context takes (worker/library/charge.h).
constexpr uint64_t kStreamsOfContext = 64;

enum class MemoryUse : uint8_t {
  kClient,       // the client's allocations, those that are mapped nowhere included
  kLibrary,      // NVIDIA's libraries on the GPU, variables of code, local memory, streams
  kLibraryHost,  // the same, pinned on the node
  kCode,         // images, of the client's code and of what libraries compiled
  kOpened,       // other sessions' memory that this one has opened
};

class VgpuMemory {
 public:
  VgpuMemory() = default;
  // `credit`: all of it, or in a job what this session has asked for.
  VgpuMemory(uint64_t bytes, uint64_t credit) : bytes_(bytes), credit_(credit) {}

  // The vGPU's memory.
  uint64_t bytes() const { return bytes_; }
  uint64_t taken(MemoryUse use) const { return taken_[static_cast<size_t>(use)]; }
  // How much more may be taken.
  uint64_t left(MemoryUse use) const;
  // What neither the client nor the libraries have, which share one memory.
  uint64_t room() const;
  // As the server shows it.
  uint64_t used() const;

  // False: so much is not left, and nothing is taken.
  bool take(MemoryUse use, uint64_t bytes);
  // Returns how much that was: never more than is taken, and what is too much is logged.
  uint64_t give(MemoryUse use, uint64_t bytes);

  // So much of what libraries have taken moves, or no more.
  void lay(uint64_t bytes);
  void lift(uint64_t bytes);

  // Words that show how much there is on the GPU, and how much of that never moves; they outlive
  // it.
  void show_on(std::atomic<uint64_t>* taken, std::atomic<uint64_t>* staying);

  uint64_t credit() const { return credit_; }
  void add_credit(uint64_t bytes) { credit_ += bytes; }
  // What is in use stays covered.
  void drop_credit(uint64_t bytes);

  // How often what libraries have has changed: clients are told so, and not in order.
  uint64_t library_changes() const { return library_changes_; }

  uint64_t streams() const { return streams_; }
  // One of those that come with a context, or that were paid for before. False: there is none.
  bool take_paid_stream();
  // One that was paid for just now.
  void add_paid_stream();
  // One that is not paid for. False: there are as many of them as there may be.
  bool take_unpaid_stream();
  void give_stream();

 private:
  static constexpr size_t kUses = static_cast<size_t>(MemoryUse::kOpened) + 1;

  uint64_t& of(MemoryUse use) { return taken_[static_cast<size_t>(use)]; }

  void show() const;

  uint64_t bytes_ = 0, credit_ = 0;
  std::atomic<uint64_t>*taken_shown_ = nullptr, *staying_shown_ = nullptr;
  std::array<uint64_t, kUses> taken_{};
  uint64_t laid_ = 0;
  uint64_t library_changes_ = 0;
  uint64_t streams_ = 0, streams_paid_ = 0;
};

}  // namespace sluice::worker
