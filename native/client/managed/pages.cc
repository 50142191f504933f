// SPDX-License-Identifier: Apache-2.0
#include "client/managed/pages.h"

#include <algorithm>
#include <bit>
#include <vector>

namespace sluice::client {

namespace {

// Each run of accessible pages is a mapping to the kernel, which has room for some 65,000 in a
// process: pieces of large allocations are larger.
constexpr uint64_t kMostPieces = 4096;

uint64_t down(uint64_t at, uint64_t to) { return at / to * to; }
uint64_t up(uint64_t at, uint64_t to) { return (at + to - 1) / to * to; }

}  // namespace

ManagedPages::ManagedPages(uint64_t start, uint64_t bytes, State initial, PageMover& mover)
    : mover_(mover),
      states_(start, start + bytes, initial),
      first_piece_(std::max(kFirstPiece, std::bit_ceil(bytes / kMostPieces))) {}

bool ManagedPages::held() const {
  return states_.run_count() > 1 || states_.at(states_.begin()).value != State::kDevice;
}

bool ManagedPages::needs_fetch(uint64_t at, uint64_t bytes) const {
  bool some = false;
  states_.for_each(down(at, kPage), std::min(up(at + bytes, kPage), states_.end()),
                   [&](const auto& run) { some |= run.value == State::kDevice; });
  return some;
}

// Of `run`, in which `page` lies.
ManagedPages::Piece ManagedPages::piece(uint64_t page, const IntervalMap<State>::Run& run,
                                        uint64_t most) {
  most = std::max(most, first_piece_);
  Walk* walk = &walks_[0];
  Piece piece{};
  for (Walk& each : walks_) {
    const bool forward = each.size && page == each.to;
    const bool backward = each.size && page + kPage == each.from;
    if (forward || backward) {
      walk = &each;
      walk->size = std::min(walk->size * 2, most);
      piece = forward ? Piece{page, page + walk->size}
                      : Piece{page + kPage - std::min(page + kPage, walk->size), page + kPage};
      break;
    }
    if (each.used < walk->used) walk = &each;
  }
  if (piece.to == 0) {
    walk->size = first_piece_;
    piece.from = down(page, first_piece_);
    piece.to = piece.from + first_piece_;
  }
  piece.from = std::max(piece.from, run.from);
  piece.to = std::min(piece.to, run.to);
  walk->from = piece.from;
  walk->to = piece.to;
  walk->used = ++clock_;
  return piece;
}

// A range of one state, which is not yet accessible so.
bool ManagedPages::open(uint64_t from, uint64_t to, State state, bool write) {
  if (state == State::kDevice && !mover_.fetch(from, to - from)) return false;
  write |= state == State::kFresh;
  if (!mover_.protect(from, to - from,
                      write ? PageMover::Access::kWrite : PageMover::Access::kRead))
    return false;
  states_.set(from, to, write ? State::kWritten : State::kRead);
  return true;
}

bool ManagedPages::touch(uint64_t at, bool write) {
  const uint64_t page = down(at, kPage);
  const auto run = states_.at(page);
  // Somebody else has touched it meanwhile.
  if (run.value == State::kWritten || (run.value == State::kRead && !write)) return true;
  const Piece p = piece(page, run, run.value == State::kDevice ? kMostMoved : kMostUnmoved);
  return open(p.from, p.to, run.value, write);
}

bool ManagedPages::prepare(uint64_t at, uint64_t bytes, bool write) {
  std::vector<IntervalMap<State>::Run> runs;
  states_.for_each(down(at, kPage), std::min(up(at + bytes, kPage), states_.end()),
                   [&](const auto& run) {
                     if (run.value == State::kWritten || (run.value == State::kRead && !write))
                       return;
                     runs.push_back(run);
                   });
  for (const auto& run : runs)
    if (!open(run.from, run.to, run.value, write)) return false;
  return true;
}

bool ManagedPages::release(uint64_t at, uint64_t bytes) {
  const uint64_t from = down(at, kPage), to = std::min(up(at + bytes, kPage), states_.end());
  std::vector<IntervalMap<State>::Run> runs;
  states_.for_each(from, to, [&](const auto& run) {
    if (run.value != State::kDevice) runs.push_back(run);
  });
  // Access ends over neighbours at once.
  for (size_t i = 0; i < runs.size();) {
    size_t last = i;
    const auto accessible = [&](size_t each) { return runs[each].value != State::kFresh; };
    if (!accessible(i)) {
      ++i;
      continue;
    }
    while (last + 1 < runs.size() && accessible(last + 1) && runs[last].to == runs[last + 1].from)
      ++last;
    if (!mover_.protect(runs[i].from, runs[last].to - runs[i].from, PageMover::Access::kNone))
      return false;
    for (size_t each = i; each <= last; ++each) {
      const auto& run = runs[each];
      if (run.value == State::kWritten && !mover_.store(run.from, run.to - run.from)) {
        // What is not there stays here.
        mover_.protect(run.from, run.to - run.from, PageMover::Access::kWrite);
        return false;
      }
      states_.set(run.from, run.to, State::kDevice);
    }
    i = last + 1;
  }
  for (const auto& run : runs)
    if (run.value == State::kFresh) states_.set(run.from, run.to, State::kDevice);
  return true;
}

}  // namespace sluice::client
