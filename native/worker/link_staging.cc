// SPDX-License-Identifier: Apache-2.0
#include "worker/link_staging.h"

#include <chrono>

namespace sluice::worker {

std::unique_ptr<Staging> Staging::make(const Driver& driver) {
  std::unique_ptr<Staging> made(new Staging);
  made->memory_ = PinnedMemory::make(driver, kPieceBytes * kPieces);
  if (!made->memory_) return nullptr;
  for (size_t i = 0; i < kPieces; ++i) made->free_.push_back(i);
  return made;
}

Staging::Piece Staging::take() {
  std::lock_guard lock(mutex_);
  if (free_.empty()) return {};
  const size_t index = free_.back();
  free_.pop_back();
  auto* const at = static_cast<std::byte*>(memory_->at()) + index * kPieceBytes;
  return {std::shared_ptr<std::byte>(at,
                                     [this, index](std::byte*) {
                                       std::lock_guard given(mutex_);
                                       free_.push_back(index);
                                       given_back_.notify_all();
                                     }),
          memory_->device() + index * kPieceBytes};
}

void Staging::wait(int milliseconds) {
  std::unique_lock lock(mutex_);
  given_back_.wait_for(lock, std::chrono::milliseconds(milliseconds),
                       [this] { return !free_.empty(); });
}

}  // namespace sluice::worker
