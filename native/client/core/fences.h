// SPDX-License-Identifier: Apache-2.0
// What a synchronous call has promised of work whose end it did not wait for. A copy of pageable
// memory to the device returns when its bytes have left, and a stream that was given nothing but
// such copies and fills is synchronised without an answer: nothing on the host can tell. Other
// streams could, as CUDA has the work done when the call returns: whatever they are given later
// comes after it. So such a call sets a fence, and whoever gives another stream work joins that
// one to it first. Events and waits of the node; nothing is asked.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "abi/cuda_driver.h"
#include "client/core/work_account.h"
#include "client/objects/stream.h"

namespace sluice::client {

class Session;

class Fences {
 public:
  explicit Fences(Session& session) : session_(session) {}

  // All that any stream of its node is given from here on comes after what `stream` has been given.
  // `seen`: the host may notice when that is done.
  CUresult set(Stream* stream, bool seen);
  // For whoever is about to give `stream` work.
  CUresult join(Stream* stream) {
    const std::atomic_ref joined(stream->fence);
    if (joined.load(std::memory_order_acquire) == newest_.load(std::memory_order_acquire))
      return CUDA_SUCCESS;
    return catch_up(stream);
  }
  // Memory is about to be shown to other processes, or theirs to this one: their work joins
  // nothing, so what was promised is waited for, now and from here on.
  CUresult show_memory();
  bool memory_is_shown() const { return shown_.load(std::memory_order_acquire); }
  // The stream is about to go; its work may go on.
  void forget(const Stream* stream);

 private:
  struct Fence {
    const Stream* stream;  // nullptr: gone
    Device* device;
    bool apart;  // not ordered with the legacy stream
    bool legacy;
    bool seen;
    uint64_t event, number;
    StreamPoint point;
  };
  struct Spare {
    Device* device;
    uint64_t event;
  };
  static constexpr size_t kMany = 64;

  CUresult catch_up(Stream* stream);
  bool passed(const Fence& fence);
  uint64_t event_of(Device* device);
  void drop_passed();

  Session& session_;
  std::atomic<uint64_t> newest_{0};
  std::atomic<bool> shown_{false};
  std::mutex mutex_;  // held while waits are sent, so that nobody's work comes between
  std::vector<Fence> fences_;
  std::vector<Spare> spare_;
  size_t many_ = kMany;  // how many there may be before the node is asked which are done
};

}  // namespace sluice::client
