// SPDX-License-Identifier: Apache-2.0
// What every address that the driver handed out or was told of belongs to: cuMemAlloc, pinned and
// registered host memory, and mappings of the virtual memory API. Answers cuPointerGetAttribute,
// cuMemGetAddressRange and "is this a device pointer". Written by the allocating calls.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace sluice::softgpu {

class Context;

enum class AllocationKind : uint8_t {
  kDevice,
  kHost,
  kRegistered,
  kMapped,
  kPool,
  kHostPool,
  kGlobal
};

struct Allocation {
  uintptr_t base = 0;
  uint64_t size = 0;
  AllocationKind kind = AllocationKind::kDevice;
  int device = 0;
  Context* context = nullptr;  // null for mappings, which belong to no context
  uint64_t id = 0;             // unique in the process's life, as CU_POINTER_ATTRIBUTE_BUFFER_ID
  uint64_t handle = 0;         // kMapped: the physical allocation; of pools: the pool
  unsigned flags = 0;
  std::vector<std::pair<uintptr_t, uintptr_t>> managed{};  // variables of kGlobal: from, to

  bool host() const {
    return kind == AllocationKind::kHost || kind == AllocationKind::kRegistered ||
           kind == AllocationKind::kHostPool;
  }
  bool pooled() const { return kind == AllocationKind::kPool || kind == AllocationKind::kHostPool; }
};

class Allocations {
 public:
  static Allocations& instance();
  // False if the range overlaps one that is known.
  bool add(Allocation allocation);
  // The managed variables in the memory of a module.
  void set_managed(uintptr_t base, std::vector<std::pair<uintptr_t, uintptr_t>> variables);
  std::optional<Allocation> remove(uintptr_t base);
  std::optional<Allocation> find(uintptr_t address);
  // Whether all of [address, address + size) is known memory.
  bool covers(uintptr_t address, uint64_t size);
  // All of one context's, for its end.
  std::map<uintptr_t, Allocation> of(const Context* context);

 private:
  std::mutex mutex_;
  std::map<uintptr_t, Allocation> by_base_;
  uint64_t next_id_ = 1;
};

}  // namespace sluice::softgpu
