// SPDX-License-Identifier: Apache-2.0
// Which channel a slot that is ready carries: the host says whether its other end is the worker, or
// a relay to one on another host.
#pragma once

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "channel/region_stream.h"
#include "client/core/shm_channel.h"
#include "client/core/stream_channel.h"
#include "wire/frame.h"

namespace sluice::client {

// Takes the slot, both descriptors (-1: none) and the bell.
inline std::unique_ptr<Channel> channel_over(channel::MappedSlot slot, wire::ChannelKind kind,
                                             int worker_pidfd, int region_fd,
                                             channel::Bell bell = {}) {
  if (slot.header().dialect.load() != static_cast<uint32_t>(channel::SlotDialect::kBytes))
    return std::make_unique<ShmChannel>(std::move(slot), kind, worker_pidfd, region_fd,
                                        std::move(bell));
  const std::span<std::byte> mailbox = slot.mailbox();
  wire::SessionRecord record;
  std::memcpy(&record, mailbox.data() + sizeof(wire::OpenReply), sizeof record);
  const size_t n = std::min<size_t>(sizeof(wire::OpenReply) + record.record_bytes, mailbox.size());
  std::vector<std::byte> reply(mailbox.begin(), mailbox.begin() + static_cast<ptrdiff_t>(n));
  const bool shares_futex = kind == wire::ChannelKind::kShm;
  return std::make_unique<StreamChannel>(
      -1,
      std::make_unique<channel::RegionStream>(std::move(slot), shares_futex, worker_pidfd,
                                              region_fd, std::move(bell)),
      std::move(reply));
}

}  // namespace sluice::client
