// SPDX-License-Identifier: Apache-2.0
// Pinned buffers for frames that carry bulk data for the GPU over a network: the GPU reads the data
// from where it was received; over RDMA the client's adapter writes the data there. A buffer that
// it still reads is put aside until it has. Other frames never lie in one: what a driver or a
// library is given in pinned memory it may read later.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>

#include "wire/bodies/commands.h"
#include "wire/frame.h"
#include "worker/driver.h"

namespace sluice::worker {

struct BulkFrame {
  std::byte* at = nullptr;  // as many bytes as all of `owner`
  class BulkFrames* owner = nullptr;
  bool is_read = false;  // `read` says until when
  CUevent read = nullptr;
  uint32_t device = 0;  // of the event
};

class BulkFrames {
 public:
  // In front of the data: what is checked and decided on, which a client cannot write into.
  static constexpr size_t kHead = sizeof(wire::FrameHeader) + sizeof(wire::CopyToDevice);

  // Each of so many bytes, `most` of them; of large ones fewer are enough, as each takes longer to
  // receive than to be read.
  BulkFrames(const Driver& driver, size_t bytes, size_t most)
      : driver_(driver), bytes_(bytes), most_(most) {}

  // A buffer that nobody reads; waits for the oldest. nullptr: there is no memory. Where none can
  // be pinned, a large frame still has to be received somewhere.
  BulkFrame* take();
  // The same for a frame that comes later, without waiting; nullptr: there is none now.
  BulkFrame* take_ahead();
  // A copy on `stream` of the device, whose context is current, reads from it.
  CUresult read_by(BulkFrame& frame, CUstream stream, uint32_t device);
  void give_back(BulkFrame* frame);

 private:
  BulkFrame* add();  // mutex_ held

  const Driver& driver_;
  const size_t bytes_, most_;
  std::mutex mutex_;
  std::deque<BulkFrame> all_;
  std::deque<BulkFrame*> aside_;  // oldest first
};

}  // namespace sluice::worker
