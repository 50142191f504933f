// SPDX-License-Identifier: Apache-2.0
// Notices that a session's commands repeat (docs/decisions/0015-merged-launches.md). Fed with a key
// of each command that may be merged and told of each boundary, it cuts what lies between
// boundaries into pieces, by content: the same commands are cut alike wherever they come, so a
// program needs no period that anybody finds. It counts how often each piece came, and says at the
// beginning of one which piece began so before.
//
// Knows no CUDA and allocates nothing once it is made: two tables of fixed size, whose least useful
// entries make way. Where nothing repeats it looks away for ever longer. One thread's alone.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

namespace sluice::worker::merge {

// Of two words one, in which every bit of both matters.
constexpr uint64_t mix(uint64_t a, uint64_t b) {
  const auto product =
      static_cast<unsigned __int128>(a ^ 0x9e3779b97f4a7c15ull) * (b ^ 0xe7037ed1a0b428dbull);
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

// A piece by its content: all keys of its commands, in order.
struct PieceSeen {
  uint64_t name = 0;
  uint32_t length = 0;  // commands
  uint32_t times = 0;   // that it came, with this one
};

class Recogniser {
 public:
  // Commands in a piece. The first ones after a boundary are short, as the GPU may have nothing to
  // do until they are there.
  static constexpr uint32_t kShortest = 4, kLongest = 48, kFirst = 8, kSecond = 16;
  // Commands that only prepare others do not end a piece before it has so many.
  static constexpr uint32_t kLongestOfAll = 2 * kLongest;

  Recogniser();

  // Whether it looks at the next command; if not, skip() instead of push().
  bool awake() const { return asleep_ == 0; }
  void skip() { --asleep_; }

  // Whether the next command begins a piece, and which piece last began with that key, after the
  // piece before it; 0: none is known.
  bool at_beginning() const { return length_ == 0; }
  uint64_t expected(uint64_t key) const;
  uint32_t times(uint64_t name) const;

  // A command that may be merged; what is returned ended with it. `prepares`: it belongs to the
  // next one.
  std::optional<PieceSeen> push(uint64_t key, bool prepares = false);
  // Whatever comes next does not follow what came before.
  std::optional<PieceSeen> boundary();

 private:
  static constexpr size_t kSets = 512, kWays = 4;
  static constexpr size_t kFollowers = 4096;
  // So many pieces without one that came before, and it looks away for that many commands; then for
  // twice as many after half as many pieces, … : what it has seen stays known meanwhile.
  static constexpr uint32_t kPatience = 128, kLeastPatience = 32;
  static constexpr uint32_t kFirstSleep = 1 << 10, kLongestSleep = 1 << 16;

  struct Entry {
    uint64_t name = 0;
    uint32_t times = 0;
    uint32_t used = 0;  // when it came last, in pieces
  };
  struct Follower {
    uint64_t begins = 0;  // the piece before and the first key
    uint64_t name = 0;
  };
  struct Tables {
    std::array<std::array<Entry, kWays>, kSets> seen;
    std::array<Follower, kFollowers> followers;
  };

  PieceSeen end();
  Entry& place_of(uint64_t name);
  void judge(bool came_before);

  const std::unique_ptr<Tables> tables_;
  uint64_t chain_ = 0;   // of the piece that has not ended
  uint64_t begins_ = 0;  // before_ and its first key
  uint64_t before_ = 0;  // the piece before it, 0 behind a boundary
  uint64_t last_ = 0, last_but_one_ = 0;
  uint32_t length_ = 0;
  uint32_t since_boundary_ = 0;  // pieces
  uint32_t pieces_ = 0;
  uint32_t news_ = 0;  // pieces in a row that had not come before
  uint32_t patience_ = kPatience;
  uint32_t sleep_ = kFirstSleep;
  uint32_t asleep_ = 0;
};

}  // namespace sluice::worker::merge
