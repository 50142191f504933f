// SPDX-License-Identifier: Apache-2.0
#include "client/core/memory_pool.h"

#include <algorithm>
#include <vector>

#include "client/core/memory_pools.h"
#include "wire/frame.h"

namespace sluice::client {

namespace {

StreamPoint later_of(StreamPoint a, StreamPoint b) {
  return {std::max(a.work, b.work), a.whole_device || b.whole_device};
}

}  // namespace

MemoryPool::Blocks::iterator MemoryPool::drop_block(Blocks::iterator it) {
  auto& sizes = by_size_[it->second.owner];
  sizes.erase({it->second.bytes, it->first});
  if (sizes.empty()) by_size_.erase(it->second.owner);
  return free_.erase(it);
}

void MemoryPool::put_block(uint64_t address, Block block) {
  // It grows together with its neighbours of the same owner, but never across chunks, which are
  // given back one by one.
  auto next = free_.lower_bound(address);
  if (next != free_.end() && next->first == address + block.bytes &&
      next->second.owner == block.owner && !chunks_.contains(next->first)) {
    block.bytes += next->second.bytes;
    block.point = later_of(block.point, next->second.point);
    next = drop_block(next);
  }
  if (next != free_.begin() && !chunks_.contains(address)) {
    const auto before = std::prev(next);
    if (before->first + before->second.bytes == address && before->second.owner == block.owner) {
      address = before->first;
      block.bytes += before->second.bytes;
      block.point = later_of(block.point, before->second.point);
      drop_block(before);
    }
  }
  by_size_[block.owner].insert({block.bytes, address});
  free_[address] = block;
}

void MemoryPool::hand_out(Blocks::iterator it, uint64_t bytes) {
  const auto [address, block] = *it;
  drop_block(it);
  if (block.bytes > bytes)
    put_block(address + bytes, {block.bytes - bytes, block.owner, block.point});
  used_.emplace(address, bytes);
  in_use_ += bytes;
  in_use_high_ = std::max(in_use_high_, in_use_);
}

// What the application has freed: the owner's at once, anybody's when there is none.
void MemoryPool::take_back(uint64_t address, Stream* owner, StreamPoint point) {
  const auto it = used_.find(address);
  const uint64_t bytes = it->second;
  used_.erase(it);
  in_use_ -= bytes;
  if (roster_) roster_->strike(address);
  put_block(address, {bytes, owner, point});
  if (reserved_ > threshold_) home_.holds_ = true;
  if (destroyed_) home_.bury();
}

bool MemoryPool::take_block(Stream* owner, uint64_t bytes, uint64_t* address) {
  const auto sizes = by_size_.find(owner);
  if (sizes == by_size_.end()) return false;
  const auto fit = sizes->second.lower_bound({bytes, 0});
  if (fit == sizes->second.end()) return false;
  *address = fit->second;
  hand_out(free_.find(*address), bytes);
  return true;
}

void MemoryPool::settle(Stream* stream, bool by_progress) {
  std::vector<std::pair<uint64_t, Block>> moved;
  for (auto it = free_.begin(); it != free_.end();) {
    Block block = it->second;
    Stream* const owner = block.owner;
    if (!owner || owner == stream) {
      ++it;
      continue;
    }
    if (by_progress && home_.order_->passed(owner, block.point)) {
      block.owner = nullptr;
      block.point = {};
    } else if (stream && by_events_ && home_.waits_for(stream, owner, block.point)) {
      block.owner = stream;
      block.point = home_.order_->point(stream);
    } else {
      ++it;
      continue;
    }
    moved.emplace_back(it->first, block);
    it = drop_block(it);
  }
  for (const auto& [address, block] : moved) put_block(address, block);
}

bool MemoryPool::grow(uint64_t bytes, DeviceMemory::Result* result) {
  bytes = wire::round_up(bytes, DeviceMemory::kSlab);
  *result = DeviceMemory::Result::kOutOfMemory;
  // A pool has whole slabs, also one whose limit is less than one.
  const uint64_t most = most_ ? wire::round_up(most_, DeviceMemory::kSlab) : 0;
  if (most && bytes > most - std::min(most, reserved_)) return false;
  uint64_t chunk;
  *result = home_.memory_->take(bytes, &chunk);
  if (*result != DeviceMemory::Result::kDone) return false;
  chunks_.emplace(chunk, bytes);
  reserved_ += bytes;
  reserved_high_ = std::max(reserved_high_, reserved_);
  put_block(chunk, {bytes, nullptr, {}});
  return true;
}

// The smallest block that fits becomes the stream's by a wait that is put into it.
bool MemoryPool::borrow(Stream* stream, uint64_t bytes) {
  auto best = free_.end();
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    const Block& b = it->second;
    if (!b.owner || b.owner == stream || b.bytes < bytes || b.point.whole_device) continue;
    if (best == free_.end() || b.bytes < best->second.bytes) best = it;
  }
  if (best == free_.end()) return false;
  const auto [address, block] = *best;
  if (!home_.order_->follow(stream, block.owner)) return false;
  drop_block(best);
  put_block(address, {block.bytes, stream, home_.order_->point(stream)});
  return true;
}

void MemoryPool::give_up_stream(Stream* stream, StreamPoint now) {
  // Nobody asks the stream any more: only the device's coming to rest frees these.
  Stream* const heir = home_.order_->heir(stream);
  std::vector<std::pair<uint64_t, Block>> moved;
  for (auto it = free_.begin(); it != free_.end();) {
    if (it->second.owner != stream) {
      ++it;
      continue;
    }
    const bool passed = home_.order_->passed(stream, it->second.point);
    moved.emplace_back(it->first, Block{it->second.bytes, passed ? nullptr : heir,
                                        passed ? StreamPoint{} : later_of(it->second.point, now)});
    it = drop_block(it);
  }
  for (const auto& [address, block] : moved) put_block(address, block);
}

void MemoryPool::release(uint64_t threshold, uint64_t least) {
  for (auto it = chunks_.begin(); it != chunks_.end() && reserved_ > threshold;) {
    const auto [chunk, bytes] = *it;
    const auto block = free_.find(chunk);
    const bool unused =
        block != free_.end() && !block->second.owner && block->second.bytes == bytes;
    if (!unused || reserved_ - bytes < least) {
      ++it;
      continue;
    }
    drop_block(block);
    reserved_ -= bytes;
    it = chunks_.erase(it);
    if (roster_) roster_->keys.erase(chunk);
    home_.memory_->give(chunk);
  }
}

}  // namespace sluice::client
