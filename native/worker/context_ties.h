// SPDX-License-Identifier: Apache-2.0
// What a session's context has, or has had, in common with other processes: one with any of these
// must not be taken off the GPU by the driver's checkpoint, as it is never restored, or as nobody
// knows (docs/decisions/0012). A tie stays for as long as the process lives: what comes of one that
// has been undone is not known either. Handlers tie before they do what ties; suspension.h tells
// the server of it.
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>

namespace sluice::worker {

enum class Tie : uint32_t {
  kOpenedMemory,  // of another process
  kOpenedEvents,  // the same
  kCommunicator,  // NCCL's, with more than one rank
  kSeveralGpus,
  kOtherNodes,
  kMps,
};

class ContextTies {
 public:
  void tie(Tie tie) { ties_.fetch_or(1u << static_cast<uint32_t>(tie), std::memory_order_relaxed); }

  // Of the first, as native/api/control.yaml has it (`context_tie`); "": nothing ties it.
  const char* name() const {
    constexpr const char* kNames[] = {
        "", "opened_memory", "opened_events", "communicator", "several_gpus", "other_nodes", "mps"};
    const uint32_t ties = ties_.load(std::memory_order_relaxed);
    return kNames[ties == 0 ? 0 : std::countr_zero(ties) + 1];
  }

 private:
  std::atomic<uint32_t> ties_{0};
};

}  // namespace sluice::worker
