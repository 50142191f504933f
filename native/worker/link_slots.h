// SPDX-License-Identifier: Apache-2.0
// What a link's threads say to streams and to the link's kernels, in pinned memory, so that they
// call no driver while a stream waits for them (node_link.h): a slot for each transfer under way,
// with the word that its streams wait for, the pieces of staging memory that its kernel is to move,
// and what each of the kernel's blocks has moved. Everything is taken when the link opens.
//
// A slot's value grows with each transfer that uses it, and a kernel ends where it finds another
// one than its own: whatever is left over of a transfer touches none that comes after it. The
// program's own kernels can write all of it, as they are of the same context, and so may spoil
// their own copies: nothing here is ever an address to the worker.
//
// Not for two threads at once, but for moved().
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>

#include "worker/pinned_memory.h"

namespace sluice::worker {

class LinkSlots {
 public:
  static constexpr size_t kSlots = 1024;
  static constexpr uint32_t kRing = 4;    // pieces that a kernel is told of ahead
  static constexpr uint32_t kBlocks = 8;  // of a kernel

  // In the current context. nullptr: there is no pinned memory.
  static std::unique_ptr<LinkSlots> make(const Driver& driver);

  // One transfer's use of a slot.
  struct Slot {
    uint32_t index = 0;
    uint64_t value = 0;
  };
  bool any_free() const { return !free_.empty(); }
  Slot take();
  // The transfer is over: its streams go on, and its kernel ends.
  void release(const Slot& slot);

  // What its streams wait for: that its bytes are about to move, and that it is over.
  CUdeviceptr word(const Slot& slot) const { return address(slot); }
  static uint64_t going(const Slot& slot) { return 2 * slot.value - 1; }
  static uint64_t over(const Slot& slot) { return 2 * slot.value; }
  void go(const Slot& slot);

  // For the kernel.
  CUdeviceptr address(const Slot& slot) const {
    return memory_->device() + slot.index * sizeof(Shared);
  }
  static uint32_t generation(const Slot& slot) { return static_cast<uint32_t>(slot.value); }
  // Piece number `piece` of the transfer: at most kRing are posted and not moved.
  void post(const Slot& slot, uint32_t piece, CUdeviceptr staging, uint64_t bytes);
  bool moved(const Slot& slot, uint32_t piece) const;

 private:
  // link_kernel.cc reads it.
  struct alignas(64) Shared {
    std::atomic<uint64_t> word;
    std::atomic<uint64_t> posted;  // the transfer's generation, and how many pieces
    uint64_t reserved[6];
    struct {
      std::atomic<uint64_t> staging, bytes;
    } ring[kRing];
    std::atomic<uint64_t> moved[kBlocks];  // as `posted`
  };
  static_assert(sizeof(Shared) == 192 && sizeof(std::atomic<uint64_t>) == sizeof(uint64_t));

  LinkSlots() = default;
  static uint64_t pieces(const Slot& slot, uint32_t count) {
    return uint64_t{generation(slot)} << 32 | count;
  }

  std::unique_ptr<PinnedMemory> memory_;
  Shared* shared_ = nullptr;
  std::deque<uint32_t> free_;
  std::array<uint64_t, kSlots> values_{};
};

}  // namespace sluice::worker
