// SPDX-License-Identifier: Apache-2.0
// What a command is to merging: whether it may be part of a piece, and by which key it is known
// again; what it ends otherwise. The list of what a piece may hold is here and nowhere else
// (docs/decisions/0015-merged-launches.md says why). Sees every command of the session in order, as
// it remembers what libraries' objects were told. Checks nothing: the handlers do.
#pragma once

#include <cstdint>
#include <set>
#include <span>

#include "worker/dispatch.h"
#include "worker/merge/frames.h"
#include "worker/merge/library_states.h"

namespace sluice::worker::merge {

enum class Kind : uint8_t {
  kMergeable,
  kBoundary,    // nothing is held behind it, and no piece goes over it
  kEndsCopies,  // and pieces that hold more than launches end, as memory goes or moves
  kEndsAll,     // and all pieces end
};

struct Read {
  Kind kind = Kind::kEndsAll;
  bool launch = false;  // one kernel, whose parameters may change
  uint64_t stream = 0;  // where its work goes
  size_t varying = 0,
         varying_end = 0;  // the bytes of its body that may change: a kernel's parameters
  bool sets = false;       // tells a library's object something, and gives the GPU nothing to do
};

class Reader {
 public:
  explicit Reader(const Session& session) : session_(session) {}

  Read read(const Command& c);
  // Of one that may be merged: of all that is to be the same when it comes again.
  uint64_t key(const Command& c, const Read& r) const { return key(c, r, libraries_); }
  // Adds what the objects of a library's call were told so far, but for those of `known`, to which
  // they are added.
  void settings_of(const Command& c, std::set<uint64_t>* known, Frames* to) const;
  // Whether commands would be what they were by these keys if they ran once more now, behind
  // `before`: calls of libraries depend on what their objects were told, before them and by them.
  bool same_now(const Frames& before, const Frames& frames, std::span<const Read> reads) const;
  // The last command that set what this one sets. Empty: it cannot be made once more.
  std::span<const std::byte> told_last(const Command& c) const;
  static bool of_a_library(uint16_t function);
  const LibraryStates& libraries() const { return libraries_; }

 private:
  Read read_launch(const Command& c) const;
  Read read_memory(const Command& c) const;
  Read read_library(const Command& c);
  uint64_t key(const Command& c, const Read& r, const LibraryStates& libraries) const;
  bool in_window(uint64_t address) const;
  bool stays_valid(const wire::FunctionSpec& function, const Command& c) const;

  const Session& session_;
  LibraryStates libraries_;
  std::set<uint64_t> peculiar_;  // streams with attributes, which a graph's nodes would not have
};

}  // namespace sluice::worker::merge
