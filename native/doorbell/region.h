// SPDX-License-Identifier: Apache-2.0
// A guest's region, as the doorbell sees it: a file that the guest's QEMU maps too, its slots, and
// the bells on which the guest says that something is in there. Owned by the Doorbell (doorbell.h).
// Nothing that stands in a region is believed: sizes come from the server.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <string>
#include <vector>

#include "channel/region.h"

namespace sluice::doorbell {

struct Slot {
  channel::MappedSlot map;
  bool open_reported = false, closed_reported = false;
  channel::SlotState last = channel::SlotState::kFree;
  uint64_t since = 0;      // when the state was first seen
  uint64_t heartbeat = 0;  // last seen value
  uint64_t heard = 0;      // when it last changed
  uint64_t told = 0;       // when the server last heard that it does not change
  uint64_t reported = 0;   // when the server last heard that it opens or closed
};

// On which a guest says that something is in its region: a connection, or the eventfd of its
// device's doorbell register.
struct Bell {
  int fd;
  bool device;
  uint64_t rang;  // when it was last heard
};

struct Region {
  const std::string id, path;
  const uint32_t slot_count;
  struct stat file {};
  channel::RegionHeader* header = nullptr;
  std::vector<Slot> slots;
  std::vector<Bell> bells;

  Region(std::string name, std::string at, uint32_t count)
      : id(std::move(name)), path(std::move(at)), slot_count(count) {}
  Region(const Region&) = delete;
  ~Region();

  // The file, which it has to be. -1 with `error`.
  int open_file(std::string* error);
  // Whether both are one file with as many slots.
  bool same_as(const Region& other) const;
  // Maps header and slots. A region whose header is what we would write keeps its sessions;
  // anything else is blank or damaged and starts anew. False with `error`.
  bool map(int fd, std::string* error);
  // A guest that wrote over its header gets it back whole, or its next client would not find it.
  void mend_header();

  // Keeps the descriptor; the oldest bell makes room.
  void add_bell(int fd, bool device);
  // The server has to be told of all slots again.
  void forget_reports();
};

}  // namespace sluice::doorbell
