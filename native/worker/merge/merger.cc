// SPDX-License-Identifier: Apache-2.0
#include "worker/merge/merger.h"

#include <algorithm>

#include "channel/futex.h"
#include "process/log.h"

namespace sluice::worker::merge {

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
      streams_(session) {}

Merger::~Merger() = default;

bool Merger::take(const Command& c, bool alone) {
  ++commands_;
  const Read r = reader_.read(c);
  auto& figures = session_.figures.merging;
  if (r.kind != Kind::kMergeable || alone) {
    if (c.header.function < figures.single.size()) figures.single[c.header.function].fetch_add(1);
    if (!held_.empty()) run_held(Why::kBoundary);
    cut();
    if (r.kind == Kind::kEndsAll || r.kind == Kind::kEndsCopies)
      end_pieces(r.kind == Kind::kEndsAll);
    return false;
  }
  if (r.stream != stream_ || c.header.context != context_) {
    if (!held_.empty()) run_held(Why::kBoundary);
    cut();
    stream_ = r.stream;
    context_ = c.header.context;
  }
  if (!recogniser_.awake()) {
    if (!held_.empty()) run_held(Why::kBoundary);
    recogniser_.skip();
    figures.unseen.fetch_add(1);
    return false;
  }
  const uint64_t key = reader_.key(c, r);
  if (graph_ && !graph_->matches(held_.size(), c, key, r)) run_held(Why::kDiffers);
  if (recogniser_.at_beginning() && !graph_) begin_piece(c, r, key);
  if (recording_) {
    recorded_.add(c, key);
    recorded_reads_.push_back(r);
  }
  const bool holds = graph_ != nullptr;
  if (holds) held_.add(c, key);
  const auto piece = recogniser_.push(key);
  if (holds) {
    held_until_ = channel::now_ns() + hold_ns_;
    if (held_.size() == graph_->size()) replay();
  }
  ended(piece);
  return holds;
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
  if (recording_ == piece->name && recorded_.size() == piece->length) {
    waiting_.push_back({recording_, std::move(recorded_), std::move(recorded_reads_), commands_});
    recorded_ = {};
    recorded_reads_ = {};
  }
  recording_ = 0;
  recorded_.clear();
  recorded_reads_.clear();
  if (!waiting_.empty() && held_.empty() &&
      (forced_ || commands_ - waiting_.front().since > kPatience))
    work();
}

// What comes next follows nothing.
void Merger::cut() {
  ended(recogniser_.boundary());
  recording_ = 0;
  recorded_.clear();
  recorded_reads_.clear();
}

void Merger::let_go() {
  if (!held_.empty()) run_held(Why::kLate);
}

void Merger::run_held(Why why) {
  auto& f = session_.figures.merging;
  const uint64_t n = held_.size();
  (why == Why::kLate ? f.late : why == Why::kDiffers ? f.differing : f.cut_short).fetch_add(n);
  if (const auto at = pieces_.find(following_); at != pieces_.end() && why == Why::kLate) {
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
    run_held(Why::kDiffers);
    return;
  }
  p.late = 0;
  p.used = ++launched_;
  graph_ = nullptr;
  following_ = 0;
  const size_t n = held_.size();
  held_.clear();
  session_.figures.merging.replayed.fetch_add(n);
  session_.figures.merging.launches.fetch_add(1);
  runs_.replayed(n, status);
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
  // What its libraries' objects were told since would be in the graph, and is not in its name.
  for (size_t i = 0; i < w.frames.size(); ++i)
    if (reader_.key(w.frames.at(i), w.reads[i]) != w.frames.key(i))
      return void(session_.figures.merging.stale.fetch_add(1));
  if (!pieces_.contains(w.name)) make_room();
  Refusal why = Refusal::kNone;
  auto graph =
      PieceGraph::make(session_, streams_, std::move(w.frames), w.reads, reader_.libraries(), &why);
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
