// SPDX-License-Identifier: Apache-2.0
// What one RDMA connection has registered of the memory that Sluice allocated (own_memory.h), in
// its own protection domain: in pieces, each when it is wanted first, no more than kMost at a time.
// The adapter sends bulk from there without a copy into the stage, under keys which the other side
// does not learn and which would let it do nothing; and where bulk is to be placed
// (rdma_placing.h), the other side gets a key of its own by which it may write the piece.
//
// Before the memory is freed its registrations go, once nothing that was posted needs them; where
// that does not come in time the connection is broken for it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "channel/own_memory.h"

struct ibv_mr;
struct ibv_pd;

namespace sluice::channel {

struct Verbs;

class RdmaRegistrations final : private OwnMemory::Holder {
 public:
  static constexpr size_t kMost = 64;
  static constexpr size_t kPiece = 16 << 20;  // bytes, from the beginning of an allocation

  struct Use {
    // Whether all that was posted up to this number has gone; `insist`: waits for that, and breaks
    // the connection where it does not come.
    std::function<bool(uint64_t number, bool insist)> passed;
    // Whether the other side may write somewhere yet.
    std::function<bool()> expects;
  };
  RdmaRegistrations(const Verbs& verbs, ibv_pd* domain, Use use);
  ~RdmaRegistrations();  // nothing is posted any more
  void end();            // nothing of `use` is asked any more
  RdmaRegistrations(const RdmaRegistrations&) = delete;

  enum class For { kSending, kPlacing };
  struct Source {
    size_t bytes;  // so many from there on are registered
    uint32_t key;  // of this side; for placing, of the other
    size_t place;  // for used()
  };
  // What may be sent straight from there, or placed there, of so many bytes. False: nothing, it has
  // to be copied.
  bool find(const void* at, size_t bytes, For what, Source* source);
  // Of what is sent: it is needed until this number has passed.
  void used(const Source& source, uint64_t number);

  size_t count() const;

 private:
  struct Registered {
    uint64_t begin = 0, bytes = 0;
    For what = For::kSending;
    ibv_mr* region = nullptr;  // nullptr: the place is free
    uint64_t needed_until = 0;
    uint64_t used_at = 0;  // the larger, the later
  };

  void let_go(const OwnMemory::Range& range) override;
  Registered* registered(uint64_t at, uint64_t begin, uint64_t bytes, For what);
  Registered* free_place();
  bool is_needed(const Registered& r) const;
  void drop(Registered& r);

  const Verbs& verbs_;
  ibv_pd* const domain_;
  const Use use_;
  const int owner_;  // its process: a child of it has nothing registered
  mutable std::mutex mutex_;
  std::vector<Registered> all_;
  uint64_t uses_ = 0;
  bool refused_ = false;  // no more may be locked, or the device takes no more
};

}  // namespace sluice::channel
