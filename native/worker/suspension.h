// SPDX-License-Identifier: Apache-2.0
// A session that stands still: its commands are kept back at a consistent cut (nothing captures,
// nothing runs on the GPU, no command is half done), then its memory goes to the host, and later
// everything goes on. The context stays on the GPU. The server says when (docs/protocol.md,
// `suspend`, `move_out`, `wake`) and hears of each step by `suspension`; each takes a thread of its
// own, so that the process answers and ends meanwhile as ever. What fails leaves the session as it
// was before the step, with a message; where that cannot be, the session ends.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "worker/executor.h"
#include "worker/memory_moves.h"

namespace sluice::worker {

class Suspension {
 public:
  using Values = std::map<std::string, std::string>;

  // `tell` sends a `suspension`; from any thread.
  Suspension(Session& session, Executor& executor, std::function<void(const Values&)> tell)
      : session_(session), executor_(executor), moves_(session), tell_(std::move(tell)) {}

  // Stops at a cut within so long, or goes on and says what was in the way.
  void suspend(uint64_t drain_ms);
  // Host memory for what is to move, a piece of it; the descriptor is its own.
  void take_memory(const HostArea::Piece& piece);
  // Chooses what is to be out, at least so much of each vGPU; nothing said: all. A `suspension`
  // says how much host memory that takes.
  void plan(const std::vector<uint64_t>& out);
  // Moves that there, or all that can be moved where nothing was planned. What is out may be
  // followed by more. `by`: whose order it is, for the next server.
  void move_out(const std::string& by);
  // Its context is about to leave the GPU: the driver forgets the host memory of what is out.
  void delist();
  // Its context is on other GPUs now than before, as the driver restored it there: by vGPU, UUIDs.
  void moved(const std::vector<std::string>& gpus);
  // Brings it back, if it is out, and goes on. `keep`: with the host memory of this move, for the
  // next; else all of that is given up.
  void wake(bool keep);
  // Gives up so much of the host memory that nothing is out in, or all of that; while it runs, too.
  void give_up(uint64_t bytes);

  // Where it is, for `status`.
  void show(Values* values) const;

 private:
  enum class State : uint8_t { kRunning, kStopping, kStopped, kMovingOut, kOut, kMovingIn };

  // Takes the step if that is where the session is, in a thread. False: it is not, and that was
  // said.
  bool begin(State from, State by, const char* what, std::function<void()> step);
  // `more`: what else is said of the step.
  void done(State state, const std::string& message = {}, const Values& more = {});
  std::string text(State state) const;
  Values values(State state) const;

  void stop(uint64_t until_ns);
  // What is in the way of a cut right now, with nothing begun any more; empty: nothing is.
  std::string in_the_way(uint64_t until_ns);
  bool all_idle(CUresult* failed);
  std::vector<HostArea::Piece> take_pieces();
  uint64_t plan_moves(const std::vector<uint64_t>& out);
  void show_moves();
  void forget(bool keep);
  void end(const std::string& why);

  Session& session_;
  Executor& executor_;
  std::mutex moving_;  // the moves; taken before the other
  MemoryMoves moves_;
  const std::function<void(const Values&)> tell_;
  mutable std::mutex mutex_;  // what follows
  State state_ = State::kRunning;
  // MiB, by vGPU, once it stands still.
  struct Figures {
    uint64_t staying, movable, out, exported;
  };
  std::map<uint32_t, Figures> figures_;
  uint64_t movable_ = 0, planned_ = 0, fresh_ = 0, kept_ = 0;
  bool is_planned_ = false;
  std::string by_;
  std::vector<HostArea::Piece> host_;  // that it was given and has not used yet
};

}  // namespace sluice::worker
