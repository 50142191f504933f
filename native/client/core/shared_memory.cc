// SPDX-License-Identifier: Apache-2.0
#include "client/core/shared_memory.h"

#include "client/core/session.h"

namespace sluice::client {

CUresult SharedMemory::open(Device& device, const MemoryTicket& t, uint64_t* address) {
  std::lock_guard lock(mutex_);
  auto it = mappings_.find(t.key);
  if (it == mappings_.end()) {
    const uint64_t at = device.memory.reserve(t.mapped_bytes, DeviceMemory::kSlab, 0);
    if (!at) return CUDA_ERROR_OUT_OF_MEMORY;
    const CUresult e = session_.exchange(
        wire::kOpenShared, wire::OpenShared{t.key, at, t.mapped_bytes, device.index, 0});
    if (e != CUDA_SUCCESS) {
      device.memory.release(at);
      return e;
    }
    device.memory.note_backed(at, t.mapped_bytes);
    it = mappings_.emplace(t.key, Mapping{&device, at, t.mapped_bytes, 0}).first;
  }
  Mapping& m = it->second;
  // The worker has checked the size that the ticket named when it was opened first.
  if (t.mapped_bytes != m.bytes) return CUDA_ERROR_INVALID_VALUE;
  *address = m.address + t.offset;
  Opened& o = opened_.try_emplace(*address, Opened{t.key, t.bytes, 0}).first->second;
  ++o.times;
  ++m.uses;
  return CUDA_SUCCESS;
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
  Mapping m = mapping->second;
  if (--mapping->second.uses) return CUDA_SUCCESS;
  mappings_.erase(mapping);
  m.device->memory.note_gone(m.address);
  const CUresult e =
      session_.post(wire::kCloseShared, wire::CloseShared{m.address, m.bytes, m.device->index, 0});
  // Whoever is given the addresses again comes behind this command.
  m.device->memory.release(m.address);
  return e;
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
