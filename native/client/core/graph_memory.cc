// SPDX-License-Identifier: Apache-2.0
#include "client/core/graph_memory.h"

#include <algorithm>

#include "client/core/session.h"
#include "client/objects/device.h"
#include "client/objects/stream.h"

namespace sluice::client {

namespace {

// Stands for a stream that is gone: only the device's coming to rest tells of its work.
Stream* nobody() {
  static char one;
  return reinterpret_cast<Stream*>(&one);
}

}  // namespace

GraphPlanRef::~GraphPlanRef() {
  if (Session::get()) plan_->home.drop(plan_);
}

std::shared_ptr<GraphPlanRef> GraphMemory::make_plan() {
  std::lock_guard lock(mutex_);
  active_ = true;
  plans_.push_back(std::make_unique<GraphPlan>(*this));
  return std::make_shared<GraphPlanRef>(plans_.back().get());
}

// ---- blocks

bool GraphMemory::passed(Stream* stream, StreamPoint point) {
  if (!stream) return true;
  if (stream == nobody()) return session_->work().passed(*device_, nullptr, point);
  return device_->pools.passed(stream, point);
}

// Whether a run of `exec` in `stream` may use the block without more ado. Runs of one executable
// graph follow one another, whatever streams they are in.
bool GraphMemory::available(Block& block, uint64_t exec, Stream* stream) {
  if (block.held || block.claim == claims_) return false;
  if (!block.owner || block.owner == stream || (block.exec && block.exec == exec)) return true;
  if (passed(block.owner, block.point)) {
    block.owner = nullptr;
    return true;
  }
  return block.owner != nobody() && device_->pools.waited(stream, block.owner, block.point);
}

GraphMemory::Block* GraphMemory::find_block(uint64_t bytes, uint64_t exec, Stream* stream) {
  for (auto& block : blocks_)
    if (block->bytes == bytes && available(*block, exec, stream)) return block.get();
  return nullptr;
}

// One that becomes the stream's by a wait that is put into it.
GraphMemory::Block* GraphMemory::borrow(uint64_t bytes, Stream* stream) {
  for (auto& block : blocks_) {
    if (block->bytes != bytes || block->held || block->claim == claims_) continue;
    if (block->owner == nobody() || block->point.whole_device) continue;
    if (device_->pools.follow(stream, block->owner)) return block.get();
  }
  return nullptr;
}

GraphMemory::Block* GraphMemory::make_block(uint64_t bytes, CUresult* result) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = static_cast<int>(device_->index);
  uint64_t id = 0;
  *result = session_->virtual_memory.create(*device_, bytes, properties, &id);
  if (*result != CUDA_SUCCESS) return nullptr;
  blocks_.push_back(std::make_unique<Block>());
  blocks_.back()->id = id;
  blocks_.back()->bytes = bytes;
  bytes_ += bytes;
  most_ = std::max(most_, bytes_);
  return blocks_.back().get();
}

// Puts a block behind the slot that a run in `stream` may use.
CUresult GraphMemory::fill(GraphPlan& plan, Slot& slot, uint64_t exec, Stream* stream) {
  if (slot.block && !passed(plan.stream_, plan.point_)) {
    // Its last run may still use these addresses, so what is behind them has to stay, or that run
    // to end.
    Block& block = *slot.block;
    if (!block.held && block.owner != nobody() && !block.point.whole_device &&
        device_->pools.follow(stream, block.owner)) {
      block.claim = claims_;
      return CUDA_SUCCESS;
    }
    if (!device_->pools.wait_idle()) return session_->sticky();
    if (available(block, exec, stream)) {
      block.claim = claims_;
      return CUDA_SUCCESS;
    }
  }
  CUresult e = CUDA_SUCCESS;
  Block* block = find_block(slot.bytes, exec, stream);
  if (!block) block = make_block(slot.bytes, &e);
  for (int attempt = 0; !block && e == CUDA_ERROR_OUT_OF_MEMORY && attempt < 2; ++attempt) {
    if (attempt == 1) {
      block = borrow(slot.bytes, stream);
      if (block || !device_->pools.wait_idle()) break;
      block = find_block(slot.bytes, exec, stream);
      if (block) break;
    }
    trim_locked();
    device_->pools.make_room(attempt == 1);
    block = make_block(slot.bytes, &e);
  }
  if (!block) return e;
  block->claim = claims_;
  unback(slot);
  slot.block = block;
  return back(plan, slot.address, slot.bytes, block->id);
}

// ---- running

CUresult GraphMemory::prepare(GraphPlan& plan, uint64_t exec, Stream* stream, bool auto_free,
                              bool upload) {
  if (stream->device != device_ && !plan.nodes_.empty()) return CUDA_ERROR_NOT_SUPPORTED;
  for (auto& a : plan.allocations_) {
    if (!a.live || upload) continue;
    if (!auto_free) return CUDA_ERROR_INVALID_VALUE;
    free_locked(a.address, stream);
  }
  for (uint64_t address : plan.frees_) {
    GraphPlan* owner;
    if (!upload && !live_at(address, &owner)) return CUDA_ERROR_INVALID_VALUE;
  }
  device_->pools.watch_waits();
  ++claims_;
  // First what is in its place, so that no other slot takes it.
  for (Chunk& chunk : plan.chunks_)
    for (Slot& slot : chunk.slots)
      if (slot.block && (chunk.live || available(*slot.block, exec, stream)))
        slot.block->claim = claims_;
  for (Chunk& chunk : plan.chunks_)
    for (Slot& slot : chunk.slots)
      if (!slot.block || slot.block->claim != claims_)
        if (const CUresult e = fill(plan, slot, exec, stream); e != CUDA_SUCCESS) return e;
  return CUDA_SUCCESS;
}

CUresult GraphMemory::run(GraphPlan& plan, uint64_t exec, Stream* stream, bool auto_free,
                          bool upload, const std::function<CUresult()>& send) {
  std::lock_guard lock(mutex_);
  CUresult e = prepare(plan, exec, stream, auto_free, upload);
  if (e == CUDA_SUCCESS) e = send();
  if (e == CUDA_SUCCESS) launched(plan, exec, stream, upload);
  bury();
  return e;
}

void GraphMemory::launched(GraphPlan& plan, uint64_t exec, Stream* stream, bool upload) {
  plan.stream_ = stream;
  plan.point_ = device_->pools.point(stream);
  if (!upload)
    for (auto& a : plan.allocations_) {
      if (a.freed_inside) continue;
      a.live = true;
      ++plan.chunks_[a.chunk].live;
    }
  for (Chunk& chunk : plan.chunks_)
    for (Slot& slot : chunk.slots) {
      if (!slot.block) continue;
      slot.block->owner = stream;
      slot.block->point = plan.point_;
      slot.block->exec = exec;
      slot.block->held = chunk.live != 0;
    }
  if (upload) return;
  for (uint64_t address : plan.frees_) free_locked(address, stream);
}

// Freed without an order, its own user is done with it, but not the rest of the run perhaps.
void GraphMemory::release(GraphPlan& plan, Chunk& chunk, Stream* stream) {
  const StreamPoint point = stream ? device_->pools.point(stream) : plan.point_;
  if (!stream) stream = plan.stream_;
  for (Slot& slot : chunk.slots) {
    if (!slot.block) continue;
    slot.block->held = false;
    slot.block->owner = stream;
    slot.block->point = point;
    slot.block->exec = 0;
  }
}

GraphPlan::Allocation* GraphMemory::live_at(uint64_t address, GraphPlan** of) {
  for (auto& plan : plans_)
    for (auto& a : plan->allocations_)
      if (a.live && a.address == address) return *of = plan.get(), &a;
  return nullptr;
}

bool GraphMemory::free_locked(uint64_t address, Stream* stream) {
  GraphPlan* plan = nullptr;
  GraphPlan::Allocation* a = live_at(address, &plan);
  if (!a) return false;
  a->live = false;
  Chunk& chunk = plan->chunks_[a->chunk];
  if (--chunk.live == 0) release(*plan, chunk, stream);
  // What is mapped here was used up to now.
  if (stream) plan->stream_ = stream, plan->point_ = device_->pools.point(stream);
  return true;
}

// ---- outside of graphs

bool GraphMemory::free(uint64_t address, Stream* stream) {
  std::lock_guard lock(mutex_);
  if (!free_locked(address, stream)) return false;
  bury();
  return true;
}

bool GraphMemory::find(uint64_t address, uint64_t* start, uint64_t* bytes) {
  if (!active_.load(std::memory_order_relaxed)) return false;
  std::lock_guard lock(mutex_);
  for (auto& plan : plans_)
    for (auto a = plan->allocations_.rbegin(); a != plan->allocations_.rend(); ++a)
      if (address - a->address < a->bytes) return *start = a->address, *bytes = a->bytes, true;
  return false;
}

void GraphMemory::forget_stream(Stream* stream) {
  if (!active_.load(std::memory_order_relaxed)) return;
  std::lock_guard lock(mutex_);
  StreamPoint now = device_->pools.point(stream);
  now.whole_device = true;
  for (auto& block : blocks_) {
    if (block->owner != stream) continue;
    block->owner = passed(stream, block->point) ? nullptr : nobody();
    block->point = now;
  }
  for (auto& plan : plans_) {
    if (plan->stream_ != stream) continue;
    plan->stream_ = passed(stream, plan->point_) ? nullptr : nobody();
    plan->point_ = now;
  }
}

bool GraphMemory::trim_locked() {
  bury();
  bool any = false;
  for (auto it = blocks_.begin(); it != blocks_.end();) {
    Block& block = **it;
    if (block.held || block.claim == claims_ || !passed(block.owner, block.point)) {
      ++it;
      continue;
    }
    for (auto& plan : plans_)
      for (Chunk& chunk : plan->chunks_)
        for (Slot& slot : chunk.slots)
          if (slot.block == &block) {
            unback(slot);
            back_by_placeholder(*plan, slot);
          }
    session_->virtual_memory.release(block.id);
    bytes_ -= block.bytes;
    it = blocks_.erase(it);
    any = true;
  }
  return any;
}

bool GraphMemory::trim() {
  if (!active_.load(std::memory_order_relaxed)) return false;
  std::lock_guard lock(mutex_);
  ++claims_;
  return trim_locked();
}

void GraphMemory::drop(GraphPlan* plan) {
  std::lock_guard lock(mutex_);
  plan->gone_ = true;
  bury();
}

// Plans that nobody has any more end once no run uses their addresses and nothing is left in them.
void GraphMemory::bury() {
  std::erase_if(plans_, [&](auto& plan) {
    if (!plan->gone_ || !passed(plan->stream_, plan->point_)) return false;
    for (const Chunk& chunk : plan->chunks_)
      if (chunk.live) return false;
    for (Chunk& chunk : plan->chunks_) {
      for (Slot& slot : chunk.slots) unback(slot);
      session_->virtual_memory.unreserve(chunk.address, chunk.bytes);
    }
    return true;
  });
  if (!placeholder_) return;
  for (const auto& plan : plans_)
    if (!plan->chunks_.empty()) return;
  session_->virtual_memory.release(std::exchange(placeholder_, 0));
}

void GraphMemory::clear() {
  std::lock_guard lock(mutex_);
  for (auto& plan : plans_) {
    for (auto& a : plan->allocations_) a.live = false;
    for (Chunk& chunk : plan->chunks_) chunk.live = 0;
    plan->stream_ = nullptr;
  }
  for (auto& block : blocks_) block->owner = nullptr, block->held = false;
  ++claims_;
  trim_locked();
}

CUresult GraphMemory::get(CUgraphMem_attribute attribute, uint64_t* value) {
  std::lock_guard lock(mutex_);
  switch (attribute) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT:
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT:
      return *value = bytes_, CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
      return *value = most_, CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult GraphMemory::reset(CUgraphMem_attribute attribute) {
  std::lock_guard lock(mutex_);
  if (attribute != CU_GRAPH_MEM_ATTR_USED_MEM_HIGH &&
      attribute != CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH)
    return CUDA_ERROR_INVALID_VALUE;
  most_ = bytes_;
  return CUDA_SUCCESS;
}

}  // namespace sluice::client
