// SPDX-License-Identifier: Apache-2.0
// One channel made of several nodes': each command reaches the node of its context and no other, in
// that node's own numbers; a node that is gone fails what is about it and nothing else; records
// that do not go together are refused before anything is sent.
#include "client/core/nodes_channel.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "client/core/config.h"

namespace sluice::client {
namespace {

struct Frame {
  wire::FrameHeader header;
  std::vector<std::byte> body;
};

// Keeps what it was sent, and answers each question with its own name.
class FakeNodeChannel : public Channel {
 public:
  struct Kept {
    std::vector<Frame> frames;
    bool gone = false, closed = false;
    uint32_t error = 0;
  };

  FakeNodeChannel(Kept* kept, uint32_t answer, uint64_t window, uint32_t devices,
                  bool software = true)
      : kept_(kept), answer_(answer) {
    wire::SessionRecord session{};
    session.device_count = devices;
    session.device_bytes = sizeof(wire::DeviceRecord);
    session.software_gpu = software;
    session.driver_version = 13000 + answer;
    std::vector<wire::DeviceRecord> records(devices);
    for (uint32_t i = 0; i < devices; ++i) {
      records[i].window_begin = window + i * 100;
      records[i].window_bytes = 100;
      records[i].peers = devices == 2 ? 3 : 1;
      records[i].peer_rank[0] = 7;
    }
    reply_.resize(sizeof(wire::OpenReply) + sizeof session + devices * sizeof records[0]);
    std::memcpy(reply_.data() + sizeof(wire::OpenReply), &session, sizeof session);
    std::memcpy(reply_.data() + sizeof(wire::OpenReply) + sizeof session, records.data(),
                devices * sizeof records[0]);
  }

  wire::ChannelKind kind() const override { return wire::ChannelKind::kTcp; }
  std::byte* reserve(size_t n) override {
    room_.resize(n);
    return kept_->gone ? nullptr : room_.data();
  }
  void commit(size_t n, bool) override { keep(n, {}); }
  size_t tail_apart_from() const override { return 64; }
  void commit_apart(size_t n, std::span<const std::byte> tail) override { keep(n, tail); }
  void expect(uint32_t lane, std::span<std::byte> sink) override { sinks_[lane] = sink; }
  bool wait(uint32_t lane, uint32_t, Reply* reply) override {
    if (kept_->gone) return false;
    if (!sinks_[lane].empty()) sinks_[lane][0] = static_cast<std::byte>(answer_);
    *reply = {answer_, {}};
    return true;
  }
  uint32_t sticky_error() override { return kept_->error; }
  bool alive() override { return !kept_->gone; }
  std::atomic<uint64_t>* marks() override { return nullptr; }
  std::span<std::byte> arena() override { return {}; }
  size_t inline_limit() const override { return 1000 + answer_; }
  uint32_t lane_count() const override { return 8 - answer_; }
  void close() override { kept_->closed = true; }
  std::span<const std::byte> open_reply() override { return reply_; }

 private:
  void keep(size_t n, std::span<const std::byte> tail) {
    Frame frame;
    std::memcpy(&frame.header, room_.data(), sizeof frame.header);
    frame.body.assign(room_.begin() + sizeof frame.header, room_.begin() + static_cast<long>(n));
    frame.body.insert(frame.body.end(), tail.begin(), tail.end());
    kept_->frames.push_back(frame);
  }

  Kept* kept_;
  uint32_t answer_;
  std::vector<std::byte> reply_, room_;
  std::span<std::byte> sinks_[8];
};

struct TwoNodes {
  FakeNodeChannel::Kept first, second;
  std::string error;
  std::unique_ptr<Channel> channel;

  explicit TwoNodes(uint64_t window = 200, bool software = true) {
    std::vector<NodesChannel::Node> nodes;
    nodes.push_back({"a", std::make_unique<FakeNodeChannel>(&first, 1, 0, 2)});
    nodes.push_back({"b", std::make_unique<FakeNodeChannel>(&second, 2, window, 1, software)});
    channel = NodesChannel::join(std::move(nodes), &error);
  }

  void send(uint32_t context, uint16_t lane, std::span<const std::byte> tail = {}) {
    const wire::FrameHeader header{sizeof header + 8, 99, lane, 5, context};
    std::byte* at = channel->reserve(sizeof header + 8);
    std::memcpy(at, &header, sizeof header);
    std::memset(at + sizeof header, 0x11, 8);
    if (tail.empty())
      channel->commit(sizeof header + 8, lane != wire::kNoLane);
    else
      channel->commit_apart(sizeof header + 8, tail);
  }
};

TEST(NodesChannel, SendsEachCommandToItsNodeInThatNodesNumbers) {
  TwoNodes nodes;
  ASSERT_TRUE(nodes.channel) << nodes.error;
  for (const uint32_t context : {1u, 2u, 3u, 0u}) nodes.send(context, wire::kNoLane);
  const std::vector<std::byte> tail(100, std::byte{0x22});
  nodes.send(3, wire::kNoLane, tail);
  ASSERT_EQ(nodes.first.frames.size(), 3u);
  EXPECT_EQ(nodes.first.frames[0].header.context, 1u);
  EXPECT_EQ(nodes.first.frames[1].header.context, 2u);
  EXPECT_EQ(nodes.first.frames[2].header.context, 0u) << "what is about no device is the first's";
  ASSERT_EQ(nodes.second.frames.size(), 2u);
  EXPECT_EQ(nodes.second.frames[0].header.context, 1u);
  EXPECT_EQ(nodes.second.frames[0].header.function, 99u);
  EXPECT_EQ(nodes.second.frames[1].body.size(), 108u);
  EXPECT_EQ(nodes.second.frames[1].body[107], std::byte{0x22});
}

TEST(NodesChannel, WaitsWhereItAsked) {
  TwoNodes nodes;
  ASSERT_TRUE(nodes.channel) << nodes.error;
  std::byte there{}, here{};
  nodes.channel->expect(0, {&there, 1});
  nodes.send(3, 0);
  nodes.channel->expect(1, {&here, 1});
  nodes.send(1, 1);
  Reply reply;
  ASSERT_TRUE(nodes.channel->wait(1, 5, &reply));
  EXPECT_EQ(reply.status, 1u);
  EXPECT_EQ(here, std::byte{1});
  ASSERT_TRUE(nodes.channel->wait(0, 5, &reply));
  EXPECT_EQ(reply.status, 2u);
  EXPECT_EQ(there, std::byte{2});
}

TEST(NodesChannel, HasTheLeastOfWhatItsNodesHave) {
  TwoNodes nodes;
  ASSERT_TRUE(nodes.channel) << nodes.error;
  EXPECT_EQ(nodes.channel->inline_limit(), 1001u);
  EXPECT_EQ(nodes.channel->lane_count(), 6u);
  EXPECT_EQ(nodes.channel->place_of(2).node, 1u);
  EXPECT_EQ(nodes.channel->place_of(2).index, 0u);
  EXPECT_EQ(nodes.channel->place_of(1).index, 1u);
  wire::SessionRecord record;
  std::memcpy(&record, nodes.channel->open_reply().data() + sizeof(wire::OpenReply), sizeof record);
  EXPECT_EQ(record.device_count, 3u);
  EXPECT_EQ(record.driver_version, 13001u);
  std::vector<wire::DeviceRecord> devices(3);
  std::memcpy(devices.data(),
              nodes.channel->open_reply().data() + sizeof(wire::OpenReply) + sizeof record,
              devices.size() * sizeof devices[0]);
  EXPECT_EQ(devices[0].peers, 3u);
  EXPECT_EQ(devices[2].peers, 4u) << "itself, and nobody of another node";
  EXPECT_EQ(devices[2].peer_rank[0], 0u);
  EXPECT_EQ(devices[2].peer_rank[2], 7u);
}

TEST(NodesChannel, OfALostNodeOnlyItsOwnDevicesFail) {
  TwoNodes nodes;
  ASSERT_TRUE(nodes.channel) << nodes.error;
  uint32_t current = Channel::kNoDevice;
  nodes.channel->current_device = [&current] { return current; };
  nodes.second.gone = true;
  nodes.send(3, 0);
  Reply reply;
  EXPECT_FALSE(nodes.channel->wait(0, 5, &reply));
  EXPECT_NE(nodes.channel->node_error(3), 0u);
  EXPECT_EQ(nodes.channel->node_error(1), 0u);
  EXPECT_EQ(nodes.channel->sticky_error(), 0u) << "no device is current";
  current = 0;
  EXPECT_EQ(nodes.channel->sticky_error(), 0u);
  current = 2;
  EXPECT_NE(nodes.channel->sticky_error(), 0u);
  EXPECT_TRUE(nodes.channel->some_node_left());
  nodes.first.error = 700;
  EXPECT_FALSE(nodes.channel->some_node_left());
  EXPECT_EQ(nodes.channel->node_error(1), 0u) << "all is gone: it is the session's error";
  current = Channel::kNoDevice;
  EXPECT_EQ(nodes.channel->sticky_error(), 700u);
}

TEST(NodesChannel, RefusesNodesThatDoNotGoTogether) {
  for (const uint64_t window : {0ull, 150ull, 199ull}) {
    TwoNodes nodes(window);
    EXPECT_FALSE(nodes.channel);
    EXPECT_NE(nodes.error.find("node b gives its vGPU addresses that another node's has"),
              std::string::npos)
        << nodes.error;
    EXPECT_TRUE(nodes.first.closed && nodes.second.closed) << "their sessions go back at once";
  }
  TwoNodes mixed(200, false);
  EXPECT_FALSE(mixed.channel);
  EXPECT_NE(mixed.error.find("ask for one model of GPU"), std::string::npos) << mixed.error;
}

}  // namespace
}  // namespace sluice::client
