// SPDX-License-Identifier: Apache-2.0
// Pinned buffers for frames that carry bulk data for the GPU over a network: the GPU reads the data
// from where it was received. A buffer that it still reads is put aside until it has. Other frames
// never lie in one: what a driver or a library is given in pinned memory it may read later.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>

#include "worker/driver.h"

namespace sluice::worker {

struct BulkFrame {
  std::byte* at = nullptr;  // kMaxFrameBytes
  bool is_read = false;     // `read` says until when
  CUevent read = nullptr;
  uint32_t device = 0;  // of the event
};

class BulkFrames {
 public:
  explicit BulkFrames(const Driver& driver) : driver_(driver) {}

  // A buffer that nobody reads; waits for the oldest. nullptr: there is no pinned memory.
  BulkFrame* take();
  // A copy on `stream` of the device, whose context is current, reads from it.
  CUresult read_by(BulkFrame& frame, CUstream stream, uint32_t device);
  void give_back(BulkFrame* frame);

 private:
  static constexpr size_t kBuffers = 4;  // enough to receive into one while others are read

  const Driver& driver_;
  std::mutex mutex_;
  std::deque<BulkFrame> all_;
  std::deque<BulkFrame*> aside_;  // oldest first
};

}  // namespace sluice::worker
