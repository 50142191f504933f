// SPDX-License-Identifier: Apache-2.0
#include "softgpu/memory/virtual_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <iterator>
#include <set>
#include <vector>

#include "softgpu/memory/allocations.h"
#include "softgpu/memory/host_node.h"
#include "softgpu/memory/range_map.h"
#include "softgpu/runtime/device.h"

namespace sluice::softgpu {
namespace {

constexpr int kEmptyFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

void* pointer(uint64_t address) { return reinterpret_cast<void*>(address); }

}  // namespace

PhysicalMemory::PhysicalMemory(int fd_, uint64_t size_, int device_,
                               const CUmemAllocationProp& properties_, bool charged_)
    : fd(fd_), size(size_), device(device_), properties(properties_), charged(charged_) {}

PhysicalMemory::~PhysicalMemory() {
  close(fd);
  if (!charged) return;
  if (Device* owner = device_at(device)) owner->memory.refund(size);
}

VirtualMemory& VirtualMemory::instance() {
  static auto* memory = new VirtualMemory;
  return *memory;
}

CUresult VirtualMemory::reserve(uint64_t size, uint64_t alignment, uint64_t wanted,
                                uint64_t& address) {
  if (size == 0 || size % kSlab != 0) return CUDA_ERROR_INVALID_VALUE;
  if (alignment == 0) alignment = kSlab;
  if ((alignment & (alignment - 1)) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (alignment < kSlab) alignment = kSlab;
  void* memory = MAP_FAILED;
  if (wanted != 0 && wanted % alignment == 0) {
    memory = mmap(pointer(wanted), size, PROT_NONE, kEmptyFlags | MAP_FIXED_NOREPLACE, -1, 0);
    if (memory != MAP_FAILED && memory != pointer(wanted)) {  // kernels before 4.17 ignore the flag
      munmap(memory, size);
      memory = MAP_FAILED;
    }
  }
  if (memory == MAP_FAILED) {  // the address is asked for, no more, as in CUDA
    if (size + alignment < size) return CUDA_ERROR_OUT_OF_MEMORY;
    memory = mmap(nullptr, size + alignment, PROT_NONE, kEmptyFlags, -1, 0);
    if (memory == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t start = reinterpret_cast<uintptr_t>(memory);
    uint64_t aligned = (start + alignment - 1) / alignment * alignment;
    if (aligned != start) munmap(memory, aligned - start);
    uint64_t tail = start + alignment - aligned;
    if (tail != 0) munmap(pointer(aligned + size), tail);
    memory = pointer(aligned);
  }
  address = reinterpret_cast<uintptr_t>(memory);
  std::lock_guard lock(mutex_);
  reservations_[address] = {size};
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::free(uint64_t address, uint64_t size) {
  std::lock_guard lock(mutex_);
  auto found = reservations_.find(address);
  if (found == reservations_.end() || found->second.size != size) return CUDA_ERROR_INVALID_VALUE;
  auto mapping = mappings_.lower_bound(address);
  if (mapping != mappings_.end() && mapping->first < address + size) {
    return CUDA_ERROR_INVALID_VALUE;  // still mapped
  }
  munmap(pointer(address), size);
  reservations_.erase(found);
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::create(uint64_t size, const CUmemAllocationProp& properties,
                               uint64_t& handle) {
  if (size == 0 || size % kSlab != 0) return CUDA_ERROR_INVALID_VALUE;
  if (properties.type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  unsigned types = static_cast<unsigned>(properties.requestedHandleTypes);
  if ((types & ~static_cast<unsigned>(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)) != 0) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  const bool on_host = properties.location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
  if (!on_host && properties.location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (on_host && !has_host_node(properties.location.id)) return CUDA_ERROR_INVALID_VALUE;
  Device* device = on_host ? nullptr : device_at(properties.location.id);
  if (!on_host && !device) return CUDA_ERROR_INVALID_DEVICE;
  if (device && !device->memory.charge(size)) return CUDA_ERROR_OUT_OF_MEMORY;
  int fd = memfd_create("sluice-softgpu", MFD_CLOEXEC);
  const auto length = static_cast<off_t>(size);
  // The host's is there when it has been made, as pinned memory is.
  if (fd < 0 || ftruncate(fd, length) != 0 || (on_host && posix_fallocate(fd, 0, length) != 0)) {
    if (fd >= 0) close(fd);
    if (device) device->memory.refund(size);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  CUmemAllocationProp granted = properties;
  granted.allocFlags.compressionType = CU_MEM_ALLOCATION_COMP_NONE;  // there is none here
  auto memory =
      std::make_shared<PhysicalMemory>(fd, size, device ? device->ordinal : kOnHost, granted, true);
  std::lock_guard lock(mutex_);
  handle = next_handle_++;
  handles_[handle] = {std::move(memory), 1};
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::release(uint64_t handle) {
  std::shared_ptr<PhysicalMemory> ended;  // freed outside the lock
  std::lock_guard lock(mutex_);
  auto found = handles_.find(handle);
  if (found == handles_.end()) return CUDA_ERROR_INVALID_VALUE;
  if (--found->second.references == 0) {
    ended = std::move(found->second.memory);
    handles_.erase(found);
  }
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::retain(uint64_t address, uint64_t& handle) {
  std::lock_guard lock(mutex_);
  auto after = mappings_.upper_bound(address);
  if (after == mappings_.begin()) return CUDA_ERROR_INVALID_VALUE;
  const auto& [base, mapping] = *std::prev(after);
  if (address - base >= mapping.size) return CUDA_ERROR_INVALID_VALUE;
  auto known = handles_.find(mapping.handle);
  if (known == handles_.end()) {
    handles_[mapping.handle] = {mapping.memory, 1};
  } else {
    ++known->second.references;
  }
  handle = mapping.handle;
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::properties(uint64_t handle, CUmemAllocationProp& properties) {
  std::lock_guard lock(mutex_);
  auto found = handles_.find(handle);
  if (found == handles_.end()) return CUDA_ERROR_INVALID_VALUE;
  properties = found->second.memory->properties;
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::export_fd(uint64_t handle, int& fd) {
  std::lock_guard lock(mutex_);
  auto found = handles_.find(handle);
  if (found == handles_.end()) return CUDA_ERROR_INVALID_VALUE;
  PhysicalMemory& memory = *found->second.memory;
  if (memory.properties.requestedHandleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  fd = fcntl(memory.fd, F_DUPFD_CLOEXEC, 0);
  if (fd >= 0) memory.exported = true;
  return fd >= 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

CUresult VirtualMemory::import_fd(int fd, uint64_t& handle) {
  struct stat status;
  if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode) || status.st_size <= 0 ||
      status.st_size % static_cast<off_t>(kSlab) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (own < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  std::lock_guard lock(mutex_);
  // Memory of this very process keeps its device; of another, it is charged there.
  std::shared_ptr<PhysicalMemory> memory;
  for (const auto& [known, entry] : handles_) {
    struct stat other;
    if (fstat(entry.memory->fd, &other) == 0 && other.st_ino == status.st_ino &&
        other.st_dev == status.st_dev) {
      memory = entry.memory;
    }
  }
  if (memory) {
    close(own);
  } else {
    memory = std::make_shared<PhysicalMemory>(own, static_cast<uint64_t>(status.st_size), 0,
                                              properties, false);
  }
  handle = next_handle_++;
  handles_[handle] = {std::move(memory), 1};
  return CUDA_SUCCESS;
}

// Each once, by handles or mappings.
template <class F>
void VirtualMemory::each_memory(F&& look) {
  std::lock_guard lock(mutex_);
  std::set<const PhysicalMemory*> seen;
  const auto once = [&](const std::shared_ptr<PhysicalMemory>& memory) {
    if (memory && seen.insert(memory.get()).second) look(*memory);
  };
  for (const auto& [id, handle] : handles_) once(handle.memory);
  for (const auto& [address, mapping] : mappings_) once(mapping.memory);
}

uint64_t VirtualMemory::exported(int device) {
  uint64_t bytes = 0;
  each_memory([&](const PhysicalMemory& memory) {
    if (memory.charged && memory.exported && memory.device == device) bytes += memory.size;
  });
  return bytes;
}

bool VirtualMemory::has_others() {
  bool any = false;
  each_memory([&](const PhysicalMemory& memory) { any |= !memory.charged; });
  return any;
}

bool VirtualMemory::reserved(uint64_t address, uint64_t size) const {
  auto after = reservations_.upper_bound(address);
  if (after == reservations_.begin()) return false;
  const auto& [base, reservation] = *std::prev(after);
  uint64_t offset = address - base;
  return offset < reservation.size && reservation.size - offset >= size;
}

CUresult VirtualMemory::map(uint64_t address, uint64_t size, uint64_t offset, uint64_t handle) {
  if (size == 0 || size % kSlab != 0 || address % kSlab != 0 || offset % kSlab != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::lock_guard lock(mutex_);
  auto found = handles_.find(handle);
  if (found == handles_.end() || !reserved(address, size)) return CUDA_ERROR_INVALID_VALUE;
  const std::shared_ptr<PhysicalMemory>& memory = found->second.memory;
  if (offset > memory->size || memory->size - offset < size) return CUDA_ERROR_INVALID_VALUE;
  auto next = mappings_.lower_bound(address);
  bool taken = next != mappings_.end() && next->first < address + size;
  if (next != mappings_.begin()) {
    auto previous = std::prev(next);
    taken |= previous->first + previous->second.size > address;
  }
  if (taken) return CUDA_ERROR_INVALID_VALUE;
  void* mapped = mmap(pointer(address), size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                      memory->fd, static_cast<off_t>(offset));
  if (mapped == MAP_FAILED) {
    // MAP_FIXED may have undone the reservation before it failed.
    mmap(pointer(address), size, PROT_NONE, kEmptyFlags | MAP_FIXED, -1, 0);
    return CUDA_ERROR_MAP_FAILED;
  }
  // The host's has no device of its own: it is told apart by its properties.
  const int device = memory->device == kOnHost ? 0 : memory->device;
  Allocations::instance().add({address, size, AllocationKind::kMapped, device, nullptr, 0, handle});
  mappings_[address] = {size, handle, memory, 0, 0};
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::unmap(uint64_t address, uint64_t size) {
  std::vector<std::shared_ptr<PhysicalMemory>> ended;
  std::lock_guard lock(mutex_);
  auto first = mappings_.find(address);
  uint64_t end = address + size;
  uint64_t at = address;
  auto it = first;
  for (; it != mappings_.end() && it->first == at && at < end; ++it) at += it->second.size;
  if (first == mappings_.end() || at != end) return CUDA_ERROR_INVALID_VALUE;
  // Kernels stop finding the range before the pages go: they fault in our sense, not the host's.
  RangeMap::instance().retract(address, size);
  mmap(pointer(address), size, PROT_NONE, kEmptyFlags | MAP_FIXED, -1, 0);
  for (auto mapping = first; mapping != it; ++mapping) {
    Allocations::instance().remove(mapping->first);
    ended.push_back(std::move(mapping->second.memory));
  }
  mappings_.erase(first, it);
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::set_access(uint64_t address, uint64_t size, const CUmemAccessDesc* access,
                                   size_t count) {
  std::lock_guard lock(mutex_);
  auto first = mappings_.find(address);
  uint64_t end = address + size;
  uint64_t at = address;
  auto it = first;
  for (; it != mappings_.end() && it->first == at && at < end; ++it) at += it->second.size;
  if (first == mappings_.end() || at != end) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    if (access[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
    if (!device_at(access[i].location.id)) return CUDA_ERROR_INVALID_DEVICE;
  }
  for (auto mapping = first; mapping != it; ++mapping) {
    Mapping& m = mapping->second;
    for (size_t i = 0; i < count; ++i) {
      uint64_t bit = 1ull << access[i].location.id;
      bool read = access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE;
      bool write = access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
      m.readers = read ? m.readers | bit : m.readers & ~bit;
      m.writers = write ? m.writers | bit : m.writers & ~bit;
    }
    RangeMap::instance().grant(mapping->first, m.size, m.readers, m.writers);
  }
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::get_access(uint64_t address, const CUmemLocation& location,
                                   unsigned long long& flags) {
  if (location.type != CU_MEM_LOCATION_TYPE_DEVICE || !device_at(location.id)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::lock_guard lock(mutex_);
  auto after = mappings_.upper_bound(address);
  if (after == mappings_.begin()) return CUDA_ERROR_INVALID_VALUE;
  const auto& [base, mapping] = *std::prev(after);
  if (address - base >= mapping.size) return CUDA_ERROR_INVALID_VALUE;
  uint64_t bit = 1ull << location.id;
  flags = mapping.writers & bit   ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
          : mapping.readers & bit ? CU_MEM_ACCESS_FLAGS_PROT_READ
                                  : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return CUDA_SUCCESS;
}

}  // namespace sluice::softgpu
