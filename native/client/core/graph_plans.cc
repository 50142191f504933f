// SPDX-License-Identifier: Apache-2.0
// Of graph_memory.h, the part that runs while a graph is built: where each allocation node's memory
// will be.
#include <algorithm>

#include "client/core/device_memory.h"
#include "client/core/graph_memory.h"
#include "client/core/session.h"
#include "client/objects/device.h"
#include "wire/frame.h"

namespace sluice::client {

namespace {

constexpr uint64_t kSlab = DeviceMemory::kSlab;
}  // namespace

bool GraphMemory::reusable(GraphPlan& plan) {
  std::lock_guard lock(mutex_);
  return !plan.extents_.empty();
}

CUresult GraphMemory::back(const GraphPlan& plan, uint64_t address, uint64_t bytes, uint64_t id) {
  VirtualMemory& memory = session_->virtual_memory;
  CUresult e = memory.map(address, bytes, id);
  if (e == CUDA_SUCCESS)
    e = memory.set_access(address, bytes, *device_, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  for (uint32_t peer : plan.peers_)
    if (e == CUDA_SUCCESS)
      e = memory.set_access(address, bytes, *session_->devices()[peer],
                            CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  return e;
}

CUresult GraphMemory::back_by_placeholder(GraphPlan& plan, Slot& slot) {
  if (!placeholder_) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = static_cast<int>(device_->index);
    CUresult e = session_->virtual_memory.create(*device_, kSlab, properties, &placeholder_);
    if (e == CUDA_ERROR_OUT_OF_MEMORY && device_->pools.make_room(true))
      e = session_->virtual_memory.create(*device_, kSlab, properties, &placeholder_);
    if (e != CUDA_SUCCESS) return placeholder_ = 0, e;
  }
  slot.block = nullptr;
  for (uint64_t at = 0; at < slot.bytes; at += kSlab)
    if (const CUresult e = back(plan, slot.address + at, kSlab, placeholder_); e != CUDA_SUCCESS)
      return e;
  return CUDA_SUCCESS;
}

// Nothing that runs uses the slot's addresses.
void GraphMemory::unback(Slot& slot) {
  session_->virtual_memory.unmap(slot.address, slot.bytes);
  slot.block = nullptr;
}

CUresult GraphMemory::add_chunk(GraphPlan& plan, uint64_t bytes) {
  Chunk chunk{0, bytes, {}, 0};
  if (const CUresult e =
          session_->virtual_memory.reserve(*device_, bytes, kSlab, 0, &chunk.address);
      e != CUDA_SUCCESS)
    return e;
  // Powers of two, so that graphs of different sizes have blocks in common.
  for (uint64_t at = 0; at < bytes;) {
    uint64_t piece = kSlab;
    while (piece * 2 <= bytes - at) piece *= 2;
    chunk.slots.push_back({chunk.address + at, piece, nullptr});
    at += piece;
  }
  for (size_t i = 0; i < chunk.slots.size(); ++i) {
    const CUresult e = back_by_placeholder(plan, chunk.slots[i]);
    if (e == CUDA_SUCCESS) continue;
    // Of this slot some slabs may be mapped; whoever lost the session does not care.
    for (size_t k = 0; k < i; ++k) unback(chunk.slots[k]);
    session_->virtual_memory.unreserve(chunk.address, bytes);
    return e;
  }
  plan.chunks_.push_back(std::move(chunk));
  return CUDA_SUCCESS;
}

CUresult GraphMemory::allocate(GraphPlan& plan, uint32_t ordinal, uint64_t bytes,
                               const CUmemPoolProps& properties, const std::set<uint32_t>& peers,
                               const std::set<uint32_t>& before, uint64_t* address) {
  std::lock_guard lock(mutex_);
  if (bytes > device_->record.memory_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  const uint64_t asked = bytes;
  const bool small = bytes <= DeviceMemory::kSmall;
  bytes = wire::round_up(bytes, small ? DeviceMemory::kAlignment : kSlab);
  for (uint32_t peer : peers)
    if (plan.peers_.insert(peer).second)
      for (Chunk& chunk : plan.chunks_)
        session_->virtual_memory.set_access(chunk.address, chunk.bytes, *session_->devices()[peer],
                                            CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  // The smallest of those that are certainly free by then; the nearest to the beginning of equals.
  auto best = plan.extents_.end();
  for (auto it = plan.extents_.begin(); it != plan.extents_.end(); ++it)
    if (it->bytes >= bytes && before.contains(it->node) &&
        (best == plan.extents_.end() || it->bytes < best->bytes))
      best = it;
  GraphPlan::Allocation made{0, bytes, 0};
  if (best != plan.extents_.end()) {
    made.address = best->address;
    made.chunk = best->chunk;
    best->address += bytes;
    best->bytes -= bytes;
    if (best->bytes == 0) plan.extents_.erase(best);
  } else if (small && plan.tail_bytes_ >= bytes) {
    made.address = plan.tail_;
    made.chunk = static_cast<size_t>(
        std::find_if(plan.chunks_.begin(), plan.chunks_.end(),
                     [&](const Chunk& c) { return made.address - c.address < c.bytes; }) -
        plan.chunks_.begin());
    plan.tail_ += bytes;
    plan.tail_bytes_ -= bytes;
  } else {
    if (const CUresult e = add_chunk(plan, wire::round_up(bytes, kSlab)); e != CUDA_SUCCESS)
      return e;
    made.chunk = plan.chunks_.size() - 1;
    made.address = plan.chunks_.back().address;
    if (small) {
      plan.tail_ = made.address + bytes;
      plan.tail_bytes_ = kSlab - bytes;
    }
  }
  plan.allocations_.push_back(made);
  plan.nodes_[ordinal] = {true, made.address, asked, properties};
  *address = made.address;
  return CUDA_SUCCESS;
}

CUresult GraphMemory::check_free(const GraphPlan* plan, uint64_t address) {
  std::lock_guard lock(mutex_);
  for (const auto& other : plans_)
    for (const auto& a : other->allocations_) {
      if (a.address != address || a.freed_inside) continue;
      return other.get() == plan && a.freed_elsewhere ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    }
  return CUDA_ERROR_INVALID_VALUE;
}

void GraphMemory::free(GraphPlan& plan, uint32_t ordinal, uint64_t address) {
  std::lock_guard lock(mutex_);
  plan.nodes_[ordinal] = {false, address, 0, {}};
  for (auto& other : plans_)
    for (auto& a : other->allocations_) {
      if (a.address != address || a.freed_inside) continue;
      if (other.get() == &plan) {
        a.freed_inside = true;
        plan.extents_.push_back({a.address, a.bytes, a.chunk, ordinal});
      } else {
        a.freed_elsewhere = true;
        plan.frees_.push_back(address);
      }
      return;
    }
}

bool GraphMemory::node(GraphPlan& plan, uint32_t ordinal, GraphPlan::Node* node) {
  std::lock_guard lock(mutex_);
  const auto it = plan.nodes_.find(ordinal);
  if (it == plan.nodes_.end()) return false;
  *node = it->second;
  return true;
}

bool GraphMemory::alike(GraphPlan& a, GraphPlan& b) {
  if (&a.home != &b.home) return false;
  std::lock_guard lock(a.home.mutex_);
  return std::equal(a.nodes_.begin(), a.nodes_.end(), b.nodes_.begin(), b.nodes_.end(),
                    [](const auto& x, const auto& y) {
                      return x.second.allocates == y.second.allocates &&
                             x.second.bytes == y.second.bytes;
                    });
}

}  // namespace sluice::client
