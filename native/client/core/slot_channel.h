// SPDX-License-Identifier: Apache-2.0
// Which channel a slot that is ready carries: the host says whether its other end is the worker, or
// a relay to one on another host.
#pragma once

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "channel/region_stream.h"
#include "client/core/resume.h"
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
  wire::OpenReply opened;
  std::memcpy(&opened, reply.data(), sizeof opened);
  // A relay of before carries such a session too, and takes it with it.
  const bool outlives_relay = slot.header().outlives_relay.load() != 0;
  const auto end = std::make_shared<channel::RegionEnd>(std::move(slot), shares_futex, worker_pidfd,
                                                        region_fd, std::move(bell));
  uint32_t link = outlives_relay ? channel::kFirstLink : 0;
  auto stream = std::make_unique<channel::RegionStream>(end, link);
  if (opened.network_grace_seconds == 0)
    return std::make_unique<StreamChannel>(-1, std::move(stream), std::move(reply));
  stream->begin();
  return std::make_unique<StreamChannel>(
      std::make_unique<channel::ResumableStream>(
          std::make_unique<channel::ResumableStream::Connection>(-1, std::move(stream)),
          terms_of(opened.network_grace_seconds)),
      std::move(reply), [end, link](channel::ResumableStream* s, std::string* trouble) mutable {
        return resume_in_slot(end, &link, s, trouble);
      });
}

}  // namespace sluice::client
