// SPDX-License-Identifier: Apache-2.0
// A stream as the application holds it, and the legacy default stream of each vGPU.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <vector>

#include "abi/cuda_driver.h"
#include "client/core/work_account.h"
#include "wire/bodies/commands.h"

namespace sluice::client {

struct Device;

struct Stream {
  Device* device = nullptr;
  uint64_t wire_id = 0;  // 0: the legacy default stream
  unsigned flags = 0;
  int priority = 0;
  uint64_t green = 0;   // the green context that it runs in
  bool orphan = false;  // … which is gone
  StreamWork work;
  // Under the lock of the device's pools: a mark that the stream was asked for.
  uint32_t probe = wire::kNoMark;
  uint64_t probe_value = 0, probe_work = 0;
  // The capture that it takes part in, 0: none. Changed under the captures' lock.
  alignas(8) uint64_t capture = 0;
  // The newest fence that its work comes after (core/fences.h).
  alignas(8) uint64_t fence = 0;
  // What it does is ordered by other means, and never behind another stream's (managed/memory.h).
  bool joins_nothing = false;
  std::vector<CUlaunchAttribute> attributes;  // that it was given
  // The newest records in it, in their order, as far as it is not known that they are done: ids of
  // events and their work. Under the lock of core/event_progress.h.
  struct Record {
    uint64_t event, work;
  };
  std::deque<Record> records;
};

// Whether what it is given goes into a graph, and is no work yet.
inline bool captures(Stream& stream) {
  return std::atomic_ref(stream.capture).load(std::memory_order_relaxed) != 0;
}

}  // namespace sluice::client
