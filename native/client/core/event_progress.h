// SPDX-License-Identifier: Apache-2.0
// What is known of events where no memory is shared, so that what an answer has told is not asked
// again. A stream's records are done in their order: one question to the node is of the event and
// of those that were recorded behind it, and those behind one that is not done are not done either.
// So a program that goes through all that is under way again and again, as PyTorch does for NCCL,
// waits for the node once each time. Only what the node has answered counts as done.
#pragma once

#include <cstdint>
#include <mutex>

#include "abi/cuda_driver.h"
#include "client/objects/event.h"

namespace sluice::client {

class Session;

class EventProgress {
 public:
  explicit EventProgress(Session& session) : session_(session) {}

  // Its newest record, in `event->stream`, was sent.
  void recorded(uint64_t id, Event* event);
  // It is about to be recorded anew, left to the driver or destroyed.
  void forget(uint64_t id, Event* event);
  // The stream is gone, and nobody finds it any more.
  void forget(Stream* stream);

  // Of an event that was recorded, and by no graph or capture.
  bool knows_done(Event* event);
  // CUDA_SUCCESS, CUDA_ERROR_NOT_READY, or what is wrong.
  CUresult query(uint64_t id, Event* event);

 private:
  static constexpr size_t kMostRecords = 256;  // of a stream; of older ones only the node knows

  // mutex_ held.
  bool done(const Event& event);
  void take_off(uint64_t id, Event* event);
  void take_off_until(Stream* stream, uint64_t work);
  void learn(Stream* stream, uint64_t upto);

  Session& session_;
  // Held while a question is sent: no event that it names is destroyed or recorded anew before it.
  std::mutex mutex_;
};

}  // namespace sluice::client
