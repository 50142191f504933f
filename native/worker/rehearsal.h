// SPDX-License-Identifier: Apache-2.0
// A thread runs commands once more to have them captured (worker/merge/piece_graph.h): for as long
// as this lives, the client's stream is another one to it, and what would end the session is
// remembered instead.
#pragma once

#include <cstdint>

#include "worker/driver.h"

namespace sluice::worker {

class Rehearsal {
 public:
  // `context` is the frames', which says whose default stream 0 is.
  Rehearsal(uint64_t stream, uint32_t context, CUstream instead)
      : stream_(stream), context_(context), instead_(instead) {
    current_ = this;
  }
  ~Rehearsal() { current_ = nullptr; }
  Rehearsal(const Rehearsal&) = delete;

  // This thread's; nullptr: it does what its client says.
  static Rehearsal* current() { return current_; }
  bool is(uint64_t stream, uint32_t context) const {
    return stream == stream_ && (stream != 0 || context == context_);
  }
  CUstream instead() const { return instead_; }

  void refuse() { refused_ = true; }
  bool refused() const { return refused_; }

 private:
  inline static constinit thread_local Rehearsal* current_ = nullptr;
  const uint64_t stream_;
  const uint32_t context_;
  const CUstream instead_;
  bool refused_ = false;
};

}  // namespace sluice::worker
