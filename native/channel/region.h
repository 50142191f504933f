// SPDX-License-Identifier: Apache-2.0
// Mapping a region's slot into this process, on either side, and formatting it on the host's.
// Owns the mappings: the control pages anywhere, the ring twice in a row (a frame never wraps), the
// arena where its user needs it: at wire::kArenaAddress where client and worker share pointers into
// it, anywhere where it only carries bytes.
#pragma once

#include <sys/types.h>

#include <span>
#include <string>

#include "channel/slot.h"

namespace sluice::channel {

// In place of an address: no arena is mapped, or the kernel chooses where.
inline constexpr uint64_t kNoArena = 0, kArenaAnywhere = 1;

// The control part of one slot and its ring and arena, mapped. Pointers are valid while it lives.
class MappedSlot {
 public:
  MappedSlot() = default;
  ~MappedSlot();
  MappedSlot(MappedSlot&& other) noexcept { *this = static_cast<MappedSlot&&>(other); }
  MappedSlot& operator=(MappedSlot&& other) noexcept;
  MappedSlot(const MappedSlot&) = delete;
  MappedSlot& operator=(const MappedSlot&) = delete;

  // Maps slot `index` of the file (not closed, not kept). `arena_address`: where the arena has
  // to lie, kArenaAnywhere or kNoArena. On failure: false, `error` says what and why.
  bool map(int fd, size_t slot_bytes, uint32_t index, uint64_t arena_address, std::string* error);

  // The same mappings once more, to be used while this one lives. Tests have both ends of a slot in
  // one process, and ThreadSanitizer, which knows memory by its address, sees what orders them.
  MappedSlot alias() const;

  SlotHeader& header() const { return *reinterpret_cast<SlotHeader*>(control_); }
  Lane& lane(uint32_t i) const { return reinterpret_cast<Lane*>(control_ + layout_.lanes)[i]; }
  std::span<std::byte> mailbox() const {
    return {reinterpret_cast<std::byte*>(control_ + layout_.mailbox), kMailboxBytes};
  }
  std::atomic<uint64_t>* marks() const {
    return reinterpret_cast<std::atomic<uint64_t>*>(control_ + layout_.marks);
  }
  std::byte* ring() const { return ring_; }
  std::byte* arena() const { return arena_; }
  const SlotLayout& layout() const { return layout_; }
  explicit operator bool() const { return control_ != nullptr; }

 private:
  char* control_ = nullptr;
  std::byte* ring_ = nullptr;
  std::byte* arena_ = nullptr;
  size_t control_bytes_ = 0;
  SlotLayout layout_{};
  bool alias_ = false;
};

// Host side. Writes a blank slot (zeroed control words, state `first`); the arena is left alone.
void format_slot(const MappedSlot& slot, uint32_t index, SlotState first);

// Host side. Blanks what a session leaves behind (ring, lanes, marks) in a slot that a client has
// claimed; its state stays.
void start_slot(const MappedSlot& slot);

// Host side. Writes a mapped region's header. The same for one that a guest has written over.
void format_header(RegionHeader& header, size_t region_bytes, uint32_t slots);

// Host side. Writes the region's header for a file of region_bytes.
bool format_region(int fd, size_t region_bytes, uint32_t slots, std::string* error);

// Either side. Reads and checks the header of a mapped or opened region; returns slot bytes, 0 with
// `error` when it is no region of ours.
size_t check_region(const RegionHeader& header, size_t region_bytes, std::string* error);

}  // namespace sluice::channel
