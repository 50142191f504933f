// SPDX-License-Identifier: Apache-2.0
// A worker's session in this process, without threads: frames go through the real dispatch table
// into the recording driver. Used by the round-trip tests (behind a client, loopback_channel.h),
// the tests of hostile frames and the fuzzer. One at a time, as the recording driver is one.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "tests/native/roundtrip/recording_driver.h"
#include "worker/broker.h"
#include "worker/dispatch.h"

namespace sluice::test {

inline constexpr size_t kArenaBytes = 40 << 20;  // more than one piece of wire::kArenaChunk
inline constexpr size_t kReplyLimit = 8176;      // a lane's body on shared memory
inline constexpr size_t kMiB = 1 << 20, kSlab = 2 * kMiB;  // device memory is mapped by slabs

struct Answer {
  uint32_t status = 0;
  std::vector<std::byte> body;
};

class RigEndpoint : public worker::Endpoint {
 public:
  RigEndpoint();
  ~RigEndpoint() override;
  Got take(std::byte*) override { return Got::kEmpty; }
  bool empty() override { return true; }
  bool closed() override { return false; }
  void set_sleeping(bool) override {}
  bool unannounced() override { return false; }
  bool parking_is_dear() const override { return false; }
  uint32_t wake_count() override { return 0; }
  void sleep(uint32_t) override {}
  void wake_one() override {}
  void reply(uint16_t, uint32_t, uint32_t, std::span<const std::byte>, std::span<const std::byte>,
             const std::shared_ptr<const void>&) override {}
  uint32_t lane_count() const override { return 64; }
  size_t reply_limit() const override { return kReplyLimit; }
  void publish_error(uint32_t error, bool) override { published = error; }
  bool publish_record(std::span<const std::byte> all, std::string*) override {
    record.assign(all.begin(), all.end());
    return true;
  }
  std::span<std::byte> arena() override { return {arena_, kArenaBytes}; }
  std::atomic<uint64_t>* marks() override { return marks_; }
  size_t mark_count() const override;
  std::atomic<uint64_t>* memory_used(uint32_t device) override { return &memory_used_[device]; }
  void tell_library_memory(const wire::LibraryMemory&) override {}
  uint64_t bytes_in() const override { return 0; }

  std::vector<std::byte> record;
  std::atomic<uint32_t> published{0};  // the last error

 private:
  std::byte* arena_ = nullptr;
  std::atomic<uint64_t>* marks_ = nullptr;
  std::atomic<uint64_t> memory_used_[wire::kMaxDevices]{};
};

// In the server's place: takes everything, and has a slab of memory and a region of events for
// every key.
class FakeBroker : public worker::Broker {
 public:
  bool share(const wire::ShareKey& key, const worker::SharedThing& thing,
             std::string* why) override;
  void unshare(const wire::ShareKey& key) override;
  bool fetch(const wire::ShareKey& key, const std::string& kind, worker::SharedThing* thing,
             std::string* why) override;

  std::map<std::string, worker::SharedThing> shared;  // by key; descriptors are closed already
  std::string refusal;                                // when it is not empty
  std::string gpu;                                    // where the memory lies
};

class WorkerRig {
 public:
  WorkerRig();
  ~WorkerRig();
  // What the executor does with a frame; false: it ended the session. `body` must be 8-byte
  // aligned.
  bool dispatch(const wire::FrameHeader& header, std::span<const std::byte> body, Answer* answer);

  worker::Session& session() { return *session_; }
  RigEndpoint& endpoint() { return *endpoint_; }
  worker::Driver& driver() { return driver_; }
  FakeBroker& broker() { return broker_; }

 private:
  worker::Driver driver_;
  std::vector<worker::Gpu> gpus_;
  RigEndpoint* endpoint_ = nullptr;
  FakeBroker broker_;
  std::unique_ptr<worker::Session> session_;
};

}  // namespace sluice::test
