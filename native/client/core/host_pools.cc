// SPDX-License-Identifier: Apache-2.0
#include "client/core/host_pools.h"

#include "client/core/session.h"
#include "client/core/stream_order.h"
#include "client/objects/device.h"
#include "client/objects/pool.h"

namespace sluice::client {

PoolMemory::Result HostPools::Chunks::take(uint64_t bytes, uint64_t* address) {
  if (session_.host_memory().take_chunk(bytes, address)) return Result::kDone;
  return session_.sticky() != CUDA_SUCCESS ? Result::kSessionLost : Result::kOutOfMemory;
}

PoolMemory::Result HostPools::Chunks::give(uint64_t address) {
  session_.channel().settle();  // nothing is sent from there any more, be the session lost
  session_.host_memory().give_chunk(address);
  return Result::kDone;
}

MemoryPools& HostPools::all() {
  if (MemoryPools* const made = all_.load(std::memory_order_acquire)) return *made;
  std::lock_guard lock(mutex_);
  if (!owned_) {
    chunks_ = std::make_unique<Chunks>(session_);
    owned_ = std::make_unique<MemoryPools>();
    owned_->open(chunks_.get(), std::make_unique<SessionOrder>(session_));
    all_.store(owned_.get(), std::memory_order_release);
  }
  return *owned_;
}

HostPools::Place* HostPools::place(int node) {
  const auto it = places_.find(node);
  if (it != places_.end()) return &it->second;
  uint64_t id;
  PoolHandle* const made = session_.pools.create(&id);
  if (!made) return nullptr;
  made->pool = owned_->create(0);
  made->node = node;
  return &(places_[node] = {id, id});
}

uint64_t HostPools::standard(int node) {
  all();
  std::lock_guard lock(mutex_);
  const Place* const found = place(node);
  return found ? found->standard : 0;
}

uint64_t HostPools::current(int node) {
  all();
  std::lock_guard lock(mutex_);
  const Place* const found = place(node);
  return found ? found->current : 0;
}

void HostPools::choose(int node, uint64_t handle) {
  all();
  std::lock_guard lock(mutex_);
  if (Place* const found = place(node)) found->current = handle;
}

bool HostPools::forget(int node, uint64_t handle) {
  std::lock_guard lock(mutex_);
  const auto it = places_.find(node);
  if (it == places_.end()) return true;
  if (it->second.standard == handle) return false;
  if (it->second.current == handle) it->second.current = it->second.standard;
  return true;
}

DeviceMemory::Result HostPools::allocate(MemoryPool* pool, Stream* stream, uint64_t bytes,
                                         uint64_t* address) {
  const auto result = all().allocate(pool, stream, bytes, address);
  if (result == DeviceMemory::Result::kDone)
    session_.host_memory().add_pooled(*address, bytes, stream->device->index);
  return result;
}

bool HostPools::free(uint64_t address, Stream* stream) {
  // Of two threads that free it, one finds it.
  if (!any() || !session_.host_memory().drop_pooled(address)) return false;
  return stream ? all().free(address, stream) : all().free_now(address);
}

}  // namespace sluice::client
