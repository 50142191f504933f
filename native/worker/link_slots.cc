// SPDX-License-Identifier: Apache-2.0
#include "worker/link_slots.h"

#include <cstring>

namespace sluice::worker {

std::unique_ptr<LinkSlots> LinkSlots::make(const Driver& driver) {
  std::unique_ptr<LinkSlots> made(new LinkSlots);
  made->memory_ = PinnedMemory::make(driver, kSlots * sizeof(Shared));
  if (!made->memory_) return nullptr;
  std::memset(made->memory_->at(), 0, kSlots * sizeof(Shared));
  made->shared_ = static_cast<Shared*>(made->memory_->at());
  for (uint32_t i = 0; i < kSlots; ++i) made->free_.push_back(i);
  return made;
}

LinkSlots::Slot LinkSlots::take() {
  const uint32_t index = free_.front();
  free_.pop_front();
  const Slot slot{index, ++values_[index]};
  shared_[index].posted.store(pieces(slot, 0), std::memory_order_release);
  return slot;
}

void LinkSlots::release(const Slot& slot) {
  Shared& s = shared_[slot.index];
  s.posted.store(pieces({slot.index, slot.value + 1}, 0), std::memory_order_release);
  s.word.store(over(slot), std::memory_order_release);
  free_.push_back(slot.index);
}

void LinkSlots::go(const Slot& slot) {
  shared_[slot.index].word.store(going(slot), std::memory_order_release);
}

void LinkSlots::post(const Slot& slot, uint32_t piece, CUdeviceptr staging, uint64_t bytes) {
  Shared& s = shared_[slot.index];
  s.ring[piece % kRing].staging.store(staging, std::memory_order_relaxed);
  s.ring[piece % kRing].bytes.store(bytes, std::memory_order_relaxed);
  s.posted.store(pieces(slot, piece + 1), std::memory_order_release);
}

bool LinkSlots::moved(const Slot& slot, uint32_t piece) const {
  for (const std::atomic<uint64_t>& by_block : shared_[slot.index].moved) {
    const uint64_t have = by_block.load(std::memory_order_acquire);
    if (have >> 32 != generation(slot) ||
        static_cast<int32_t>(static_cast<uint32_t>(have) - (piece + 1)) < 0)
      return false;
  }
  return true;
}

}  // namespace sluice::worker
