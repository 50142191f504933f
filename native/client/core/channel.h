// SPDX-License-Identifier: Apache-2.0
// The client's end of a channel: where commands go and where their answers come from.
// Session (session.h) serialises reserve/commit under its append lock; wait() is called without it,
// by the thread that owns the lane. Implementations: ShmChannel (shared memory and ivshmem) and
// StreamChannel (TCP, vsock, a relayed slot); RDMA joins here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "channel/region.h"
#include "client/core/config.h"
#include "wire/bodies/commands.h"
#include "wire/frame.h"

namespace sluice::client {

// An answer. `body` is valid until the same lane sends its next command.
struct Reply {
  uint32_t status = 0;  // CUresult
  std::span<const std::byte> body;
};

class Channel {
 public:
  virtual ~Channel() = default;

  virtual wire::ChannelKind kind() const = 0;

  // Room for one frame of n bytes; blocks while the channel is full. nullptr: the worker is gone.
  virtual std::byte* reserve(size_t n) = 0;
  // Hands the reserved frame over. `answered`: its sender will wait, so it must not linger here.
  virtual void commit(size_t n, bool answered) = 0;
  // Tails of this size on are not copied into the frame but handed over apart.
  virtual size_t tail_apart_from() const { return SIZE_MAX; }
  // commit() of a frame of which only the first n bytes were reserved: it goes on with `tail` and
  // zeros to a multiple of 8. `tail` may change when this returns.
  virtual void commit_apart(size_t, std::span<const std::byte>) {}
  // Whether what this thread hands over apart should stay as it is, so that no copy of it has to be
  // kept: asked for so many bytes in all. After true it is so, until settle() or, of pinned memory,
  // for longer than end_lending(): until the stream has passed that it was given to.
  enum class Lent { kUntilSettled, kUntilStreamPassed };
  virtual bool begin_lending(size_t, Lent) { return false; }
  virtual void end_lending() {}
  // What was lent, by any thread, may change again and be freed. False: the worker is gone.
  virtual bool settle() { return true; }
  // Where a body of at least `sink.size()` bytes in the next answer on `lane` may be placed
  // straight (reply.body points there then). Until that answer has been waited for.
  virtual void expect(uint32_t, std::span<std::byte>) {}
  // Waits for the answer to `sequence` on `lane`. False: the worker is gone.
  virtual bool wait(uint32_t lane, uint32_t sequence, Reply* reply) = 0;

  // Which of the nodes that the session has vGPUs of a device is on, and what the worker there
  // calls it.
  struct Place {
    uint32_t node = 0, index = 0;
  };
  virtual Place place_of(uint32_t device) const { return {0, device}; }
  // The channel to a device's node alone: for what is about the way there.
  virtual Channel& towards(uint32_t) { return *this; }
  // Where a command with this context failed as its node is gone and others are not: the CUresult
  // for it. 0: all is gone.
  virtual uint32_t node_error(uint32_t) { return 0; }
  // Whether there is a node left, whatever sticky_error() says for the device that is current.
  virtual bool some_node_left() { return false; }
  // The device that is current on the calling thread, kNoDevice: none. Set before the first
  // command.
  static constexpr uint32_t kNoDevice = ~0u;
  std::function<uint32_t()> current_device;

  // What the worker said unasked: 0, or the CUresult that every later call returns.
  virtual uint32_t sticky_error() = 0;
  // Whether the worker can still answer. Costs a system call: asked only after a long wait.
  virtual bool alive() = 0;
  // Completion page; nullptr where no memory is shared.
  virtual std::atomic<uint64_t>* marks() = 0;
  // Pinned memory shared with the worker, at its fixed address; empty where none is shared.
  virtual std::span<std::byte> arena() = 0;
  // The word that both sides charge a vGPU's memory in (channel/slot.h); nullptr where none is
  // shared. Then the worker says what its libraries take, on the thread that reads.
  virtual std::atomic<uint64_t>* memory_used(uint32_t) { return nullptr; }
  std::function<void(const wire::LibraryMemory&)>
      on_library_memory;  // set before the first command
  // A node's worker says that its link to the node of this device is over. Set at the same time.
  std::function<void(uint32_t node, uint64_t device)> on_link_lost;
  // Data that one command may carry.
  virtual size_t inline_limit() const = 0;
  // The same of a copy to the device, where the worker takes_large_copies: what is cut over several
  // connections waits for all of them after each piece.
  virtual size_t copy_limit() const { return inline_limit(); }
  virtual uint32_t lane_count() const = 0;

  // The process ends in good order, everything was committed.
  virtual void close() = 0;

  // The reply that opened the session, record included.
  virtual std::span<const std::byte> open_reply() = 0;

  uint64_t bytes_out = 0;  // under the append lock
};

}  // namespace sluice::client
