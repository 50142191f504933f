// SPDX-License-Identifier: Apache-2.0
// The channel of a session whose vGPUs are of several nodes: one channel to each, and each command
// goes to the node of the device in whose context it is (FrameHeader::context). To the session its
// devices are 0…n-1, to a worker those of its own node are: the context is made the worker's here,
// device numbers in a command's body by whoever writes it (Device::place). A session of one node
// has that node's channel itself and pays nothing for this.
//
// Commands to one node keep their order; between nodes there is none but what the program makes by
// waiting (driver/across_nodes.h). No memory is shared, whatever the nodes' own channels have. A
// node that is lost is lost to its own devices; when all are, the session is.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "client/core/channel.h"
#include "client/core/session_record.h"

namespace sluice::client {

class NodesChannel : public Channel {
 public:
  struct Node {
    std::string name;  // for messages
    std::unique_ptr<Channel> channel;
  };
  // In the order of their devices. nullptr: `error` says why they are no one session.
  static std::unique_ptr<Channel> join(std::vector<Node> nodes, std::string* error);

  wire::ChannelKind kind() const override { return nodes_[0].channel->kind(); }
  std::byte* reserve(size_t n) override;
  void commit(size_t n, bool answered) override;
  size_t tail_apart_from() const override { return tail_apart_from_; }
  void commit_apart(size_t n, std::span<const std::byte> tail) override;
  bool settle() override;
  void expect(uint32_t lane, std::span<std::byte> sink) override { lanes_[lane].sink = sink; }
  bool wait(uint32_t lane, uint32_t sequence, Reply* reply) override;
  Place place_of(uint32_t device) const override { return places_[device]; }
  Channel& towards(uint32_t device) override { return *nodes_[places_[device].node].channel; }
  uint32_t node_error(uint32_t context) override;
  bool some_node_left() override;
  // Of the current device's node, or where none is current only when all are gone.
  uint32_t sticky_error() override;
  bool alive() override { return some_node_left(); }
  std::atomic<uint64_t>* marks() override { return nullptr; }
  std::span<std::byte> arena() override { return {}; }
  size_t inline_limit() const override { return inline_limit_; }
  uint32_t lane_count() const override { return static_cast<uint32_t>(lanes_.size()); }
  void close() override;
  std::span<const std::byte> open_reply() override { return open_reply_; }

 private:
  struct Lane {
    std::span<std::byte> sink;
    uint32_t node = 0;  // that has its newest command
  };

  NodesChannel() = default;
  bool take_records(std::string* error);
  bool fits(uint32_t n, const SessionRecord& record, const wire::SessionRecord& whole,
            std::span<const wire::DeviceRecord> before, std::string* error) const;
  void listen_to(uint32_t n, uint32_t first, uint32_t count);
  void write_reply(wire::SessionRecord whole, std::span<const wire::DeviceRecord> devices);
  // The reserved frame, made its node's own.
  Channel& address(bool answered);
  // 0, or the CUresult for every call about the node.
  uint32_t error_of(uint32_t node);

  std::vector<Node> nodes_;
  std::vector<Place> places_;  // by device
  std::vector<Lane> lanes_;
  std::vector<std::byte> open_reply_;
  std::vector<std::byte> frame_;  // under the append lock
  size_t tail_apart_from_ = SIZE_MAX, inline_limit_ = SIZE_MAX;
  std::vector<std::atomic<bool>> said_lost_;  // by node
};

}  // namespace sluice::client
