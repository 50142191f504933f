// SPDX-License-Identifier: Apache-2.0
// The worker's side of turns on its GPUs (rule 11): reads the page that it shares with the arbiter,
// asks for a turn when something waits at a gate, and gives it back: when it is over, or when there
// is nothing to do and somebody else waits. A thread of its own drains the gates, so that it
// happens whether the client sends anything or not.
//
// Who is alone on its GPUs has nothing of all this: one load on the way of a launch.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "arbiter/turn_page.h"
#include "worker/memory_allowance.h"

namespace sluice::worker {

class Gate;

class TurnKeeper {
 public:
  // Keeps both descriptors, which become its own. nullptr with `error` when that is no page. A turn
  // is given back so long before its work is done, where that is known.
  static std::unique_ptr<TurnKeeper> open(int page, int bell, std::string* error,
                                          int64_t hand_over_ns = kHandOverNs);
  ~TurnKeeper();
  TurnKeeper(const TurnKeeper&) = delete;

  // All of them before start(), which is the last. False: there is no thread to be had.
  void add(Gate* gate) { gates_.push_back(gate); }
  [[nodiscard]] bool start();

  // Nobody divides these GPUs, or all run at once for now: gates need not ask.
  bool free() const {
    const int64_t until = page_->until.load(std::memory_order_relaxed);
    return until == arbiter::kAlone || until == arbiter::kTogether ||
           orphaned_.load(std::memory_order_relaxed);
  }
  // Others run at the same time, and are to have the GPU soon when that ends.
  bool together() const {
    return page_->until.load(std::memory_order_relaxed) == arbiter::kTogether;
  }

  struct Turn {
    uint32_t number;
    int64_t until;  // kNoTurn: there is none, or it is being given back
    bool is() const { return until != arbiter::kNoTurn; }
  };
  Turn current() const;

  // A thread that waits at a gate, for as long as this lives.
  class Waiting {
   public:
    explicit Waiting(TurnKeeper& keeper) : keeper_(keeper) { ++keeper_.waiting_; }
    ~Waiting() { --keeper_.waiting_; }
    Waiting(const Waiting&) = delete;

   private:
    TurnKeeper& keeper_;
  };
  // Asks for a turn and waits for a while for one. By one who is Waiting.
  void wait_for_turn();
  // What may still be begun in this turn has been: gives it back as soon as that has ended.
  void end_turn(uint32_t number);
  // Since when a turn is being given back that does not end, as something of it does not; 0: it is
  // not so. What then waits at a gate may be what that waits for.
  int64_t stuck_since() const { return stuck_since_.load(std::memory_order_relaxed); }

  // A rank here has issued less on a communicator than the arbiter has found another to have
  // (arbiter/gang.cc): what waits at a gate at the end of a turn passes until it has as much.
  bool behind() const;
  // Where collectives are counted (collectives.h). Each is followed by counted(): after the end of
  // a turn the arbiter hears of it.
  arbiter::TurnPage* page() { return page_; }
  void counted();

  // How much memory it may take, on GPUs of which more is promised than they have.
  MemoryAllowance& memory() { return memory_; }

  // The process ends, which takes the driver a while: nobody waits for that.
  void leave();

  int page_descriptor() const { return page_fd_; }
  int bell_descriptor() const { return bell_fd_; }

 private:
  // About what the arbiter and the next worker need to wake and to begin.
  static constexpr int64_t kHandOverNs = 250'000;

  TurnKeeper(int page_fd, int bell_fd, arbiter::TurnPage* page, int64_t hand_over_ns);
  void run();
  void look(uint32_t changes);
  void judge_arbiter(int64_t now);
  bool idle(int64_t now);
  void publish();
  void give_back_unused(uint32_t number, int64_t now);
  void give_back(uint32_t number);
  void return_turn(uint32_t number);
  void follow_rest(uint32_t number, int64_t expected);
  void ring();

  const int page_fd_, bell_fd_;
  const int64_t hand_over_ns_;
  arbiter::TurnPage* const page_;
  MemoryAllowance memory_;
  std::vector<Gate*> gates_;
  std::atomic<bool> orphaned_;   // no arbiter looks at the page
  std::atomic<int> waiting_{0};  // threads at gates
  std::atomic<bool> left_{false};
  std::atomic<uint32_t> ending_{0};  // the turn that is being given back; 0: none
  std::atomic<int64_t> stuck_since_{0};
  std::mutex asking_;       // of the worker's words on the page
  uint64_t launches_ = 0;   // as idle() last saw them
  int64_t used_at_ = 0;     // the last time that it saw the turn being used
  uint64_t unused_ns_ = 0;  // of turns, at their ends
};

}  // namespace sluice::worker
