// SPDX-License-Identifier: Apache-2.0
// What the sessions of one job have of their grant's memory: a page of words that the server makes
// and gives to the worker of each session. A word belongs to one session, by kind of memory and
// vGPU: its worker alone changes it while it lives, and the server clears it once the process has
// ended. What a vGPU has in use is the sum of its words, taken under a lock that the kernel drops
// with its holder, so that a worker killed anywhere in here leaves nothing to be mended: take()
// adds to one word, or does not. The page holds nothing that is believed: how much there is to
// share out says the server, in the session's own message. A worker that was taken over can spoil
// its own job's ledger and no others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "wire/protocol.h"

namespace sluice::worker {

class GrantLedger {
 public:
  // The page, as server/sessions/grant_ledgers.py makes it (native/api/protocol.yaml): a header,
  // then words by kind, vGPU and slot.
  static constexpr uint64_t kMagic = wire::kLedgerMagic;
  static constexpr size_t kHeaderBytes = wire::kLedgerHeaderBytes;
  static constexpr uint32_t kKinds = wire::kLedgerKinds, kVgpus = wire::kMaxDevices,
                            kSlots = wire::kLedgerSlots;
  static constexpr size_t kBytes =
      kHeaderBytes + sizeof(uint64_t) * size_t{kKinds} * kVgpus * kSlots;
  using Kind = wire::LedgerKind;

  // Keeps `fd`, which becomes its own. nullptr with `error` when that is no ledger.
  static std::unique_ptr<GrantLedger> open(int fd, uint32_t slot, std::string* error);
  ~GrantLedger();
  GrantLedger(const GrantLedger&) = delete;

  // False: the job has so much in use that this would exceed `limit`.
  bool take(Kind kind, uint32_t vgpu, uint64_t bytes, uint64_t limit);
  void give(Kind kind, uint32_t vgpu, uint64_t bytes);
  // By all sessions of the job.
  uint64_t used(Kind kind, uint32_t vgpu) const;
  int descriptor() const { return fd_; }

 private:
  GrantLedger(int fd, uint32_t slot, uint64_t* words) : fd_(fd), slot_(slot), words_(words) {}
  uint64_t* word(Kind kind, uint32_t vgpu, uint32_t slot) const;

  const int fd_;
  const uint32_t slot_;
  uint64_t* const words_;
  std::mutex mutex_;  // the lock on the page holds between processes only
};

}  // namespace sluice::worker
