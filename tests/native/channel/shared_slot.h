// SPDX-License-Identifier: Apache-2.0
// A region of one slot in a memfd, formatted as a worker formats it. Used by the tests of rings,
// endpoints and the executor; owns the file. map() may be called for both sides, which then see
// each other as two processes do; or one side's alias() serves the other, so that ThreadSanitizer
// sees what orders them. The arena is mapped for relayed slots only, anywhere.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "channel/region.h"

namespace sluice::test {

class SharedSlot {
 public:
  explicit SharedSlot(size_t slot_bytes = 4 << 20)
      : fd_(memfd_create("slot", MFD_CLOEXEC)), slot_bytes_(slot_bytes) {
    EXPECT_EQ(ftruncate(fd_, static_cast<off_t>(region_bytes())), 0);
    std::string error;
    EXPECT_TRUE(channel::format_region(fd_, region_bytes(), 1, &error)) << error;
    channel::format_slot(map(), 0, channel::SlotState::kOpening);
  }
  ~SharedSlot() { ::close(fd_); }
  SharedSlot(const SharedSlot&) = delete;

  channel::MappedSlot map(bool arena = false) const {
    channel::MappedSlot slot;
    std::string error;
    EXPECT_TRUE(
        slot.map(fd_, slot_bytes_, 0, arena ? channel::kArenaAnywhere : channel::kNoArena, &error))
        << error;
    return slot;
  }
  int fd() const { return fd_; }
  size_t region_bytes() const { return slot_bytes_ + channel::kPage; }

 private:
  int fd_;
  size_t slot_bytes_;
};

}  // namespace sluice::test
