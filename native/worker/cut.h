// SPDX-License-Identifier: Apache-2.0
// Where a session stands still (suspension.h): from close() on no command begins, and those that
// have begun are done, or wait where nothing of them is half done as far as memory and the GPU are
// concerned: before they run, for memory that they may take, or at a gate for a turn. The executor
// closes and opens it and counts commands; who waits in such a place is KeptBack meanwhile. Owned
// by the session.
//
// What goes on is counted as running before it is looked whether it may, and close() looks the
// other way round: one of the two sees what the other did.
#pragma once

#include <atomic>
#include <cstdint>

#include "channel/futex.h"

namespace sluice::worker {

class Cut {
 public:
  void close() { closed_.store(1, std::memory_order_seq_cst); }
  void open() {
    closed_.store(0, std::memory_order_seq_cst);
    channel::futex_wake(closed_, 1 << 20);
  }
  bool closed() const { return closed_.load(std::memory_order_seq_cst) != 0; }
  void wait_until_open() {
    while (closed()) channel::futex_wait(closed_, 1);
  }

  // Commands that are kept back.
  uint64_t kept_back() const { return kept_back_.load(std::memory_order_seq_cst); }

  // This thread has begun a command, and is done with one: a merged launch stands for many. One
  // that runs no command, as a library's own, is never kept back.
  static void begun() { ++t_commands; }
  static void done() { --t_commands; }
  static bool runs_command() { return t_commands > 0; }

  // While this thread waits where all that it has begun may stand still. Afterwards it looks
  // whether the cut is closed.
  class KeptBack {
   public:
    explicit KeptBack(Cut& cut) : cut_(cut), commands_(t_commands) {
      cut_.kept_back_.fetch_add(commands_, std::memory_order_seq_cst);
    }
    ~KeptBack() { cut_.kept_back_.fetch_sub(commands_, std::memory_order_seq_cst); }
    KeptBack(const KeptBack&) = delete;

   private:
    Cut& cut_;
    const uint64_t commands_;
  };

  // Until it is open, if this thread comes to where it may wait and finds it closed.
  void stand_back() {
    while (closed()) {
      const KeptBack kept(*this);
      wait_until_open();
    }
  }

 private:
  static inline thread_local uint64_t t_commands = 0;

  std::atomic<uint32_t> closed_{0};
  std::atomic<uint64_t> kept_back_{0};
};

}  // namespace sluice::worker
