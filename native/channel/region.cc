// SPDX-License-Identifier: Apache-2.0
#include "channel/region.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "channel/end_reason.h"

namespace sluice::channel {

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

namespace {
constexpr int kReadWrite = PROT_READ | PROT_WRITE;

std::string failed(const char* what) { return std::string(what) + ": " + std::strerror(errno); }
}  // namespace

MappedSlot::~MappedSlot() {
  if (alias_) return;
  if (control_) munmap(control_, control_bytes_);
  if (ring_) munmap(ring_, layout_.ring_bytes * 2);
  if (arena_) munmap(arena_, layout_.arena_bytes);
}

MappedSlot& MappedSlot::operator=(MappedSlot&& other) noexcept {
  std::swap(control_, other.control_);
  std::swap(ring_, other.ring_);
  std::swap(arena_, other.arena_);
  std::swap(control_bytes_, other.control_bytes_);
  std::swap(layout_, other.layout_);
  std::swap(alias_, other.alias_);
  return *this;
}

MappedSlot MappedSlot::alias() const {
  MappedSlot same;
  same.control_ = control_;
  same.ring_ = ring_;
  same.arena_ = arena_;
  same.control_bytes_ = control_bytes_;
  same.layout_ = layout_;
  same.alias_ = true;
  return same;
}

bool MappedSlot::map(int fd, size_t slot_bytes, uint32_t index, uint64_t arena_address,
                     std::string* error) {
  layout_ = slot_layout(slot_bytes);
  if (layout_.total == 0) {
    *error = "a slot of " + std::to_string(slot_bytes) + " bytes is too small (4 MiB at least)";
    return false;
  }
  const off_t base = static_cast<off_t>(slot_offset_of(slot_bytes, index));
  control_bytes_ = layout_.ring;
  void* control = mmap(nullptr, control_bytes_, kReadWrite, MAP_SHARED, fd, base);
  if (control == MAP_FAILED) {
    *error = failed("mapping the slot's control pages");
    return false;
  }
  control_ = static_cast<char*>(control);

  void* twice =
      mmap(nullptr, layout_.ring_bytes * 2, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (twice == MAP_FAILED) {
    *error = failed("reserving room for the ring");
    return false;
  }
  ring_ = static_cast<std::byte*>(twice);
  for (int half = 0; half < 2; ++half) {
    if (mmap(ring_ + static_cast<size_t>(half) * layout_.ring_bytes, layout_.ring_bytes, kReadWrite,
             MAP_SHARED | MAP_FIXED, fd, base + static_cast<off_t>(layout_.ring)) == MAP_FAILED) {
      *error = failed("mapping the ring");
      return false;
    }
  }
  if (arena_address != kNoArena) {
    const bool anywhere = arena_address == kArenaAnywhere;
    void* at = anywhere ? nullptr : reinterpret_cast<void*>(arena_address);
    void* arena =
        mmap(at, layout_.arena_bytes, kReadWrite, MAP_SHARED | (anywhere ? 0 : MAP_FIXED_NOREPLACE),
             fd, base + static_cast<off_t>(layout_.arena));
    if (arena == MAP_FAILED || (!anywhere && arena != at)) {
      if (arena != MAP_FAILED) munmap(arena, layout_.arena_bytes);
      *error = failed(anywhere ? "mapping the arena" : "mapping the arena at its fixed address");
      return false;
    }
    madvise(arena, layout_.arena_bytes, MADV_DONTFORK);
    arena_ = static_cast<std::byte*>(arena);
  }
  return true;
}

void start_slot(const MappedSlot& slot) {
  SlotHeader& h = slot.header();
  for (uint32_t i = 0; i < kLaneCount; ++i) {
    slot.lane(i).sequence.store(0);
    slot.lane(i).waiting.store(0);
  }
  for (size_t i = 0; i < kMarkCount; ++i) slot.marks()[i].store(0, std::memory_order_relaxed);
  for (auto& used : h.memory_used) used.store(0, std::memory_order_relaxed);
  write_end_reason(slot, {});
  h.sticky_error.store(0);
  h.tail.store(0);
  h.head.store(0);
  h.sleeping.store(0);
  h.dialect.store(static_cast<uint32_t>(SlotDialect::kFrames));
  h.back_tail.store(0);
  h.back_head.store(0);
  h.reader_sleeps.store(0);
  h.outlives_relay.store(0);
  h.link.store(0);
  h.node_round_trip_us.store(0);
  h.link_taken.store(0);
}

void format_slot(const MappedSlot& slot, uint32_t index, SlotState first) {
  SlotHeader& h = slot.header();
  const SlotLayout& l = slot.layout();
  h.state.store(static_cast<uint32_t>(SlotState::kClosed));
  start_slot(slot);
  std::memset(slot.mailbox().data(), 0, 1024);
  h.index = index;
  h.lane_count = kLaneCount;
  h.lanes_offset = l.lanes;
  h.lane_bytes = kLaneBytes;
  h.mailbox_offset = l.mailbox;
  h.mailbox_bytes = kMailboxBytes;
  h.marks_offset = l.marks;
  h.mark_count = kMarkCount;
  h.ring_offset = l.ring;
  h.ring_bytes = l.ring_bytes;
  h.arena_offset = l.arena;
  h.arena_bytes = l.arena_bytes;
  h.generation.fetch_add(1);
  h.client_pid.store(0);
  h.client_start.store(0);
  h.heartbeat.store(0);
  h.doorbell.store(0);
  h.magic = kSlotMagic;
  h.state.store(static_cast<uint32_t>(first), std::memory_order_release);
}

void format_header(RegionHeader& h, size_t region_bytes, uint32_t slots) {
  h.magic = 0;
  h.version = 1;
  h.slot_count = slots;
  h.region_bytes = region_bytes;
  h.slot_bytes = slot_bytes_of(region_bytes, slots);
  uint32_t generation = h.generation.load() + 1;
  if (generation == 0 || generation == ~0u) generation = 1;
  h.generation.store(generation);
  h.host_beat.store(0);
  __atomic_store_n(&h.magic, kRegionMagic, __ATOMIC_RELEASE);  // last: a region with it is whole
}

bool format_region(int fd, size_t region_bytes, uint32_t slots, std::string* error) {
  const size_t slot_bytes = slot_bytes_of(region_bytes, slots);
  if (slot_layout(slot_bytes).total == 0) {
    *error = std::to_string(region_bytes) + " bytes are too few for " + std::to_string(slots) +
             " slots of at least 4 MiB; give the region more memory or fewer slots";
    return false;
  }
  void* page = mmap(nullptr, kPage, kReadWrite, MAP_SHARED, fd, 0);
  if (page == MAP_FAILED) {
    *error = failed("mapping the region's header");
    return false;
  }
  format_header(*static_cast<RegionHeader*>(page), region_bytes, slots);
  munmap(page, kPage);
  return true;
}

size_t check_region(const RegionHeader& header, size_t region_bytes, std::string* error) {
  if (header.magic != kRegionMagic) {
    *error = header.magic == 0 || header.magic == ~0ull
                 ? "the region is blank: the host has not set it up, or the device was taken away"
                 : "the region is not Sluice's";
    return 0;
  }
  if (header.version != 1) {
    *error = "the region has layout version " + std::to_string(header.version) +
             ", this side speaks 1: bring both to the same release";
    return 0;
  }
  const uint32_t slots = header.slot_count;
  const size_t bytes = header.region_bytes, slot_bytes = header.slot_bytes;
  if (slots == 0 || slots > 4096 || bytes > region_bytes ||
      slot_bytes != slot_bytes_of(bytes, slots) || slot_layout(slot_bytes).total == 0) {
    *error = "the region's header does not fit its size";
    return 0;
  }
  return slot_bytes;
}

}  // namespace sluice::channel
