// SPDX-License-Identifier: Apache-2.0
#include "worker/merge/merger.h"

#include <algorithm>

#include "channel/futex.h"
#include "process/log.h"

namespace sluice::worker::merge {

using wire::LeftSingle;

namespace {

// A piece that has come so often is recorded when it comes once more, and then made.
constexpr uint32_t kOften = 2, kOftenForced = 1;
// How long a held command waits for the next: a program's own work between two launches takes less.
constexpr uint64_t kHoldNs = 40'000, kHoldForcedNs = 20'000'000;
// A client that never pauses is made to wait for a piece after so many commands.
constexpr uint64_t kPatience = 1024;
constexpr uint32_t kMostLeftOut = 256;

}  // namespace

Merger::Merger(Session& session, Merging how, Runs runs)
    : session_(session),
      forced_(how == Merging::kForce),
      often_(forced_ ? kOftenForced : kOften),
      hold_ns_(forced_ ? kHoldForcedNs : kHoldNs),
      runs_(std::move(runs)),
      reader_(session),
      streams_(session) {
  session.figures.merging.single = std::make_unique<MergingFigures::ByFunction>();
}

Merger::~Merger() = default;

bool Merger::look_and_take(const Command& c, bool alone) {
  const Read r = reader_.read(c);
  auto& figures = session_.figures.merging;
  if (r.kind != Kind::kMergeable || alone) {
    leave(c, alone);
    if (!held_.empty()) run_held(LeftSingle::kCutShort);
    cut();
    if (r.kind == Kind::kEndsAll || r.kind == Kind::kEndsCopies)
      end_pieces(r.kind == Kind::kEndsAll);
    return false;
  }
  // What is only set belongs to whatever comes.
  const uint64_t stream = r.sets ? stream_ : r.stream;
  if (stream != stream_ || c.header.context != context_) {
    if (!held_.empty()) run_held(LeftSingle::kCutShort);
    cut();
    stream_ = stream;
    context_ = c.header.context;
  }
  if (!recogniser_.awake()) {
    if (!held_.empty()) run_held(LeftSingle::kCutShort);
    recogniser_.skip();
    figures.leave(LeftSingle::kUnseen);
    return false;
  }
  const uint64_t key = reader_.key(c, r);
  if (graph_ && !graph_->matches(held_.size(), c, key, r)) run_held(LeftSingle::kDiffering);
  if (recogniser_.at_beginning() && !graph_) begin_piece(c, r, key);
  if (recording_) {
    if (!r.sets) reader_.settings_of(c, &recorded_objects_, &recorded_before_);
    recorded_.add(c, key);
    recorded_reads_.push_back(r);
  }
  const bool holds = graph_ != nullptr;
  if (holds)
    held_.add(c, key);
  else
    figures.leave(LeftSingle::kNotMade);
  const auto piece = recogniser_.push(key, r.sets);
  if (holds) {
    held_until_ = channel::now_ns() + hold_ns_;
    if (held_.size() == graph_->size()) replay();
  }
  ended(piece);
  return holds;
}

void Merger::leave(const Command& c, bool alone) {
  auto& figures = session_.figures.merging;
  const uint16_t function = c.header.function;
  if (function < figures.single->size()) (*figures.single)[function].fetch_add(1);
  figures.leave(c.answered()                               ? LeftSingle::kAnswered
                : !alone && Reader::of_a_library(function) ? LeftSingle::kLibrary
                                                           : LeftSingle::kOther);
}

// Expects the piece that began so before, if it is made, or records it to be made.
void Merger::begin_piece(const Command& c, const Read& r, uint64_t key) {
  const uint64_t name = recogniser_.expected(key);
  if (!name) return;
  const auto at = pieces_.find(name);
  if (at != pieces_.end() && at->second.graph) {
    Piece& p = at->second;
    if (p.leave_out > 0) return void(--p.leave_out);
    if (!p.graph->matches(0, c, key, r)) return;
    following_ = name;
    graph_ = p.graph.get();
    return;
  }
  if (recogniser_.times(name) < often_ || waiting_.size() >= kMostWaiting) return;
  if (at != pieces_.end() && at->second.made >= kMostTries) return;
  const bool waits = std::ranges::any_of(waiting_, [&](const auto& w) { return w.name == name; });
  if (!waits) recording_ = name;
}

void Merger::ended(const std::optional<PieceSeen>& piece) {
  if (!piece) return;
  const bool works = !std::ranges::all_of(recorded_reads_, &Read::sets);
  if (recording_ == piece->name && recorded_.size() == piece->length && works) {
    waiting_.push_back({recording_, std::move(recorded_before_), std::move(recorded_),
                        std::move(recorded_reads_), commands_});
    recorded_before_ = {};
    recorded_ = {};
    recorded_reads_ = {};
  }
  forget_recorded();
  if (!waiting_.empty() && held_.empty() &&
      (forced_ || commands_ - waiting_.front().since > kPatience))
    work();
}

void Merger::forget_recorded() {
  recording_ = 0;
  recorded_before_.clear();
  recorded_objects_.clear();
  recorded_.clear();
  recorded_reads_.clear();
}

// What comes next follows nothing.
void Merger::cut() {
  ended(recogniser_.boundary());
  forget_recorded();
}

void Merger::let_go() {
  if (!held_.empty()) run_held(LeftSingle::kLate);
}

void Merger::run_held(LeftSingle why) {
  session_.figures.merging.leave(why, held_.size());
  if (const auto at = pieces_.find(following_); at != pieces_.end() && why == LeftSingle::kLate) {
    Piece& p = at->second;
    p.late = std::min(p.late + 1, 8u);
    if (!forced_) p.leave_out = std::min(1u << p.late, kMostLeftOut);
  }
  following_ = 0;
  graph_ = nullptr;
  Frames now;
  std::swap(now, held_);
  for (size_t i = 0; i < now.size(); ++i) runs_.one(now.at(i));
  now.clear();
  if (held_.empty()) std::swap(now, held_);  // its room
}

void Merger::replay() {
  Piece& p = pieces_[following_];
  CUresult status = CUDA_SUCCESS;
  if (!graph_->launch(held_, following_, &status)) {
    graph_ = nullptr;
    p.graph.reset();
    p.made = kMostTries;
    session_.figures.merging.refused.fetch_add(1);
    run_held(LeftSingle::kDiffering);
    return;
  }
  p.late = 0;
  p.used = ++launched_;
  session_.figures.merging.replayed.fetch_add(held_.size());
  session_.figures.merging.launches.fetch_add(1);
  const PieceGraph& graph = *graph_;
  graph_ = nullptr;
  following_ = 0;
  Frames now;
  std::swap(now, held_);
  size_t set = 0;
  for (size_t i = 0; i < now.size(); ++i) set += graph.sets(i);
  runs_.replayed(now.size() - set, status);
  // Behind the graph, which has what they say, so that the objects are as the client has them.
  for (size_t i = 0; set > 0 && i < now.size(); ++i)
    if (graph.sets(i)) runs_.one(now.at(i));
  now.clear();
  std::swap(now, held_);  // its room
}

void Merger::make_room() {
  if (pieces_.size() < kMostPieces) return;
  const auto oldest =
      std::ranges::min_element(pieces_, {}, [](const auto& entry) { return entry.second.used; });
  pieces_.erase(oldest);
}

void Merger::work() {
  Waiting w = std::move(waiting_.front());
  waiting_.pop_front();
  // What its libraries' objects were told since, and cannot be taken back for a moment, would be in
  // the graph and is not in its name.
  if (!reader_.same_now(w.before, w.frames, w.reads))
    return void(session_.figures.merging.stale.fetch_add(1));
  const bool launches_only = std::ranges::all_of(w.reads, &Read::launch);
  if (!launches_only && runs_.in_a_library())
    return void(session_.figures.merging.busy.fetch_add(1));
  if (!pieces_.contains(w.name)) make_room();
  Refusal why = Refusal::kNone;
  auto graph =
      PieceGraph::make(session_, streams_, w.before, std::move(w.frames), w.reads, reader_, &why);
  if (why == Refusal::kBusy)  // it is recorded again when it comes again
    return void(session_.figures.merging.busy.fetch_add(1));
  Piece& p = pieces_[w.name];
  ++p.made;
  p.used = launched_;
  p.graph = std::move(graph);
  if (p.graph) {
    session_.figures.merging.made.fetch_add(1);
    return;
  }
  session_.figures.merging.refused.fetch_add(1);
  if (why != Refusal::kRoom) p.made = kMostTries;
  process::log_info("a piece of " + std::to_string(w.reads.size()) +
                    " commands is not launched as a graph: reason " +
                    std::to_string(static_cast<int>(why)));
}

// What they name may be another thing from now on.
void Merger::end_pieces(bool all) {
  const auto concerned = [&](const Piece& p) {
    return p.graph && (all || !p.graph->launches_only());
  };
  for (auto& [name, p] : pieces_)
    if (concerned(p)) {
      p.graph.reset();
      session_.figures.merging.ended.fetch_add(1);
    }
  std::erase_if(waiting_, [&](const Waiting& w) {
    return all || !std::ranges::all_of(w.reads, &Read::launch);
  });
}

}  // namespace sluice::worker::merge
