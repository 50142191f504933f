// SPDX-License-Identifier: Apache-2.0
// A session behind one of its real channels, with the client's end in the same process and a driver
// that only writes down: what the executor's tests share.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "channel/region_stream.h"
#include "client/core/shm_channel.h"
#include "client/core/stream_channel.h"
#include "relay/pump.h"
#include "tests/native/channel/shared_slot.h"
#include "tests/native/worker/fake_driver.h"
#include "wire/address_windows.h"
#include "worker/executor.h"

namespace sluice::test {

using namespace std::chrono_literals;

// One word that threads wait for; twenty seconds are for ever.
class Signal {
 public:
  void give() {
    std::lock_guard lock(mutex_);
    given_ = true;
    changed_.notify_all();
  }
  bool wait(std::chrono::seconds most = 20s) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, most, [this] { return given_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool given_ = false;
};

enum class Kind { kShm, kIvshmem, kTcp, kRelayed, kRelayedGuest };

// A session with a client's end. Never taken down: its threads live as long as the process, as a
// worker's do.
class Rig {
 public:
  explicit Rig(Kind kind, worker::Merging merging = worker::Merging::kOff) {
    std::string error;
    const bool relayed = kind == Kind::kRelayed || kind == Kind::kRelayedGuest;
    mapped = slot.map(relayed);
    std::unique_ptr<worker::Endpoint> endpoint;
    if (kind == Kind::kTcp) {
      int pair[2];
      EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
      client_socket = pair[0];
      endpoint = worker::make_tcp_endpoint(pair[1]);
      channel = std::make_unique<client::StreamChannel>(
          pair[0], std::make_unique<channel::PlainStream>(pair[0]), std::vector<std::byte>());
    } else if (relayed) {
      int pair[2];
      EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
      endpoint = worker::make_tcp_endpoint(pair[1]);
      pump = std::make_unique<relay::Pump>(mapped.alias(), "node", [](const process::End&) {});
      pump->carry(std::make_unique<channel::PlainStream>(pair[0]), pair[0]);
      const std::vector<std::byte> reply(600);
      EXPECT_TRUE(pump->open(reply, &error)) << error;
      EXPECT_TRUE(pump->start());
      channel = std::make_unique<client::StreamChannel>(
          -1,
          std::make_unique<channel::RegionStream>(mapped.alias(), kind == Kind::kRelayed, -1, -1),
          reply);
    } else {
      endpoint = worker::make_shm_endpoint(mapped.alias());
      const std::vector<std::byte> record(512);
      EXPECT_TRUE(endpoint->publish_record(record, &error)) << error;
      channel = std::make_unique<client::ShmChannel>(
          mapped.alias(),
          kind == Kind::kShm ? wire::ChannelKind::kShm : wire::ChannelKind::kIvshmem, -1, -1);
    }
    worker::SessionPlan plan{};
    plan.merging = merging;
    session = std::make_unique<worker::Session>(driver.table, std::move(endpoint), std::move(plan));
    auto v = std::make_unique<worker::Vgpu>();
    v->gpu = &gpu;
    v->gate = std::make_unique<worker::Gate>(driver.table);
    v->window_begin = wire::kWindowsBegin;
    v->window_bytes = 1 << 30;
    session->vgpus.push_back(std::move(v));
    executor = std::make_unique<worker::Executor>(*session, [this](const process::End& why) {
      reason = why.reason;
      cause = why.cause;
      ended.give();
    });
  }

  void post_fill(unsigned value) {
    const wire::FillDevice f{0, wire::kWindowsBegin, 0, 1, 1, 4, value};
    send(wire::kFillDevice, wire::kNoLane, 0, &f, sizeof f);
  }
  // What a thread of the application does: false when the session ended meanwhile.
  bool exchange(uint16_t function, uint16_t lane, uint32_t sequence, uint32_t* status,
                const void* body = nullptr, size_t n = 0) {
    send(function, lane, sequence, body, n);
    client::Reply reply;
    const bool ok = channel->wait(lane, sequence, &reply);
    if (ok) *status = reply.status;
    return ok;
  }
  bool wait_idle(uint16_t lane, uint32_t sequence = 1) {
    const wire::DeviceIdle idle{0, 0};
    uint32_t status = 1;
    return exchange(wire::kDeviceIdle, lane, sequence, &status, &idle, sizeof idle) && status == 0;
  }
  void send(uint16_t function, uint16_t lane, uint32_t sequence, const void* body, size_t n,
            uint32_t context = 1) {
    std::lock_guard lock(append);
    const size_t size = wire::round_up(sizeof(wire::FrameHeader) + n, 8);
    std::byte* at = channel->reserve(size);
    ASSERT_NE(at, nullptr);
    const wire::FrameHeader h{static_cast<uint32_t>(size), function, lane, sequence, context};
    std::memcpy(at, &h, sizeof h);
    if (n) std::memcpy(at + sizeof h, body, n);
    channel->commit(size, lane != wire::kNoLane);
  }
  // The guest's doorbell process.
  void ring_for_guest() {
    std::thread([map = mapped.alias()] {
      for (auto& h = map.header();; channel::sleep_ns(100'000)) {
        if (h.doorbell.exchange(0) == 0) continue;
        h.wake.fetch_add(1);
        channel::futex_wake(h.wake);
      }
    }).detach();
  }

  SharedSlot slot;
  // For both ends: ThreadSanitizer knows memory by its address.
  channel::MappedSlot mapped;
  FakeDriver driver;
  worker::Gpu gpu;
  int client_socket = -1;
  std::unique_ptr<relay::Pump> pump;
  std::unique_ptr<client::Channel> channel;
  std::unique_ptr<worker::Session> session;
  std::unique_ptr<worker::Executor> executor;
  std::mutex append;
  Signal ended;
  std::string reason;
  wire::EndCause cause{};
};

// What the worker's threads touch outlives the test, as they do.
template <class T, class... A>
T& keep(A... a) {
  static auto* all = new std::vector<T*>();
  all->push_back(new T(a...));
  return *all->back();
}

inline std::string kind_name(const ::testing::TestParamInfo<Kind>& p) {
  const char* const names[] = {"shm", "ivshmem", "tcp", "relayed", "relayed_guest"};
  return names[static_cast<int>(p.param)];
}

}  // namespace sluice::test
