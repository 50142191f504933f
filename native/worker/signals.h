// SPDX-License-Identifier: Apache-2.0
// Words by which graphs call host functions where the client shares no memory: pinned memory of the
// worker's that commands name by addresses which are nobody's (wire::kSignalBase). A graph writes
// `ready`, the client is told once (SignalWait), and SignalDone takes `ready` back and sets `done`.
// The leader makes the page; whoever waits looks on beside it.
#pragma once

#include <atomic>
#include <bitset>
#include <cstdint>
#include <mutex>
#include <vector>

#include "wire/graph_commands.h"
#include "worker/driver.h"

namespace sluice::worker {

class Session;

class Signals {
 public:
  Signals() = default;
  Signals(const Signals&) = delete;
  ~Signals();
  // The driver's address of a word; what names none of these stays as it is. 0: there is no memory.
  // A context is current.
  uint64_t at(Session& s, uint64_t address);
  // The other way.
  uint64_t named(uint64_t address) const;
  // Those that are ready and were not told yet.
  std::vector<uint64_t> take_ready(size_t most);
  // False: it was not told.
  bool finish(uint64_t address);

 private:
  std::atomic<uint64_t>* word(uint32_t index, uint32_t which) const {
    return page_.load() + index * (wire::kSignalBytes / sizeof(uint64_t)) + which;
  }
  std::atomic<std::atomic<uint64_t>*> page_{nullptr};
  const Driver* driver_ = nullptr;  // that gave it
  std::atomic<uint32_t> used_{0};   // words beyond were never named
  std::mutex mutex_;
  std::bitset<wire::kMaxSignals> told_;
};

}  // namespace sluice::worker
