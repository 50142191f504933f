// SPDX-License-Identifier: Apache-2.0
// Pinned memory through which data for an answer passes: the driver copies into it at bus speed,
// and it is sent from there, over RDMA by the adapter itself (channel/own_memory.h). Bounded for
// the session, as a client may ask on every lane and read none of the answers: who finds no room
// waits until an answer has gone. Only commands that let others pass them ask.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>

#include "worker/driver.h"

namespace sluice::worker {

class Bounces {
 public:
  static constexpr size_t kMostBytes = 256 << 20;  // many times the largest answer

  explicit Bounces(const Driver& driver) : driver_(driver) {}
  Bounces(const Bounces&) = delete;
  ~Bounces();

  // At least so many bytes, until the last copy of the pointer goes. nullptr: there are none.
  std::shared_ptr<std::byte> take(size_t bytes);

 private:
  std::byte* find(size_t bytes, bool* refused);  // mutex_ held
  void release(std::byte* at);
  void give_back(std::byte* at, size_t bytes);

  const Driver& driver_;
  std::mutex mutex_;
  std::condition_variable given_back_;
  std::multimap<size_t, std::byte*> free_;  // by size
  size_t all_bytes_ = 0;                    // free or not
};

}  // namespace sluice::worker
