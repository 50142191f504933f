// SPDX-License-Identifier: Apache-2.0
// A channel whose worker sits behind the next function call: what the client commits is dispatched
// at once. Owns the worker's side; promises what a real channel promises, and that a rejected frame
// loses the session.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>

#include "client/core/channel.h"
#include "tests/native/roundtrip/worker_rig.h"

namespace sluice::test {

class LoopbackChannel : public client::Channel {
 public:
  static constexpr uint32_t kLanes = 64;

  wire::ChannelKind kind() const override { return wire::ChannelKind::kShm; }
  std::byte* reserve(size_t n) override {
    if (lost_) return nullptr;
    frame_.assign((n + 7) / 8, 0);
    return reinterpret_cast<std::byte*>(frame_.data());
  }
  void commit(size_t n, bool answered) override;
  bool wait(uint32_t lane, uint32_t sequence, client::Reply* reply) override {
    if (lost_ || lanes_[lane].sequence != sequence) return false;
    reply->status = lanes_[lane].answer.status;
    reply->body = lanes_[lane].answer.body;
    return true;
  }
  uint32_t sticky_error() override { return sticky_; }
  bool alive() override { return !lost_; }
  std::atomic<uint64_t>* marks() override { return rig.endpoint().marks(); }
  std::atomic<uint64_t>* memory_used(uint32_t device) override {
    return rig.endpoint().memory_used(device);
  }
  std::span<std::byte> arena() override { return rig.endpoint().arena(); }
  size_t inline_limit() const override { return wire::kInlineChunkBytes; }
  uint32_t lane_count() const override { return kLanes; }
  void close() override {}
  std::span<const std::byte> open_reply() override { return rig.endpoint().record; }

  WorkerRig rig;
  // Poisons the session as the executor does when nobody waits for an answer; off while a test
  // looks at the worker's status.
  std::atomic<uint32_t> sticky_{0};
  std::vector<uint16_t> seen;  // functions of the frames, in order
  uint64_t answered = 0;       // how many of them were waited for
  // A worker that was taken over: changes answers on their way to the client.
  std::function<void(const wire::FrameHeader&, Answer*)> tamper;

 private:
  struct Lane {
    uint32_t sequence = 0;
    Answer answer;
  };
  std::vector<uint64_t> frame_;
  Lane lanes_[kLanes];
  bool lost_ = false;
};

}  // namespace sluice::test
