// SPDX-License-Identifier: Apache-2.0
// The layout of a region and of its slots, and who owns each word.
//
// A region is a shared file: RegionHeader (one page), then `slot_count` slots of equal size. One
// slot serves one client process: control words, reply lanes, the completion page, the command ring
// and the arena. The file is formatted by the host side only (worker for a memfd, doorbell for a
// guest's region); a client checks and uses it. Nothing the client can write is believed: the host
// side keeps its own copy of every offset and size, computed by slot_layout() from the size of the
// file that it made.
//
// Memory order: a producer stores `tail` with release, the consumer loads it with acquire; `head`
// the other way round. Falling asleep is Dekker's pattern: the consumer sets `sleeping`, then looks
// at `tail` again; the producer moves `tail`, then looks at `sleeping`, both sequentially
// consistent, so one of them sees the other.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace sluice::channel {

inline constexpr uint64_t kRegionMagic = 0x31304e4745524c53;  // "SLREGN01"
inline constexpr uint64_t kSlotMagic = 0x3130544f4c534c53;    // "SLSLOT01"
inline constexpr uint32_t kLaneCount = 64;
inline constexpr size_t kLaneBytes = 8192;
inline constexpr size_t kMailboxBytes = 128 << 10;
inline constexpr size_t kMarkCount = 8192;
inline constexpr size_t kPage = 4096;
inline constexpr size_t kMemoryWords = 64;

enum class SlotState : uint32_t {
  kFree = 0,     // nobody's; a client may claim it by compare and swap
  kClaimed = 1,  // the client is writing its OpenSession
  kOpening = 2,  // the server decides
  kReady = 3,    // the mailbox holds the grant; the ring runs
  kRefused =
      4,        // the mailbox holds an OpenReply that says why; the client sets kFree after reading
  kClosed = 5,  // the client (or its watcher) is gone; the host side frees the slot
  kDead = 6,    // the session was ended by the host side: sticky_error says how
};

// What is spoken over a slot that is ready.
enum class SlotDialect : uint32_t {
  kFrames = 0,  // commands in the ring, answers in lanes, marks and arena shared with the worker
  // The bytes of a connection, because the worker is on another host and sluice-relay stands in
  // between (region_stream.h): one way in the ring, the other way in the arena's first ring_bytes.
  kBytes = 1,
};

// SlotHeader::link of the connection over which a session was opened.
inline constexpr uint32_t kFirstLink = 1;

struct RegionHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t slot_count;
  uint64_t region_bytes;
  uint64_t slot_bytes;
  std::atomic<uint32_t>
      generation;  // changes when the region is formatted anew; 0 or ~0: the device is gone
  uint32_t reserved;
  std::atomic<uint64_t> host_beat;  // the doorbell process counts up while it lives
};
static_assert(sizeof(RegionHeader) <= kPage);

struct SlotHeader {
  // Host writes at formatting, client reads once.
  uint64_t magic;
  uint32_t index;
  uint32_t lane_count;
  uint64_t lanes_offset, lane_bytes;
  uint64_t mailbox_offset, mailbox_bytes;
  uint64_t marks_offset, mark_count;
  uint64_t ring_offset, ring_bytes;  // a power of two
  uint64_t arena_offset, arena_bytes;
  // Both, by compare and swap or by the owner of the state named in SlotState.
  alignas(64) std::atomic<uint32_t> state;
  std::atomic<uint32_t> generation;  // host: counts sessions of this slot
  std::atomic<uint32_t>
      sticky_error;  // host: a CUresult that every later call of this session returns
  std::atomic<uint32_t>
      client_pid;  // client: in its own pid name space, for its watcher and for people
  std::atomic<uint64_t> client_start;
  std::atomic<uint64_t> heartbeat;  // the client's watcher counts up
  // Client: bytes ever produced.
  alignas(64) std::atomic<uint64_t> tail;
  // Host: bytes ever consumed.
  alignas(64) std::atomic<uint64_t> head;
  // Host sets before it sleeps; the client clears it when it wakes the host.
  alignas(64) std::atomic<uint32_t> sleeping;
  // Futex of the sleeping host threads (host-side mappings only).
  std::atomic<uint32_t> wake;
  // A guest cannot wake a host's futex: it sets this and the doorbell process does.
  alignas(64) std::atomic<uint32_t> doorbell;
  // Both, by compare and swap: bytes taken of each vGPU's memory, by the client and, for libraries,
  // by the worker. The worker has accounts of its own beside it.
  alignas(64) std::atomic<uint64_t> memory_used[kMemoryWords];
  // Host, before the state is ready: a SlotDialect.
  alignas(64) std::atomic<uint32_t> dialect;
  // Of kBytes, the way back. Host: bytes ever produced.
  alignas(64) std::atomic<uint64_t> back_tail;
  // Client: bytes ever consumed.
  alignas(64) std::atomic<uint64_t> back_head;
  // Client sets before it sleeps for more, on the same host only; the host clears it and wakes.
  alignas(64) std::atomic<uint32_t> reader_sleeps;
  std::atomic<uint32_t> reader_wake;  // futex
  // Of kBytes where the session outlives its relay. Host, before the state is ready: 1.
  alignas(64) std::atomic<uint32_t> outlives_relay;
  // Host: which connection to the node the bytes go over, from 1; 0: there is none now. With a new
  // one `head` and `back_tail` begin anew.
  std::atomic<uint32_t> link;
  // Host: a round trip to the node, in microseconds, as measured last; 0: it is not known.
  std::atomic<uint32_t> node_round_trip_us;
  // Client: the connection that it uses, with which `tail` and `back_head` began anew; 0: none.
  alignas(64) std::atomic<uint32_t> link_taken;
};
static_assert(sizeof(SlotHeader) <= kPage);

struct Lane {
  // Host: the sequence of the command that the body answers, stored with release after the body.
  std::atomic<uint32_t> sequence;
  // Client sets before it sleeps on `sequence`; the host clears it and wakes.
  std::atomic<uint32_t> waiting;
  uint32_t status;
  uint32_t bytes;
  std::byte body[kLaneBytes - 16];
};
static_assert(sizeof(Lane) == kLaneBytes);

struct SlotLayout {
  size_t header = 0, lanes, mailbox, marks, ring, arena;
  size_t ring_bytes, arena_bytes, total;
};

// Offsets within a slot of `slot_bytes` (a multiple of 4096). The ring gets about 1/16 of it,
// between 256 KiB and 4 MiB; the arena what is left. `total` is 0 when the slot is too small to
// work (below 4 MiB).
constexpr SlotLayout slot_layout(size_t slot_bytes) {
  SlotLayout l{};
  size_t at = kPage;
  l.lanes = at;
  at += kLaneCount * kLaneBytes;
  l.mailbox = at;
  at += kMailboxBytes;
  l.marks = at;
  at += kMarkCount * sizeof(uint64_t);
  l.ring_bytes = 256 << 10;
  while (l.ring_bytes < (4u << 20) && l.ring_bytes * 32 <= slot_bytes) l.ring_bytes *= 2;
  l.ring = at;
  at += l.ring_bytes;
  l.arena = at;
  if (slot_bytes < (4u << 20) || slot_bytes % kPage || at >= slot_bytes) return SlotLayout{};
  l.arena_bytes = slot_bytes - at;
  l.total = slot_bytes;
  return l;
}

// The way back of kBytes is as large as the ring, which the arena always is too.
constexpr bool arena_holds_ring(size_t slot_bytes) {
  const SlotLayout l = slot_layout(slot_bytes);
  return l.total == 0 || l.arena_bytes >= l.ring_bytes;
}
static_assert(arena_holds_ring(4 << 20) && arena_holds_ring(8 << 20) &&
              arena_holds_ring(16 << 20) && arena_holds_ring(128 << 20));

// A region of `region_bytes` with n slots gives each this many bytes.
constexpr size_t slot_bytes_of(size_t region_bytes, uint32_t slots) {
  return slots == 0 || region_bytes <= kPage ? 0 : (region_bytes - kPage) / slots / kPage * kPage;
}
constexpr size_t slot_offset_of(size_t slot_bytes, uint32_t index) {
  return kPage + slot_bytes * index;
}

}  // namespace sluice::channel
