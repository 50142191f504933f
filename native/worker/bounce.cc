// SPDX-License-Identifier: Apache-2.0
#include "worker/bounce.h"

#include <algorithm>
#include <bit>

#include "channel/own_memory.h"

namespace sluice::worker {

namespace {
constexpr size_t kLeastBytes = 64 << 10;
}  // namespace

Bounces::~Bounces() {
  for (const auto& [bytes, at] : free_) release(at);
}

void Bounces::release(std::byte* at) {
  channel::OwnMemory::remove(at);
  driver_.cuMemFreeHost(at);
}

std::byte* Bounces::find(size_t bytes, bool* refused) {
  if (const auto fits = free_.lower_bound(bytes); fits != free_.end() && fits->first == bytes) {
    std::byte* const at = fits->second;
    free_.erase(fits);
    return at;
  }
  // Those of other sizes that nobody uses make room.
  while (all_bytes_ + bytes > kMostBytes && !free_.empty()) {
    release(free_.begin()->second);
    all_bytes_ -= free_.begin()->first;
    free_.erase(free_.begin());
  }
  if (all_bytes_ + bytes > kMostBytes) return nullptr;
  void* at = nullptr;
  if (driver_.cuMemHostAlloc(&at, bytes, CU_MEMHOSTALLOC_PORTABLE) != CUDA_SUCCESS) {
    *refused = true;
    return nullptr;
  }
  channel::OwnMemory::add(at, bytes);
  all_bytes_ += bytes;
  return static_cast<std::byte*>(at);
}

std::shared_ptr<std::byte> Bounces::take(size_t bytes) {
  // Few sizes, so that what one answer had serves another.
  const size_t size = std::bit_ceil(std::max(bytes, kLeastBytes));
  if (size > kMostBytes) return nullptr;
  std::unique_lock lock(mutex_);
  for (bool refused = false;;) {
    if (std::byte* at = find(size, &refused))
      return {at, [this, size](std::byte* used) { give_back(used, size); }};
    if (refused) return nullptr;
    given_back_.wait(lock);
  }
}

void Bounces::give_back(std::byte* at, size_t bytes) {
  {
    std::lock_guard lock(mutex_);
    free_.emplace(bytes, at);
  }
  given_back_.notify_all();
}

}  // namespace sluice::worker
