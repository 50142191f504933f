// SPDX-License-Identifier: Apache-2.0
#include "client/core/host_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <thread>

#include "channel/own_memory.h"

namespace sluice::client {

namespace {
constexpr size_t kPage = 4096;
constexpr size_t kKnownChunk = wire::kArenaChunk;
// With cores to spare, pieces are large enough for several threads to share one; with few, the
// whole pipeline stays in the cache, which is worth a tenth of the bandwidth.
const bool kManyCores = std::thread::hardware_concurrency() >= 8;
constexpr size_t kStagingBytes = 32 << 20;  // kept for it
const size_t kStagingUsed = kManyCores ? kStagingBytes : 4 << 20;
const size_t kStagingPiece = kManyCores ? 2 << 20 : 512 << 10;

size_t pages(size_t n) { return (std::max<size_t>(n, 1) + kPage - 1) / kPage * kPage; }
}  // namespace

void HostMemory::open(std::span<std::byte> arena, Marks* marks,
                      std::function<bool(uint64_t, uint64_t)> make_known) {
  arena_ = arena;
  marks_ = marks;
  make_known_ = std::move(make_known);
  if (arena.empty()) return;
  // A quarter of the arena at most stages pageable copies.
  staging_bytes_ = std::min(kStagingBytes, arena.size() / 4 / kPage * kPage);
  const uint64_t base = reinterpret_cast<uint64_t>(arena.data());
  free_.add(base + staging_bytes_, (arena.size() - staging_bytes_) / kPage * kPage);
  known_.assign(arena.size() / kKnownChunk + 1, false);
}

bool HostMemory::know(uint64_t start, uint64_t bytes) {
  const uint64_t base = reinterpret_cast<uint64_t>(arena_.data());
  for (size_t chunk = (start - base) / kKnownChunk;
       chunk <= (start - base + bytes - 1) / kKnownChunk; ++chunk) {
    if (known_[chunk]) continue;
    const uint64_t at = chunk * kKnownChunk;
    if (!make_known_(base + at, std::min<uint64_t>(kKnownChunk, arena_.size() - at))) return false;
    known_[chunk] = true;
  }
  return true;
}

void HostMemory::add_unmapped(const Range& r) {
  ranges_[r.start] = r;
  unmapped_from_ = std::min(unmapped_from_.load(), r.start);
  unmapped_to_ = std::max(unmapped_to_.load(), r.start + r.bytes);
}

bool HostMemory::take(size_t rounded, uint64_t* start, Place* place) {
  *place = Place::kArena;
  *start = arena_.empty() ? RangeAllocator::kNone : free_.allocate(rounded);
  if (*start != RangeAllocator::kNone) return know(*start, rounded);
  void* plain = mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (plain == MAP_FAILED) return false;
  *start = reinterpret_cast<uint64_t>(plain);
  *place = Place::kPlain;
  channel::OwnMemory::add(plain, rounded);
  return true;
}

void HostMemory::give(uint64_t start, size_t rounded, Place place) {
  if (place == Place::kArena) {
    free_.release(start);
    return;
  }
  void* const at = reinterpret_cast<void*>(start);
  channel::OwnMemory::remove(at);
  munmap(at, rounded);
}

bool HostMemory::allocate(size_t bytes, unsigned flags, uint32_t device, void** at) {
  std::lock_guard lock(mutex_);
  const size_t rounded = pages(bytes);
  if (rounded < bytes) return false;
  Range r{0, bytes, flags, Place::kArena, device};
  if (!take(rounded, &r.start, &r.place)) return false;
  if (r.place == Place::kPlain)
    add_unmapped(r);
  else
    ranges_[r.start] = r;
  *at = reinterpret_cast<void*>(r.start);
  return true;
}

bool HostMemory::release(void* at) {
  std::lock_guard lock(mutex_);
  const auto it = ranges_.find(reinterpret_cast<uint64_t>(at));
  if (it == ranges_.end() || it->second.place == Place::kRegistered || it->second.pooled)
    return false;
  give(it->first, pages(it->second.bytes), it->second.place);
  ranges_.erase(it);
  return true;
}

bool HostMemory::take_chunk(size_t bytes, uint64_t* start) {
  std::lock_guard lock(mutex_);
  Chunk chunk{pages(bytes), Place::kArena};
  if (chunk.bytes < bytes || !take(chunk.bytes, start, &chunk.place)) return false;
  chunks_.emplace(*start, chunk);
  return true;
}

void HostMemory::give_chunk(uint64_t start) {
  std::lock_guard lock(mutex_);
  const auto it = chunks_.find(start);
  give(start, it->second.bytes, it->second.place);
  chunks_.erase(it);
}

void HostMemory::add_pooled(uint64_t start, size_t bytes, uint32_t device) {
  std::lock_guard lock(mutex_);
  const Place place = std::prev(chunks_.upper_bound(start))->second.place;
  const Range r{start, bytes, 0, place, device, true};
  if (place == Place::kPlain)
    add_unmapped(r);
  else
    ranges_[start] = r;
}

bool HostMemory::drop_pooled(uint64_t start) {
  std::lock_guard lock(mutex_);
  const auto it = ranges_.find(start);
  if (it == ranges_.end() || !it->second.pooled) return false;
  ranges_.erase(it);
  return true;
}

bool HostMemory::add_registered(void* at, size_t bytes, unsigned flags, uint32_t device) {
  std::lock_guard lock(mutex_);
  const uint64_t start = reinterpret_cast<uint64_t>(at);
  auto next = ranges_.lower_bound(start);
  if (next != ranges_.end() && next->first < start + bytes) return false;
  if (next != ranges_.begin() && std::prev(next)->first + std::prev(next)->second.bytes > start)
    return false;
  add_unmapped({start, bytes, flags, Place::kRegistered, device});
  return true;
}

bool HostMemory::drop_registered(void* at) {
  std::lock_guard lock(mutex_);
  const auto it = ranges_.find(reinterpret_cast<uint64_t>(at));
  if (it == ranges_.end() || it->second.place != Place::kRegistered) return false;
  ranges_.erase(it);
  return true;
}

HostMemory::Range HostMemory::find(const void* at) {
  std::lock_guard lock(mutex_);
  const uint64_t address = reinterpret_cast<uint64_t>(at);
  auto it = ranges_.upper_bound(address);
  if (it != ranges_.begin()) {
    --it;
    if (address - it->first < std::max<uint64_t>(it->second.bytes, 1)) return it->second;
  }
  return {};
}

bool HostMemory::is_unmapped(uint64_t address, uint64_t bytes) {
  const Range r = find(reinterpret_cast<const void*>(address));
  if (r.place != Place::kPlain && r.place != Place::kRegistered) return false;
  return bytes <= r.bytes - (address - r.start);
}

std::vector<HostMemory::Staging>& HostMemory::staging() {
  if (staging_ready_ || arena_.empty()) return staging_;
  std::lock_guard lock(mutex_);
  if (!know(reinterpret_cast<uint64_t>(arena_.data()), staging_bytes_)) return staging_;
  const size_t piece = std::min(kStagingPiece, staging_bytes_ / 8 / kPage * kPage);
  for (size_t at = 0; piece && at + piece <= std::min(staging_bytes_, kStagingUsed); at += piece) {
    const uint32_t mark = marks_->take();
    if (mark == wire::kNoMark) break;
    staging_.push_back({arena_.data() + at, piece, mark, 0});
  }
  staging_ready_ = !staging_.empty();
  return staging_;
}

}  // namespace sluice::client
