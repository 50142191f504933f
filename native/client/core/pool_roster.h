// SPDX-License-Identifier: Apache-2.0
// What processes tell each other of a shared memory pool. The pool's descriptor is a file without a
// name: at its beginning a badge that says which pool it is and on what GPU, behind that a place
// for every allocation that was exported and is not freed, where its ticket stands. So whoever has
// an old ticket, or a damaged one, is told so. The exporter writes the file and never reads it;
// importers only read, and believe nothing: what memory a ticket opens, and to whom, is the
// server's to decide by the ticket's key.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "abi/cuda_driver.h"
#include "wire/bodies/commands.h"
#include "wire/frame.h"

namespace sluice::client {

struct PoolBadge {
  static constexpr uint64_t kMagic = 0x316c6f6f70636973;  // "sicpool1"
  uint64_t magic = kMagic;
  uint64_t pool = 0;                              // random
  uint8_t uuid[16] = {}, physical_uuid[16] = {};  // of the vGPU and of the GPU
};

// What a CUmemPoolPtrExportData holds.
struct PointerTicket {
  static constexpr uint32_t kMagic = 0x31747069;  // "ipt1"
  uint32_t magic = kMagic;
  uint32_t place = 0;
  uint64_t serial = 0;  // no other of the pool's has it
  uint64_t pool = 0;
  wire::ShareKey key{};
  uint64_t mapped_bytes = 0;       // of the slabs that the key stands for
  uint64_t offset = 0, bytes = 0;  // the allocation in them
  friend bool operator==(const PointerTicket&, const PointerTicket&) = default;
};
static_assert(sizeof(PointerTicket) == sizeof(CUmemPoolPtrExportData));

// The exporter's side. Under the lock of the pool.
class PoolRoster {
 public:
  static constexpr uint32_t kPlaces = 1 << 20;  // exported at the same time, at most

  // nullptr: the system has no such file for us.
  static std::unique_ptr<PoolRoster> create(const wire::DeviceRecord& device);
  ~PoolRoster();
  PoolRoster(const PoolRoster&) = delete;
  PoolRoster& operator=(const PoolRoster&) = delete;

  // Another descriptor of the file; -1: there is none left.
  int descriptor() const;
  // Gives the allocation a place and puts its ticket there, both only once; false: there is none
  // left. The caller has filled in where its memory is.
  bool enter(uint64_t address, PointerTicket* ticket);
  // The allocation is freed, or all are.
  void strike(uint64_t address);
  void strike_all();

  std::map<uint64_t, wire::ShareKey> keys;  // of chunks that were shared, by where they begin

 private:
  PoolRoster(int file, uint64_t pool) : file_(file), pool_(pool) {}
  bool write(uint32_t place, const PointerTicket& ticket);

  const int file_;
  const uint64_t pool_;
  std::map<uint64_t, PointerTicket> entries_;  // by address
  std::vector<uint32_t> left_;                 // places that were used before
  uint32_t used_places_ = 0;
  uint64_t serials_ = 0;
};

// The importer's side: a descriptor of its own.
class RosterView {
 public:
  // nullptr: this is no pool's descriptor.
  static std::unique_ptr<RosterView> open(int descriptor);
  ~RosterView();
  RosterView(const RosterView&) = delete;
  RosterView& operator=(const RosterView&) = delete;

  const PoolBadge& badge() const { return badge_; }
  // Whether the exporter has given out exactly this ticket, and not freed what it is for.
  bool lists(const PointerTicket& ticket) const;
  bool same_file(const RosterView& other) const {
    return device_ == other.device_ && inode_ == other.inode_;
  }

 private:
  RosterView(int file, uint64_t device, uint64_t inode, const PoolBadge& badge)
      : file_(file), device_(device), inode_(inode), badge_(badge) {}

  const int file_;
  const uint64_t device_, inode_;
  const PoolBadge badge_;
};

}  // namespace sluice::client
