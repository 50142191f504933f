// SPDX-License-Identifier: Apache-2.0
#include "client/core/nodes_channel.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "abi/cuda_driver.h"
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

namespace {

bool overlap(const wire::DeviceRecord& a, const wire::DeviceRecord& b) {
  return a.window_begin < b.window_begin + b.window_bytes &&
         b.window_begin < a.window_begin + a.window_bytes;
}

// What holds for all nodes, from what held for those before and what one more says.
void take_in(wire::SessionRecord* whole, const wire::SessionRecord& node) {
  whole->driver_version = std::min(whole->driver_version, node.driver_version);
  whole->keeps_code = std::min(whole->keeps_code, node.keeps_code);
  whole->shares_memory = std::max(whole->shares_memory, node.shares_memory);
}

// A node's device as the session's, of which its node's first is the device `first`: its peers are
// those of its own node.
wire::DeviceRecord renumbered(wire::DeviceRecord device, uint32_t first) {
  const wire::DeviceRecord said = device;
  device.peers = first < 64 ? said.peers << first : 0;
  device.peer_atomics = first < 64 ? said.peer_atomics << first : 0;
  std::memset(device.peer_rank, 0, sizeof device.peer_rank);
  std::memcpy(device.peer_rank + first, said.peer_rank, sizeof device.peer_rank - first);
  return device;
}

}  // namespace

// One record of all nodes'.
bool NodesChannel::take_records(std::string* error) {
  wire::SessionRecord whole{};
  std::vector<wire::DeviceRecord> devices;
  for (uint32_t n = 0; n < nodes_.size(); ++n) {
    SessionRecord record;
    if (!read_session_record(nodes_[n].channel->open_reply(), &record, error)) {
      *error = "node " + nodes_[n].name + ": " + *error;
      return false;
    }
    if (n == 0) whole = record.session;
    take_in(&whole, record.session);
    if (!fits(n, record, whole, devices, error)) return false;
    const auto first = static_cast<uint32_t>(devices.size());
    listen_to(n, first, static_cast<uint32_t>(record.devices.size()));
    for (uint32_t d = 0; d < record.devices.size(); ++d) {
      devices.push_back(renumbered(record.devices[d], first));
      places_.push_back({n, d});
    }
  }
  whole.device_count = static_cast<uint32_t>(devices.size());
  write_reply(whole, devices);
  return true;
}

// Whether a node can be one session with those before it.
bool NodesChannel::fits(uint32_t n, const SessionRecord& record, const wire::SessionRecord& whole,
                        std::span<const wire::DeviceRecord> before, std::string* error) const {
  if (before.size() + record.devices.size() > wire::kMaxDevices) {
    *error = "the nodes have more than " + std::to_string(wire::kMaxDevices) + " vGPUs together";
    return false;
  }
  if (record.session.software_gpu != whole.software_gpu) {
    *error = "node " + nodes_[n].name + " has " +
             (record.session.software_gpu ? "the software GPU" : "GPUs") + ", and node " +
             nodes_[0].name + " has not: ask for one model of GPU";
    return false;
  }
  for (const wire::DeviceRecord& device : record.devices)
    for (const wire::DeviceRecord& other : before)
      if (overlap(device, other)) {
        *error = "node " + nodes_[n].name +
                 " gives its vGPU addresses that another node's has: bring its sluice-server to "
                 "this release";
        return false;
      }
  return true;
}

// A node speaks of its own devices, `count` from the session's `first` on.
void NodesChannel::listen_to(uint32_t n, uint32_t first, uint32_t count) {
  nodes_[n].channel->on_link_lost = [this, n](uint32_t, uint64_t peer) {
    if (on_link_lost) on_link_lost(n, peer);
  };
  nodes_[n].channel->on_library_memory = [this, first, count](const wire::LibraryMemory& m) {
    if (m.device >= count) return;
    wire::LibraryMemory ours = m;
    ours.device += first;
    if (on_library_memory) on_library_memory(ours);
  };
}

// As a node would have opened a session with all of these.
void NodesChannel::write_reply(wire::SessionRecord whole,
                               std::span<const wire::DeviceRecord> devices) {
  whole.device_bytes = sizeof(wire::DeviceRecord);
  whole.record_bytes = static_cast<uint32_t>(sizeof whole + devices.size_bytes());
  open_reply_.resize(sizeof(wire::OpenReply) + whole.record_bytes);
  std::byte* at = open_reply_.data();
  std::memcpy(at, nodes_[0].channel->open_reply().data(), sizeof(wire::OpenReply));
  std::memcpy(at += sizeof(wire::OpenReply), &whole, sizeof whole);
  std::memcpy(at + sizeof whole, devices.data(), devices.size_bytes());
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

bool NodesChannel::settle() {
  bool all = true;
  for (Node& node : nodes_) all &= node.channel->settle();
  return all;
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
