// SPDX-License-Identifier: Apache-2.0
// The virtual memory API: reserved address ranges, physical allocations (memfds, charged to their
// device, or of a NUMA node of the host) and the mappings that join them. Called by
// api/virtual_memory.cc. A physical allocation lives until its handles are released and its
// mappings undone, whichever comes last.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "abi/cuda_driver.h"

namespace sluice::softgpu {

// The device of memory that is the host's.
constexpr int kOnHost = -1;

struct PhysicalMemory {
  PhysicalMemory(int fd, uint64_t size, int device, const CUmemAllocationProp& properties,
                 bool charged);
  ~PhysicalMemory();
  PhysicalMemory(const PhysicalMemory&) = delete;
  PhysicalMemory& operator=(const PhysicalMemory&) = delete;

  const int fd;
  const uint64_t size;
  const int device;
  const CUmemAllocationProp properties;
  const bool charged;  // false for memory that another process exported
  std::atomic<bool> exported{false};
};

class VirtualMemory {
 public:
  static VirtualMemory& instance();

  CUresult reserve(uint64_t size, uint64_t alignment, uint64_t wanted, uint64_t& address);
  CUresult free(uint64_t address, uint64_t size);

  CUresult create(uint64_t size, const CUmemAllocationProp& properties, uint64_t& handle);
  CUresult release(uint64_t handle);
  CUresult retain(uint64_t address, uint64_t& handle);
  CUresult properties(uint64_t handle, CUmemAllocationProp& properties);
  CUresult export_fd(uint64_t handle, int& fd);
  CUresult import_fd(int fd, uint64_t& handle);

  // What of a device's memory other processes may have open, in bytes; whether this one has theirs.
  uint64_t exported(int device);
  bool has_others();

  CUresult map(uint64_t address, uint64_t size, uint64_t offset, uint64_t handle);
  CUresult unmap(uint64_t address, uint64_t size);
  CUresult set_access(uint64_t address, uint64_t size, const CUmemAccessDesc* access, size_t count);
  CUresult get_access(uint64_t address, const CUmemLocation& location, unsigned long long& flags);

 private:
  template <class F>
  void each_memory(F&& look);

  struct Reservation {
    uint64_t size;
  };
  struct Mapping {
    uint64_t size;
    uint64_t handle;
    std::shared_ptr<PhysicalMemory> memory;
    uint64_t readers = 0;
    uint64_t writers = 0;
  };
  struct Handle {
    std::shared_ptr<PhysicalMemory> memory;
    unsigned references = 1;
  };
  bool reserved(uint64_t address, uint64_t size) const;

  std::mutex mutex_;
  std::map<uint64_t, Reservation> reservations_;
  std::map<uint64_t, Mapping> mappings_;
  std::map<uint64_t, Handle> handles_;
  uint64_t next_handle_ = 1;
};

}  // namespace sluice::softgpu
