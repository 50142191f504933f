// SPDX-License-Identifier: Apache-2.0
// The worker's side of memory on GPUs of which more is promised than they have: shows on the page
// that it shares with the arbiter what the session has taken and asks for, and waits until it may
// have it (arbiter/turn_page.h, MemoryWords; docs/oversubscription.md). Part of TurnKeeper, called
// by the executor before a command runs; where nothing is bounded it costs a few stores.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "arbiter/turn_page.h"

namespace sluice::worker {

class MemoryAllowance {
 public:
  // `ring` has the arbiter look.
  MemoryAllowance(arbiter::MemoryWords& words, std::function<void()> ring)
      : words_(words), ring_(std::move(ring)) {
    words_.spoken.store(1, std::memory_order_release);
  }

  // The word that a vGPU's accounting writes: what is taken, and of that what never moves. nullptr:
  // there are as many vGPUs that nobody is asked for them.
  std::atomic<uint64_t>* taken(uint32_t vgpu) {
    return vgpu < arbiter::kMemoryPlaces ? &words_.taken[vgpu] : nullptr;
  }
  std::atomic<uint64_t>* staying(uint32_t vgpu) {
    return vgpu < arbiter::kMemoryPlaces ? &words_.staying[vgpu] : nullptr;
  }

  // About to take so much; then may_take() says whether it may. By one thread at a time.
  void ask(uint32_t vgpu, uint64_t bytes);
  bool may_take() const;
  // Whether it is asked for what it takes of a vGPU.
  bool bounded(uint32_t vgpu) const;
  // Whether what it has taken is more than it may have by now, as libraries take without asking.
  bool over(uint32_t vgpu) const;
  // It has it, or did without.
  void asked() { words_.asked.store(0, std::memory_order_seq_cst); }

  // A command waits, for memory or for its session to come back: the arbiter hears of it.
  class Waiting {
   public:
    explicit Waiting(MemoryAllowance& room) : room_(room) {
      room_.words_.waits.fetch_add(1, std::memory_order_seq_cst);
      room_.words_.calls.fetch_add(1, std::memory_order_seq_cst);
      room_.ring_();
    }
    ~Waiting() { room_.words_.waits.fetch_sub(1, std::memory_order_seq_cst); }
    Waiting(const Waiting&) = delete;

   private:
    MemoryAllowance& room_;
  };
  // For a while, or until the arbiter has changed something since `changes`.
  uint32_t changes() const { return words_.changes.load(std::memory_order_seq_cst); }
  void wait(uint32_t changes) const;

  // A command begins, by the one thread that takes them; one is done, by any.
  void begin() {
    words_.begun.store(words_.begun.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
  void end() { words_.done.fetch_add(1, std::memory_order_relaxed); }

 private:
  arbiter::MemoryWords& words_;
  const std::function<void()> ring_;
};

}  // namespace sluice::worker
