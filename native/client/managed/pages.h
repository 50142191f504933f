// SPDX-License-Identifier: Apache-2.0
// The pages of one managed allocation, as the program's CPU sees them: which it holds, which the
// device has, and how much is moved when one is touched. No I/O of its own: a mover fetches, stores
// and protects, and the caller serialises. Promises: a page that the program may read has the
// newest bytes, a page that it has written is stored before it is given up, and no page becomes
// accessible before it is filled.
//
//   kDevice   the device has it: no access here
//   kFresh    nobody has written it: no access here, nothing to fetch and nothing to store
//   kRead     both have the same: may be read here
//   kWritten  written here, or about to be: may be read and written
#pragma once

#include <array>
#include <cstdint>

#include "client/managed/interval_map.h"

namespace sluice::client {

class PageMover {
 public:
  enum class Access { kNone, kRead, kWrite };
  virtual ~PageMover() = default;
  // Ranges are of whole pages. False: it failed, and nothing has changed.
  virtual bool fetch(uint64_t at, uint64_t bytes) = 0;  // from the device
  virtual bool store(uint64_t at, uint64_t bytes) = 0;  // to the device
  virtual bool protect(uint64_t at, uint64_t bytes, Access access) = 0;
};

class ManagedPages {
 public:
  static constexpr uint64_t kPage = 4096;
  // What one touch moves: the first is small, each that follows where the last one ended is twice
  // as large. Where nothing is moved the limit is a larger one.
  static constexpr uint64_t kFirstPiece = 64 << 10;
  static constexpr uint64_t kMostMoved = 8 << 20;
  static constexpr uint64_t kMostUnmoved = 32 << 20;

  enum class State : uint8_t { kDevice, kFresh, kRead, kWritten };

  // [start, start + bytes), in whole pages, nothing of it accessible yet.
  ManagedPages(uint64_t start, uint64_t bytes, State initial, PageMover& mover);

  State state(uint64_t at) const { return states_.at(at).value; }
  // Whether there is anything that release() would change.
  bool held() const;
  size_t run_count() const { return states_.run_count(); }
  // Whether any of it would have to be fetched before the program may use it.
  bool needs_fetch(uint64_t at, uint64_t bytes) const;

  // The page of `at` was touched: it becomes accessible, and with it what is likely next.
  bool touch(uint64_t at, bool write);
  // All of the range becomes accessible, and nothing else.
  bool prepare(uint64_t at, uint64_t bytes, bool write);
  // The device is to have all pages of the range: what was written is stored, and access ends
  // before that.
  bool release(uint64_t at, uint64_t bytes);

 private:
  // A sequence of touches, each where the last one's piece ended.
  struct Walk {
    uint64_t from = 0, to = 0;  // the last piece
    uint64_t size = 0;
    uint64_t used = 0;  // when
  };
  struct Piece {
    uint64_t from, to;
  };

  Piece piece(uint64_t page, const IntervalMap<State>::Run& run, uint64_t most);
  bool open(uint64_t from, uint64_t to, State state, bool write);

  PageMover& mover_;
  IntervalMap<State> states_;
  uint64_t first_piece_;
  std::array<Walk, 8> walks_{};
  uint64_t clock_ = 0;
};

}  // namespace sluice::client
