// SPDX-License-Identifier: Apache-2.0
#include "client/core/nodes_channel.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "client/core/log.h"
#include "client/core/session_record.h"

namespace sluice::client {

std::unique_ptr<Channel> NodesChannel::join(std::vector<Node> nodes, std::string* error) {
  std::unique_ptr<NodesChannel> joined(new NodesChannel());
  joined->nodes_ = std::move(nodes);
  joined->said_lost_ = std::vector<std::atomic<bool>>(joined->nodes_.size());
  uint32_t lanes = ~0u;
  for (const Node& node : joined->nodes_) {
    lanes = std::min(lanes, node.channel->lane_count());
    joined->tail_apart_from_ = std::min(joined->tail_apart_from_, node.channel->tail_apart_from());
    joined->inline_limit_ = std::min(joined->inline_limit_, node.channel->inline_limit());
  }
  joined->lanes_.resize(lanes);
  if (joined->take_records(error)) return joined;
  joined->close();
  return nullptr;
}

// One record of all nodes', in which a device's peers are of its own node.
bool NodesChannel::take_records(std::string* error) {
  wire::SessionRecord whole{};
  std::vector<wire::DeviceRecord> devices;
  for (uint32_t n = 0; n < nodes_.size(); ++n) {
    SessionRecord record;
    if (!read_session_record(nodes_[n].channel->open_reply(), &record, error)) {
      *error = "node " + nodes_[n].name + ": " + *error;
      return false;
    }
    const wire::SessionRecord& s = record.session;
    const auto first = static_cast<uint32_t>(devices.size());
    if (first + record.devices.size() > wire::kMaxDevices) {
      *error = "the nodes have more than " + std::to_string(wire::kMaxDevices) + " vGPUs together";
      return false;
    }
    if (n != 0 && s.software_gpu != whole.software_gpu) {
      *error = "node " + nodes_[n].name + " has " + (s.software_gpu ? "the software GPU" : "GPUs") +
               ", and node " + nodes_[0].name + " has not: ask for one model of GPU";
      return false;
    }
    if (n == 0) {
      whole = s;
    } else {
      whole.driver_version = std::min(whole.driver_version, s.driver_version);
      whole.keeps_code = std::min(whole.keeps_code, s.keeps_code);
      whole.shares_memory = std::max(whole.shares_memory, s.shares_memory);
    }
    for (uint32_t d = 0; d < record.devices.size(); ++d) {
      wire::DeviceRecord device = record.devices[d];
      const auto overlaps = [&](const wire::DeviceRecord& other) {
        return device.window_begin < other.window_begin + other.window_bytes &&
               other.window_begin < device.window_begin + device.window_bytes;
      };
      if (std::any_of(devices.begin(), devices.begin() + first, overlaps)) {
        *error = "node " + nodes_[n].name +
                 " gives its vGPU addresses that another node's has: bring its sluice-server to "
                 "this release";
        return false;
      }
      device.peers = first < 64 ? device.peers << first : 0;
      device.peer_atomics = first < 64 ? device.peer_atomics << first : 0;
      std::memset(device.peer_rank, 0, sizeof device.peer_rank);
      std::memcpy(device.peer_rank + first, record.devices[d].peer_rank,
                  sizeof device.peer_rank - first);
      devices.push_back(device);
      places_.push_back({n, d});
    }
    const auto count = static_cast<uint32_t>(record.devices.size());
    nodes_[n].channel->on_link_lost = [this, n](uint32_t, uint64_t peer) {
      if (on_link_lost) on_link_lost(n, peer);
    };
    nodes_[n].channel->on_library_memory = [this, first, count](const wire::LibraryMemory& m) {
      if (m.device >= count) return;  // a node speaks of its own
      wire::LibraryMemory ours = m;
      ours.device += first;
      if (on_library_memory) on_library_memory(ours);
    };
  }
  whole.device_count = static_cast<uint32_t>(devices.size());
  whole.device_bytes = sizeof(wire::DeviceRecord);
  whole.record_bytes =
      static_cast<uint32_t>(sizeof whole + devices.size() * sizeof(wire::DeviceRecord));
  open_reply_.resize(sizeof(wire::OpenReply) + whole.record_bytes);
  std::byte* at = open_reply_.data();
  std::memcpy(at, nodes_[0].channel->open_reply().data(), sizeof(wire::OpenReply));
  std::memcpy(at += sizeof(wire::OpenReply), &whole, sizeof whole);
  std::memcpy(at + sizeof whole, devices.data(), devices.size() * sizeof(wire::DeviceRecord));
  return true;
}

std::byte* NodesChannel::reserve(size_t n) {
  if (frame_.size() < n) frame_.resize(n);
  return frame_.data();
}

Channel& NodesChannel::address(bool answered) {
  wire::FrameHeader h;
  std::memcpy(&h, frame_.data(), sizeof h);
  const bool about_device = h.context != 0 && h.context <= places_.size();
  const Place place = about_device ? places_[h.context - 1] : Place{};
  if (about_device) h.context = place.index + 1;
  std::memcpy(frame_.data(), &h, sizeof h);
  Channel& channel = *nodes_[place.node].channel;
  if (answered) {
    Lane& lane = lanes_[h.lane];
    lane.node = place.node;
    channel.expect(h.lane, std::exchange(lane.sink, {}));
  }
  return channel;
}

void NodesChannel::commit(size_t n, bool answered) {
  Channel& channel = address(answered);
  bytes_out += n;
  std::byte* at = channel.reserve(n);
  if (!at) return;  // its node is gone: who waits, and who asks next, is told
  std::memcpy(at, frame_.data(), n);
  channel.commit(n, answered);
}

void NodesChannel::commit_apart(size_t n, std::span<const std::byte> tail) {
  wire::FrameHeader h;
  std::memcpy(&h, frame_.data(), sizeof h);
  const bool answered = h.lane != wire::kNoLane;
  Channel& channel = address(answered);
  const size_t whole = wire::round_up(n + tail.size(), 8);
  bytes_out += whole;
  const bool apart = tail.size() >= channel.tail_apart_from();
  std::byte* at = channel.reserve(apart ? n : whole);
  if (!at) return;
  std::memcpy(at, frame_.data(), n);
  if (apart) return channel.commit_apart(n, tail);
  std::memcpy(at + n, tail.data(), tail.size());
  channel.commit(whole, answered);
}

bool NodesChannel::wait(uint32_t lane, uint32_t sequence, Reply* reply) {
  return nodes_[lanes_[lane].node].channel->wait(lane, sequence, reply);
}

uint32_t NodesChannel::error_of(uint32_t node) {
  Channel& channel = *nodes_[node].channel;
  uint32_t error = channel.sticky_error();
  if (error == 0 && !channel.alive()) error = CUDA_ERROR_UNKNOWN;
  if (error != 0 && !said_lost_[node].exchange(true))
    log_line(LogLevel::kError, "node " + nodes_[node].name + " is lost to this process (error " +
                                   std::to_string(error) +
                                   "): calls about its devices fail, others go on");
  return error;
}

uint32_t NodesChannel::node_error(uint32_t context) {
  if (context == 0 || context > places_.size() || !some_node_left()) return 0;
  return error_of(places_[context - 1].node);
}

bool NodesChannel::some_node_left() {
  for (uint32_t n = 0; n < nodes_.size(); ++n)
    if (error_of(n) == 0) return true;
  return false;
}

uint32_t NodesChannel::sticky_error() {
  const uint32_t device = current_device ? current_device() : kNoDevice;
  if (device < places_.size()) return error_of(places_[device].node);
  return some_node_left() ? 0 : error_of(0);
}

void NodesChannel::close() {
  for (Node& node : nodes_) node.channel->close();
}

}  // namespace sluice::client
