// SPDX-License-Identifier: Apache-2.0
#include "channel/rdma_placing.h"

#include <algorithm>
#include <cstring>

namespace sluice::channel {

namespace {
constexpr uint64_t kNone = ~uint64_t{0};
}  // namespace

bool RdmaPlacing::granted(std::byte* at, size_t bytes) {
  std::lock_guard lock(mutex_);
  if (ended_ || given_.size() + parts_.size() >= kMostGrants || bytes == 0 || bytes > kMostBytes)
    return false;
  given_.push_back({at, bytes});
  return true;
}

bool RdmaPlacing::offered(uint32_t bytes, uint64_t arrived) {
  std::lock_guard lock(mutex_);
  if (offer_ != 0 || bytes == 0 || bytes > kMostBytes) return false;
  if (!given_.empty() && given_.front().filled > 0) return false;
  offer_ = bytes;
  offer_at_ = arrived;
  return true;
}

bool RdmaPlacing::placed(uint32_t bytes, bool last, uint64_t arrived) {
  std::lock_guard lock(mutex_);
  if (given_.empty() || offer_ != 0) return false;
  Given& given = given_.front();
  if (bytes > given.bytes - given.filled || (bytes == 0 && (!last || given.filled == 0)))
    return false;
  given.filled += bytes;
  if (!last) return true;
  parts_.push_back({arrived, given.at, given.filled});
  given_.pop_front();
  next_part_.store(parts_.front().point, std::memory_order_release);
  return true;
}

bool RdmaPlacing::ring_is_open() const {
  std::lock_guard lock(mutex_);
  return offer_ == 0 && (given_.empty() || given_.front().filled == 0);
}

uint32_t RdmaPlacing::offer(uint64_t consumed) const {
  std::lock_guard lock(mutex_);
  return parts_.empty() && offer_at_ == consumed ? offer_ : 0;
}

void RdmaPlacing::answered() {
  std::lock_guard lock(mutex_);
  offer_ = 0;
}

uint64_t RdmaPlacing::next_part(uint64_t none) const {
  const uint64_t point = next_part_.load(std::memory_order_acquire);
  return point == kNone ? none : point;
}

std::byte* RdmaPlacing::place_of(size_t bytes) const {
  std::lock_guard lock(mutex_);
  const bool whole = !parts_.empty() && parts_.front().taken == 0 && parts_.front().bytes == bytes;
  return whole ? parts_.front().at : nullptr;
}

size_t RdmaPlacing::take(std::byte* to, size_t bytes) {
  std::lock_guard lock(mutex_);
  Part& part = parts_.front();
  const size_t n = std::min(bytes, part.bytes - part.taken);
  const std::byte* from = part.at + part.taken;
  if (from != to)
    std::memmove(to, from, n);
  else
    in_place_.fetch_add(n, std::memory_order_relaxed);
  part.taken += n;
  if (part.taken == part.bytes) {
    parts_.pop_front();
    next_part_.store(parts_.empty() ? kNone : parts_.front().point, std::memory_order_release);
  }
  return n;
}

bool RdmaPlacing::expects() const {
  std::lock_guard lock(mutex_);
  return !given_.empty();
}

bool RdmaPlacing::end() {
  std::lock_guard lock(mutex_);
  ended_ = true;
  return !given_.empty();
}

bool RdmaPlacing::was_granted(const RdmaGrant& grant) {
  std::lock_guard lock(mutex_);
  if (granted_.size() >= kMostGrants || grant.bytes > kMostBytes) return false;
  granted_.push_back(grant);
  grants_.store(granted_.size(), std::memory_order_release);
  return true;
}

size_t RdmaPlacing::next_bytes() const {
  std::lock_guard lock(mutex_);
  return granted_.empty() ? 0 : granted_.front().bytes;
}

bool RdmaPlacing::use_grant(RdmaGrant* grant) {
  std::lock_guard lock(mutex_);
  if (granted_.empty()) return false;
  *grant = granted_.front();
  granted_.pop_front();
  grants_.store(granted_.size(), std::memory_order_release);
  return true;
}

}  // namespace sluice::channel
