// SPDX-License-Identifier: Apache-2.0
// Connections beside a session's own, which carry nothing but bulk: a piece goes in slices, one
// over each subflow, sent and received by as many threads at once. What a piece is and where it
// belongs is said on the session's own connection (resumable_stream.h), so that frames do not wait
// behind it.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "channel/stream.h"
#include "channel/thread.h"
#include "wire/protocol.h"

namespace sluice::channel {

class Subflows {
 public:
  static constexpr uint32_t kMost = wire::kMaxBulkConnections;
  static constexpr size_t kLeastSlice = 64 << 10;  // bytes

  Subflows() = default;
  Subflows(const Subflows&) = delete;
  // The sockets are closed with it. Nobody sends or receives any more.
  ~Subflows();

  // The one with that number, from 0. False: there is one, it is none of kMost, or all were cut;
  // then the socket is closed. It is used as soon as all before it are there.
  bool add(uint32_t number, int socket, std::unique_ptr<Stream> stream);
  // How many there are for a piece of so many bytes; 0 or 1: it is not worth it.
  uint32_t count_for(size_t bytes) const;
  // All of it over the first so many subflows. One thread sends at a time, and one receives. False:
  // a subflow is lost, and all are cut.
  bool send(const std::byte* data, size_t bytes, uint32_t subflows);
  // The same, but only some of it has been sent when it comes back: the rest is read until finish()
  // or abandon() comes back, or is kept by `held`. What is lost then shows in the next.
  bool send_ahead(const std::byte* data, size_t bytes, uint32_t subflows,
                  const std::shared_ptr<const void>& held);
  // Waits some seconds for subflows that the other side has already and this one has not.
  bool receive(std::byte* to, size_t bytes, uint32_t subflows);
  // Grows as something is received.
  uint64_t arrivals() const { return arrivals_.load(std::memory_order_relaxed); }
  // Whoever sends or receives comes back with false, now and ever after.
  void cut();
  bool lost() const { return cut_.load(std::memory_order_relaxed); }
  // What was sent ahead before is not read any more when it comes back.
  void finish();
  // The same, of what is cut by it.
  void abandon();

 private:
  struct Slice {
    std::byte* at = nullptr;
    size_t bytes = 0;
    std::shared_ptr<const void> held;  // until it has been carried
  };
  // Of one subflow, in one direction: a thread with what it has to carry. Connections are not
  // equally fast at every moment: with some slices ahead no piece waits for the slowest of the one
  // before.
  struct Hand {
    static constexpr uint32_t kAhead = 4;
    std::array<Slice, kAhead> slices;
    std::atomic<uint32_t> posted{0}, done{0};  // of slices, ever
    Thread thread;
  };
  struct Subflow {
    int socket = -1;
    std::unique_ptr<Stream> stream;
    Hand sends, receives;
  };

  enum class Carries : uint8_t { kSends, kSendsAhead, kReceives };
  bool carry(std::byte* at, size_t bytes, uint32_t subflows, Carries what,
             const std::shared_ptr<const void>& held = {});
  void carry_slice(Subflow& subflow, Slice& slice, bool sends);
  void work(Subflow& subflow, bool sends);
  static void post(Hand& hand, Slice slice);
  static void await(Hand& hand, uint32_t done);

  std::array<Subflow, kMost> subflows_;
  std::atomic<uint32_t> count_{0};  // in a row from the first
  std::atomic<bool> cut_{false}, over_{false};
  std::atomic<uint64_t> arrivals_{0};
  std::mutex mutex_;  // of adding and cutting
  std::condition_variable added_;
};

}  // namespace sluice::channel
