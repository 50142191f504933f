// SPDX-License-Identifier: Apache-2.0
// Launches as graphs what a session's program repeats (docs/decisions/0015-merged-launches.md).
// Called by the executor's leader before each command: it may hold the command, as part of a piece
// that is expected; when the piece is whole it is launched as a graph, else its commands run one by
// one, in order, as if they had not been held. So a command that is held never waits for anything
// but the next command, and that for a few microseconds.
//
// The leader's alone, as all that it owns.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <unordered_map>
#include <vector>

#include "worker/merge/frames.h"
#include "worker/merge/piece_graph.h"
#include "worker/merge/reader.h"
#include "worker/merge/recogniser.h"
#include "worker/session_plan.h"

namespace sluice::worker::merge {

class Merger {
 public:
  // What the executor does with commands: runs one and says what came of it, and hears of so many
  // that a graph stood for. And whether another thread is in a call of a library, which may use
  // what a piece that is made tells its objects for a moment.
  struct Runs {
    std::function<void(const Command&)> one;
    std::function<void(size_t, CUresult)> replayed;
    std::function<bool()> in_a_library;
  };
  Merger(Session& session, Merging how, Runs runs);
  ~Merger();

  // A command that is about to run. True: it was taken, and has run or is held. False: it is to run
  // now, and nothing is held. `alone`: it may not be held, whatever it is.
  bool take(const Command& c, bool alone) {
    ++commands_;
    // A launch ends no piece and tells no object anything: where nobody looks it is not read.
    if (recogniser_.awake() || alone || c.header.function != wire::kLaunch || c.answered() ||
        holding())
      return look_and_take(c, alone);
    recogniser_.skip();
    session_.figures.merging.leave(wire::LeftSingle::kUnseen);
    return false;
  }
  bool holding() const { return !held_.empty(); }
  // Until when what is held may wait for the next command, by channel::now_ns().
  uint64_t held_until() const { return held_until_; }
  // The next command does not come in time, or comes never: what is held runs.
  void let_go();
  // The client has sent nothing for a moment: makes one piece, if any waits to be made.
  bool has_work() const { return !waiting_.empty(); }
  void work();

 private:
  bool look_and_take(const Command& c, bool alone);

  struct Piece {
    std::unique_ptr<PieceGraph> graph;
    uint32_t made = 0;       // times that it was tried
    uint32_t late = 0;       // times in a row that its commands did not come in time
    uint32_t leave_out = 0;  // times that it is not expected, after that
    uint32_t used = 0;       // when it was launched last
  };
  struct Waiting {
    uint64_t name;
    Frames before;  // what objects were told that its calls name
    Frames frames;
    std::vector<Read> reads;
    uint64_t since;  // commands
  };
  // Of each session: pieces, those that wait to be made, and how often one is tried.
  static constexpr size_t kMostPieces = 512, kMostWaiting = 64;
  static constexpr uint32_t kMostTries = 4;

  void begin_piece(const Command& c, const Read& r, uint64_t key);
  void replay();
  void run_held(wire::LeftSingle why);
  // It runs by itself, and the reader or the executor says that it must.
  void leave(const Command& c, bool alone);
  void ended(const std::optional<PieceSeen>& piece);
  void cut();
  void forget_recorded();
  void end_pieces(bool all);
  void make_room();

  Session& session_;
  const bool forced_;
  const uint32_t often_;    // times that a piece came before it is recorded
  const uint64_t hold_ns_;  // for the next command
  const Runs runs_;
  Reader reader_;
  Recogniser recogniser_;
  CaptureStreams streams_;
  std::unordered_map<uint64_t, Piece> pieces_;

  // The piece whose commands are held.
  Frames held_;
  uint64_t following_ = 0;
  PieceGraph* graph_ = nullptr;
  uint64_t held_until_ = 0;
  // The run of commands of one stream that the recogniser is in.
  uint64_t stream_ = 0;
  uint32_t context_ = 0;
  // The piece that is recorded as it comes.
  uint64_t recording_ = 0;
  Frames recorded_, recorded_before_;
  std::set<uint64_t> recorded_objects_;
  std::vector<Read> recorded_reads_;
  std::deque<Waiting> waiting_;
  uint64_t commands_ = 0;
  uint32_t launched_ = 0;
};

}  // namespace sluice::worker::merge
