// SPDX-License-Identifier: Apache-2.0
// The memory of a pool that processes share: one file without a name, as large as the device, of
// which only what is allocated takes memory. Its first slab says whose it is. The process that made
// it allocates; others map what they are told of. Owned by the pool and by what is mapped of it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "abi/cuda_driver.h"

namespace sluice::softgpu {

struct Device;

class PoolFile {
 public:
  // What a CUmemPoolPtrExportData holds.
  struct Ticket {
    static constexpr uint64_t kMagic = 0x31746b6370676673;  // "sfgpckt1"
    uint64_t magic = kMagic;
    uint64_t inode = 0;
    uint64_t offset = 0, size = 0;
  };
  static_assert(sizeof(Ticket) <= sizeof(CUmemPoolPtrExportData));

  static std::shared_ptr<PoolFile> create(Device& device);
  // Null: not the descriptor of a pool on a device of ours.
  static std::shared_ptr<PoolFile> import(int descriptor);
  PoolFile(int fd, Device& device, uint64_t bytes, uint64_t inode, bool foreign)
      : fd_(fd), device_(device), bytes_(bytes), inode_(inode), foreign_(foreign) {}
  ~PoolFile();

  Device& device() const { return device_; }
  bool foreign() const { return foreign_; }
  int descriptor() const;  // another one; -1: there is none left
  // Zero if there is no room, or the ticket means nothing here.
  static uintptr_t allocate(const std::shared_ptr<PoolFile>& file, uint64_t size);
  static uintptr_t map(const std::shared_ptr<PoolFile>& file, const Ticket& ticket);
  // For what was allocated here at `address`.
  bool ticket(uintptr_t address, uint64_t size, Ticket* ticket);
  // False: no such file's memory is mapped there.
  static bool release(uintptr_t address);

 private:
  uintptr_t map_at(uint64_t offset, uint64_t bytes);

  const int fd_;
  Device& device_;
  const uint64_t bytes_, inode_;
  const bool foreign_;
  std::mutex mutex_;
  std::map<uint64_t, uint64_t> taken_;  // offset, size
};

}  // namespace sluice::softgpu
