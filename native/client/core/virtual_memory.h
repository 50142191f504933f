// SPDX-License-Identifier: Apache-2.0
// The virtual memory API's accounting: reservations cut from a vGPU's window, physical allocations
// that are charged to a vGPU's credit from creation to their end, and which of those is mapped
// where. Everything is decided here and told to the node in order, without an answer; only access
// other than reading and writing, compression and sharing are asked for. An allocation lives while
// it has a handle, a mapping or an open descriptor, as CUDA's do. Arguments have been checked as
// far as they need no accounts (driver/virtual_memory.cc).
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "abi/cuda_driver.h"
#include "client/objects/handles.h"
#include "wire/bodies/commands.h"

namespace sluice::client {

class Session;
struct Device;

struct Allocation {
  Device* device = nullptr;
  uint64_t bytes = 0;
  CUmemAllocationProp properties{};
  uint32_t handles = 0;  // references that the application holds
  uint32_t mappings = 0;
  bool foreign = false;       // imported, and charged to whoever exported it
  std::vector<int> exported;  // our ends of descriptors that were given out
};

// What lies in a descriptor that stands for an allocation. The descriptor is one end of a socket,
// so that the other end, which stays with whoever exported, tells when the last copy of it, in
// whatever process, has been closed. It is looked at without being taken out.
struct AllocationTicket {
  static constexpr uint64_t kMagic = 0x31746e656d656c73;  // "slement1"
  uint64_t magic = kMagic;
  wire::ShareKey key{};
  uint64_t bytes = 0;
};

class VirtualMemory {
 public:
  struct Mapping {
    uint64_t bytes = 0;
    uint64_t allocation = 0;
    Device* device = nullptr;                      // whose memory it is
    std::map<uint32_t, CUmemAccess_flags> access;  // by device; none where there is none
    bool of_host = false;                          // host memory was asked for
    bool seen = false;                             // by the program itself
  };

  explicit VirtualMemory(Session& session) : session_(session) {}

  CUresult reserve(Device& home, uint64_t bytes, uint64_t alignment, uint64_t requested,
                   uint64_t* address);
  CUresult unreserve(uint64_t address, uint64_t bytes);
  CUresult create(Device& device, uint64_t bytes, const CUmemAllocationProp& properties,
                  uint64_t* id);
  CUresult release(uint64_t id);
  CUresult map(uint64_t address, uint64_t bytes, uint64_t id);
  // The caller has waited for every device that has access.
  CUresult unmap(uint64_t address, uint64_t bytes);
  // Whether the range consists of whole mappings.
  bool whole_mappings(uint64_t address, uint64_t bytes);
  CUresult set_access(uint64_t address, uint64_t bytes, const Device& device,
                      CUmemAccess_flags access);
  // The program's own access to memory that was asked for on the host. It is the vGPU's memory all
  // the same, which the program sees as it sees managed memory.
  CUresult show(uint64_t address, uint64_t bytes, bool seen);
  CUresult retain(uint64_t address, uint64_t* id);
  CUresult properties(uint64_t id, CUmemAllocationProp* properties);
  // A descriptor that another process can import, and its import.
  CUresult export_to(uint64_t id, int* descriptor);
  CUresult import_from(int descriptor, uint64_t* id);
  // The mapping that contains `address`.
  bool find(uint64_t address, uint64_t* start, Mapping* mapping);

 private:
  struct Reservation {
    uint64_t bytes;
    Device* home;  // whose window it is cut from
  };
  using Mappings = std::map<uint64_t, Mapping>;

  const Reservation* reservation_of(uint64_t address, uint64_t bytes) const;
  // The whole mappings that make up a range, as [first, last); empty when they do not.
  std::pair<Mappings::iterator, Mappings::iterator> in_range(uint64_t address, uint64_t bytes);
  CUresult end_if_unused(uint64_t id, Allocation& allocation);
  CUresult finish(uint64_t id, Allocation& allocation);
  // Ends those that only descriptors kept, as far as these are closed.
  void end_forsaken();

  Session& session_;
  std::mutex mutex_;
  HandleTable<Allocation> allocations_{Kind::kAllocation};
  std::map<uint64_t, Reservation> reservations_;
  Mappings mappings_;
  std::vector<uint64_t> lingering_;  // descriptors alone keep these
};

}  // namespace sluice::client
