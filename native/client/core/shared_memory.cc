// SPDX-License-Identifier: Apache-2.0
#include "client/core/shared_memory.h"

#include "client/core/device_memory.h"
#include "client/core/session.h"
#include "client/objects/device.h"

namespace sluice::client {

// With a use more of it.
CUresult SharedMemory::map(Device& device, const wire::ShareKey& key, uint64_t bytes,
                           uint32_t flags, Mappings::iterator* mapping) {
  auto it = mappings_.find(key);
  if (it == mappings_.end()) {
    if (const CUresult e = session_.fences.show_memory(); e != CUDA_SUCCESS) return e;
    const uint64_t at = device.memory.reserve(bytes, DeviceMemory::kSlab, 0);
    if (!at) return CUDA_ERROR_OUT_OF_MEMORY;
    const CUresult e = session_.ask(device, wire::kOpenShared,
                                    wire::OpenShared{key, at, bytes, device.place.index, flags});
    if (e != CUDA_SUCCESS) {
      device.memory.release(at);
      return e;
    }
    device.memory.note_backed(at, bytes);
    it = mappings_.emplace(key, Mapping{&device, at, bytes, 0}).first;
  }
  // The worker has checked the size that the ticket named when it was opened first.
  if (bytes != it->second.bytes) return CUDA_ERROR_INVALID_VALUE;
  ++it->second.uses;
  *mapping = it;
  return CUDA_SUCCESS;
}

CUresult SharedMemory::drop_use(Mappings::iterator mapping) {
  const Mapping m = mapping->second;
  if (--mapping->second.uses) return CUDA_SUCCESS;
  mappings_.erase(mapping);
  m.device->memory.note_gone(m.address);
  const CUresult e = session_.tell(*m.device, wire::kCloseShared,
                                   wire::CloseShared{m.address, m.bytes, m.device->place.index, 0});
  // Whoever is given the addresses again comes behind this command.
  m.device->memory.release(m.address);
  return e;
}

CUresult SharedMemory::open(Device& device, const MemoryTicket& t, uint64_t* address) {
  std::lock_guard lock(mutex_);
  Mappings::iterator m;
  if (const CUresult e = map(device, t.key, t.mapped_bytes, 0, &m); e != CUDA_SUCCESS) return e;
  *address = m->second.address + t.offset;
  ++opened_.try_emplace(*address, Opened{t.key, t.bytes, 0}).first->second.times;
  return CUDA_SUCCESS;
}

CUresult SharedMemory::hold(Device& device, const wire::ShareKey& key, uint64_t bytes,
                            uint32_t flags, uint64_t* address) {
  std::lock_guard lock(mutex_);
  Mappings::iterator m;
  if (const CUresult e = map(device, key, bytes, flags, &m); e != CUDA_SUCCESS) return e;
  if (m->second.device != &device) {  // opened by CUDA IPC elsewhere: the ticket is forged
    drop_use(m);
    return CUDA_ERROR_INVALID_VALUE;
  }
  *address = m->second.address;
  return CUDA_SUCCESS;
}

CUresult SharedMemory::let_go(const wire::ShareKey& key) {
  std::lock_guard lock(mutex_);
  return drop_use(mappings_.find(key));
}

Device* SharedMemory::device_of(uint64_t address) {
  std::lock_guard lock(mutex_);
  const auto it = opened_.find(address);
  return it == opened_.end() ? nullptr : mappings_.at(it->second.key).device;
}

CUresult SharedMemory::close(uint64_t address) {
  std::lock_guard lock(mutex_);
  const auto it = opened_.find(address);
  if (it == opened_.end()) return CUDA_ERROR_INVALID_VALUE;
  const auto mapping = mappings_.find(it->second.key);
  if (--it->second.times == 0) opened_.erase(it);
  return drop_use(mapping);
}

bool SharedMemory::find(uint64_t address, uint64_t* start, uint64_t* bytes) {
  std::lock_guard lock(mutex_);
  auto it = opened_.upper_bound(address);
  if (it == opened_.begin()) return false;
  --it;
  *start = it->first;
  *bytes = it->second.bytes;
  return address - it->first < it->second.bytes;
}

}  // namespace sluice::client
