// SPDX-License-Identifier: Apache-2.0
// The channel over a mapped slot: shared memory of one host (futexes both ways) or a guest's
// ivshmem region (no interrupts: the guest rings the doorbell word and polls with growing pauses;
// where it has a bell too, the host looks at once).
#pragma once

#include "channel/bell.h"
#include "channel/ring.h"
#include "client/core/channel.h"

namespace sluice::client {

class ShmChannel : public Channel {
 public:
  // Takes the mapped slot, whose state is ready. worker_pidfd may be -1 (guests): then only the
  // slot's state tells of the worker's end.
  ShmChannel(channel::MappedSlot slot, wire::ChannelKind kind, int worker_pidfd, int region_fd,
             channel::Bell bell = {});
  ~ShmChannel() override;

  wire::ChannelKind kind() const override { return kind_; }
  std::byte* reserve(size_t n) override;
  void commit(size_t n, bool answered) override;
  bool wait(uint32_t lane, uint32_t sequence, Reply* reply) override;
  uint32_t sticky_error() override {
    // A slot that was given to another process, or whose device is gone, says nothing about this
    // session.
    const auto& h = slot_.header();
    if (h.generation.load(std::memory_order_relaxed) != generation_) return 999;
    const uint32_t error = h.sticky_error.load(std::memory_order_acquire);
    if (error) [[unlikely]]
      tell_end();
    return error;
  }
  bool alive() override { return !worker_gone(); }
  std::atomic<uint64_t>* marks() override { return slot_.marks(); }
  std::atomic<uint64_t>* memory_used(uint32_t device) override {
    return device < channel::kMemoryWords ? &slot_.header().memory_used[device] : nullptr;
  }
  std::span<std::byte> arena() override {
    return {slot_.arena(), slot_.arena() ? slot_.layout().arena_bytes : 0};
  }
  size_t inline_limit() const override { return wire::kInlineChunkBytes; }
  uint32_t lane_count() const override { return channel::kLaneCount; }
  void close() override;
  std::span<const std::byte> open_reply() override { return slot_.mailbox(); }

 private:
  bool worker_gone();
  void ring();      // in a guest
  void tell_end();  // on standard error, if the worker said why
  bool shares_futex() const { return kind_ == wire::ChannelKind::kShm; }

  channel::MappedSlot slot_;
  channel::RingProducer producer_;
  wire::ChannelKind kind_;
  int worker_pidfd_;
  int region_fd_;
  channel::Bell bell_;
  uint32_t generation_;
};

}  // namespace sluice::client
