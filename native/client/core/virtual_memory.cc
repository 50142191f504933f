// SPDX-License-Identifier: Apache-2.0
#include "client/core/virtual_memory.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "client/core/device_memory.h"
#include "client/core/session.h"
#include "client/objects/device.h"

namespace sluice::client {

CUresult VirtualMemory::reserve(Device& home, uint64_t bytes, uint64_t alignment,
                                uint64_t requested, uint64_t* address) {
  std::lock_guard lock(mutex_);
  const uint64_t at = home.memory.reserve(bytes, alignment, requested);
  if (!at) return CUDA_ERROR_OUT_OF_MEMORY;
  reservations_[at] = {bytes, &home};
  *address = at;
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::unreserve(uint64_t address, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  const auto it = reservations_.find(address);
  if (it == reservations_.end() || it->second.bytes != bytes) return CUDA_ERROR_INVALID_VALUE;
  const auto mapped = mappings_.lower_bound(address);
  if (mapped != mappings_.end() && mapped->first - address < bytes) return CUDA_ERROR_INVALID_VALUE;
  it->second.home->memory.release(address);
  reservations_.erase(it);
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::create(Device& device, uint64_t bytes,
                               const CUmemAllocationProp& properties, uint64_t* id) {
  std::lock_guard lock(mutex_);
  end_forsaken();
  Allocation* made = allocations_.create(id);
  if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
  if (!device.memory.charge(bytes)) {
    allocations_.destroy(*id);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *made = {&device, bytes, properties, 1, 0, false, {}};
  wire::AllocationCreate m{*id, bytes, device.place.index, 0};
  if (properties.allocFlags.compressionType == CU_MEM_ALLOCATION_COMP_NONE)
    return session_.tell(device, wire::kAllocationCreate, m);
  // The driver may grant compression or not, and the application asks which.
  m.flags = wire::kCompressible;
  wire::AllocationReply reply{};
  const CUresult e = session_.ask(device, wire::kAllocationCreate, m, &reply);
  made->properties.allocFlags.compressionType = static_cast<unsigned char>(reply.compression);
  if (e == CUDA_SUCCESS) return e;
  device.memory.refund(bytes);
  allocations_.destroy(*id);
  return e;
}

void VirtualMemory::end_forsaken() {
  std::erase_if(lingering_, [&](uint64_t id) {
    Allocation* a = allocations_.find(id);
    std::erase_if(a->exported, [](int ours) {
      pollfd p{ours, 0, 0};
      if (poll(&p, 1, 0) != 1 || !(p.revents & POLLHUP)) return false;
      ::close(ours);
      return true;
    });
    if (!a->exported.empty()) return false;
    finish(id, *a);
    return true;
  });
}

CUresult VirtualMemory::export_to(uint64_t id, int* descriptor) {
  std::lock_guard lock(mutex_);
  end_forsaken();
  Allocation* a = allocations_.find(id);
  if (!a || !a->handles ||
      a->properties.requestedHandleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult e = session_.fences.show_memory(); e != CUDA_SUCCESS) return e;
  wire::SharedMemory shared{};
  const CUresult e =
      session_.ask(*a->device, wire::kShareAllocation, wire::AllocationId{id}, &shared);
  if (e != CUDA_SUCCESS) return e;
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return CUDA_ERROR_OPERATING_SYSTEM;
  AllocationTicket ticket;
  ticket.key = shared.key;
  ticket.bytes = a->bytes;
  if (send(ends[0], &ticket, sizeof ticket, MSG_NOSIGNAL) != sizeof ticket) {
    ::close(ends[0]);
    ::close(ends[1]);
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  a->exported.push_back(ends[0]);
  *descriptor = ends[1];
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::import_from(int descriptor, uint64_t* id) {
  AllocationTicket ticket;
  if (recv(descriptor, &ticket, sizeof ticket, MSG_PEEK | MSG_DONTWAIT) != sizeof ticket ||
      ticket.magic != AllocationTicket::kMagic || ticket.bytes == 0 ||
      ticket.bytes % DeviceMemory::kSlab)
    return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(mutex_);
  end_forsaken();
  Allocation* made = allocations_.create(id);
  if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
  wire::AllocationReply reply{};
  CUresult e = session_.fences.show_memory();
  if (e == CUDA_SUCCESS)
    e = session_.exchange(wire::kOpenAllocation,
                          wire::OpenAllocation{ticket.key, *id, ticket.bytes}, {},
                          {reinterpret_cast<std::byte*>(&reply), sizeof reply});
  if (e == CUDA_SUCCESS && reply.device >= session_.devices().size()) e = CUDA_ERROR_UNKNOWN;
  if (e != CUDA_SUCCESS) {
    allocations_.destroy(*id);
    return e;
  }
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = static_cast<int>(reply.device);
  properties.allocFlags.compressionType = static_cast<unsigned char>(reply.compression);
  *made = {session_.devices()[reply.device].get(), ticket.bytes, properties, 1, 0, true, {}};
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::end_if_unused(uint64_t id, Allocation& allocation) {
  if (allocation.handles || allocation.mappings) return CUDA_SUCCESS;
  if (allocation.exported.empty()) return finish(id, allocation);
  lingering_.push_back(id);
  end_forsaken();
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::finish(uint64_t id, Allocation& allocation) {
  allocations_.retire(id);
  const CUresult e =
      session_.tell(*allocation.device, wire::kAllocationDestroy, wire::AllocationId{id});
  // Whoever is given the credit again comes behind this command.
  if (!allocation.foreign) allocation.device->memory.refund(allocation.bytes);
  allocations_.recycle(id);
  return e;
}

CUresult VirtualMemory::release(uint64_t id) {
  std::lock_guard lock(mutex_);
  Allocation* a = allocations_.find(id);
  if (!a || !a->handles) return CUDA_ERROR_INVALID_VALUE;
  --a->handles;
  return end_if_unused(id, *a);
}

const VirtualMemory::Reservation* VirtualMemory::reservation_of(uint64_t address,
                                                                uint64_t bytes) const {
  auto it = reservations_.upper_bound(address);
  if (it == reservations_.begin()) return nullptr;
  --it;
  const uint64_t at = address - it->first;
  return at < it->second.bytes && bytes <= it->second.bytes - at ? &it->second : nullptr;
}

CUresult VirtualMemory::map(uint64_t address, uint64_t bytes, uint64_t id) {
  std::lock_guard lock(mutex_);
  Allocation* a = allocations_.find(id);
  // A handle that was given back names nothing, though mappings may keep its memory alive.
  if (!a || !a->handles || bytes != a->bytes || !reservation_of(address, bytes))
    return CUDA_ERROR_INVALID_VALUE;
  if (reservation_of(address, bytes)->home->place.node != a->device->place.node)
    return CUDA_ERROR_NOT_SUPPORTED;  // each node has the addresses of its own vGPUs
  const auto next = mappings_.lower_bound(address);
  if (next != mappings_.end() && next->first - address < bytes) return CUDA_ERROR_INVALID_VALUE;
  if (next != mappings_.begin() && address - std::prev(next)->first < std::prev(next)->second.bytes)
    return CUDA_ERROR_INVALID_VALUE;
  const bool of_host = a->properties.location.type != CU_MEM_LOCATION_TYPE_DEVICE;
  if (of_host && a->mappings > 0) return CUDA_ERROR_NOT_SUPPORTED;  // it is seen at one place
  mappings_[address] = {bytes, id, a->device, {}, of_host, false};
  ++a->mappings;
  return session_.tell(*a->device, wire::kAllocationMap, wire::AllocationMap{id, address, bytes});
}

std::pair<VirtualMemory::Mappings::iterator, VirtualMemory::Mappings::iterator>
VirtualMemory::in_range(uint64_t address, uint64_t bytes) {
  const auto first = mappings_.find(address);
  uint64_t at = address;
  auto it = first;
  for (; it != mappings_.end() && it->first == at && at - address < bytes; ++it)
    at += it->second.bytes;
  if (bytes == 0 || at - address != bytes) return {mappings_.end(), mappings_.end()};
  return {first, it};
}

bool VirtualMemory::whole_mappings(uint64_t address, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  const auto [first, last] = in_range(address, bytes);
  return first != last;
}

CUresult VirtualMemory::unmap(uint64_t address, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  const auto [first, last] = in_range(address, bytes);
  if (first == last) return CUDA_ERROR_INVALID_VALUE;
  CUresult status = CUDA_SUCCESS;
  for (auto it = first; it != last; ++it) {
    const auto& [at, mapping] = *it;
    reservation_of(at, mapping.bytes)->home->memory.note_gone(at);
    status = session_.tell(*mapping.device, wire::kAllocationUnmap,
                           wire::AllocationUnmap{at, mapping.bytes});
    Allocation* a = allocations_.find(mapping.allocation);
    --a->mappings;
    if (status == CUDA_SUCCESS) status = end_if_unused(mapping.allocation, *a);
    if (status != CUDA_SUCCESS) break;  // the session is lost
  }
  mappings_.erase(first, last);
  return status;
}

CUresult VirtualMemory::set_access(uint64_t address, uint64_t bytes, const Device& device,
                                   CUmemAccess_flags access) {
  std::lock_guard lock(mutex_);
  const auto [first, last] = in_range(address, bytes);
  if (first == last) return CUDA_ERROR_INVALID_VALUE;
  for (auto it = first; it != last; ++it)
    if (it->second.device != &device && !(device.record.peers >> it->second.device->index & 1))
      return CUDA_ERROR_INVALID_DEVICE;
  for (auto it = first; it != last; ++it) {
    auto& [at, mapping] = *it;
    // The driver knows GPUs, of which several vGPUs may be slices: the most that one of them has.
    CUmemAccess_flags granted = access;
    for (const auto& [index, flags] : mapping.access)
      if (index != device.index && same_gpu(*session_.devices()[index], device))
        granted = std::max(granted, flags);
    const wire::AllocationAccess a{at, mapping.bytes, device.place.index,
                                   static_cast<uint32_t>(granted)};
    // The driver takes the one for granted and may refuse the others.
    const bool usual = access == CU_MEM_ACCESS_FLAGS_PROT_READWRITE && mapping.device == &device;
    const CUresult e = usual ? session_.tell(device, wire::kAllocationAccess, a)
                             : session_.ask(device, wire::kAllocationAccess, a);
    if (e != CUDA_SUCCESS) return e;
    mapping.access.erase(device.index);
    if (access != CU_MEM_ACCESS_FLAGS_PROT_NONE) mapping.access[device.index] = access;
    DeviceMemory& window = reservation_of(at, mapping.bytes)->home->memory;
    if (mapping.access.empty())
      window.note_gone(at);
    else
      window.note_backed(at, mapping.bytes);
  }
  return CUDA_SUCCESS;
}

// Without the lock while it is moved: what moves it looks for its mapping.
CUresult VirtualMemory::show(uint64_t address, uint64_t bytes, bool seen) {
  std::vector<std::pair<uint64_t, Mapping>> found;
  {
    std::lock_guard lock(mutex_);
    const auto [first, last] = in_range(address, bytes);
    if (first == last) return CUDA_ERROR_INVALID_VALUE;
    for (auto it = first; it != last; ++it) {
      if (!it->second.of_host) return CUDA_ERROR_NOT_SUPPORTED;
      it->second.seen = seen;
    }
    found.assign(first, last);
  }
  for (const auto& [at, mapping] : found)
    if (const CUresult e = seen ? session_.managed.adopt(mapping.device, at, mapping.bytes)
                                : session_.managed.disown(at, mapping.bytes);
        e != CUDA_SUCCESS)
      return e;
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::retain(uint64_t address, uint64_t* id) {
  std::lock_guard lock(mutex_);
  auto it = mappings_.upper_bound(address);
  if (it == mappings_.begin()) return CUDA_ERROR_INVALID_VALUE;
  --it;
  if (address - it->first >= it->second.bytes) return CUDA_ERROR_INVALID_VALUE;
  ++allocations_.find(it->second.allocation)->handles;
  *id = it->second.allocation;
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::properties(uint64_t id, CUmemAllocationProp* properties) {
  std::lock_guard lock(mutex_);
  const Allocation* a = allocations_.find(id);
  if (!a || !a->handles) return CUDA_ERROR_INVALID_VALUE;
  *properties = a->properties;
  return CUDA_SUCCESS;
}

bool VirtualMemory::find(uint64_t address, uint64_t* start, Mapping* mapping) {
  std::lock_guard lock(mutex_);
  auto it = mappings_.upper_bound(address);
  if (it == mappings_.begin()) return false;
  --it;
  if (address - it->first >= it->second.bytes) return false;
  *start = it->first;
  *mapping = it->second;
  return true;
}

}  // namespace sluice::client
