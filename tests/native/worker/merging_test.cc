// SPDX-License-Identifier: Apache-2.0
// What repeats is found, wherever it comes; what does not costs little and keeps nothing.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>
#include <span>
#include <vector>

#include "worker/merge/library_states.h"
#include "worker/merge/recogniser.h"

namespace sluice::worker::merge {
namespace {

using Keys = std::vector<uint64_t>;

Keys random_keys(std::mt19937_64& random, size_t n, uint64_t kinds) {
  Keys keys(n);
  for (uint64_t& key : keys) key = mix(random() % kinds, 7);
  return keys;
}

// Follows a recogniser as the worker does: of each piece its name says which keys it has.
class Follower {
 public:
  void push(uint64_t key) {
    if (!recogniser.awake()) {
      recogniser.skip();
      ++slept;
      begun_.clear();
      return;
    }
    if (recogniser.at_beginning()) {
      begun_.clear();
      expected_ = recogniser.expected(key);
    }
    begun_.push_back(key);
    take(recogniser.push(key));
  }
  void boundary() { take(recogniser.boundary()); }

  Recogniser recogniser;
  size_t slept = 0, in_pieces = 0, foretold = 0;
  std::map<uint64_t, Keys> pieces;

 private:
  void take(const std::optional<PieceSeen>& piece) {
    if (!piece) return;
    ASSERT_EQ(piece->length, begun_.size());
    ASSERT_GE(piece->length, Recogniser::kShortest);
    ASSERT_LE(piece->length, Recogniser::kLongest);
    const auto [at, fresh] = pieces.try_emplace(piece->name, begun_);
    ASSERT_EQ(at->second, begun_) << "a name stands for one content";
    in_pieces += piece->length;
    if (expected_ == piece->name) foretold += piece->length;
  }

  Keys begun_;
  uint64_t expected_ = 0;
};

TEST(Recogniser, ForetellsWhatRepeatsBetweenBoundaries) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const Keys program = random_keys(random, 20 + random() % 400, 1000);
    Follower f;
    constexpr int kTurns = 10;
    for (int turn = 0; turn < kTurns; ++turn) {
      for (const uint64_t key : program) f.push(key);
      f.boundary();
    }
    // All but the first turn, and of each the few at its end that are too few for a piece.
    EXPECT_GE(f.foretold + kTurns * Recogniser::kShortest, (kTurns - 1) * program.size());
    EXPECT_EQ(f.slept, 0u);
  }
}

// A period that no boundary shows, of a length that no piece has.
TEST(Recogniser, FindsAPeriodWithoutBoundaries) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const Keys program = random_keys(random, 101 + random() % 400, 1000);
    Follower f;
    constexpr int kTurns = 30;
    for (int turn = 0; turn < kTurns; ++turn)
      for (const uint64_t key : program) f.push(key);
    EXPECT_GE(f.foretold, kTurns * program.size() * 3 / 4);
  }
}

// What differs is known again behind the place where it differed.
TEST(Recogniser, FollowsAgainBehindAChange) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    Keys program = random_keys(random, 400, 1000);
    Follower f;
    size_t pushed = 0;
    for (int turn = 0; turn < 40; ++turn) {
      if (turn >= 10) program[random() % program.size()] = mix(random(), 9);
      for (const uint64_t key : program) f.push(key);
      pushed += program.size();
      f.boundary();
    }
    EXPECT_GE(f.foretold, pushed * 2 / 3);
  }
}

TEST(Recogniser, LooksAwayWhereNothingRepeats) {
  std::mt19937_64 random(1);
  Follower f;
  constexpr size_t kCommands = 1'000'000;
  for (size_t i = 0; i < kCommands; ++i) {
    f.push(random());
    if (i % 100'000 == 0) f.pieces.clear();
  }
  EXPECT_GE(f.slept, kCommands * 97 / 100);
  EXPECT_EQ(f.foretold, 0u);
  // And looks again: what repeats from now on is found.
  const Keys program = random_keys(random, 300, 1000);
  size_t pushed = 0;
  while (f.foretold == 0 && pushed < 300'000) {
    for (const uint64_t key : program) f.push(key);
    pushed += program.size();
  }
  EXPECT_GT(f.foretold, 0u);
}

TEST(Recogniser, CountsHowOftenAPieceCame) {
  Follower f;
  std::mt19937_64 random(3);
  const Keys program = random_keys(random, 6, 1000);
  for (int turn = 0; turn < 5; ++turn) {
    for (const uint64_t key : program) f.push(key);
    f.boundary();
  }
  for (const auto& [name, keys] : f.pieces) EXPECT_EQ(f.recogniser.times(name), 5u);
  EXPECT_EQ(f.recogniser.times(12345), 0u);
}

// What prepares a command and the command are of one piece, wherever the piece is cut.
TEST(Recogniser, EndsNoPieceBehindWhatPreparesTheNext) {
  std::mt19937_64 random(5);
  const Keys program = random_keys(random, 600, 1000);
  Recogniser r;
  size_t pieces = 0;
  for (int turn = 0; turn < 3; ++turn) {
    for (size_t i = 0; i < program.size(); ++i) {
      const bool prepares = i % 3 != 2;
      const auto piece = r.push(program[i], prepares);
      if (!piece) continue;
      EXPECT_FALSE(prepares);
      EXPECT_LE(piece->length, Recogniser::kLongest + 2);
      ++pieces;
    }
    r.boundary();
  }
  EXPECT_GT(pieces, 10u);
  // Something that never comes to what it prepares has an end nevertheless.
  uint32_t length = 0;
  for (uint64_t i = 0; length == 0 && i < 1000; ++i)
    if (const auto piece = r.push(i, true)) length = piece->length;
  EXPECT_EQ(length, Recogniser::kLongestOfAll);
}

class States : public ::testing::Test {
 protected:
  // A command that sets `what` of the object to `value`.
  void set(uint64_t id, uint64_t what, uint64_t value, bool answered = false, bool again = true) {
    const uint64_t body[] = {id, what, value};
    Command c;
    c.header = {sizeof c.header + sizeof body, function.id, wire::kNoLane, 0, 1};
    if (answered) c.header.lane = 3;
    c.body = std::as_bytes(std::span(body));
    states.set(id, what, function, c, again);
  }
  uint64_t value_of(uint64_t id, uint64_t what) {
    const auto frame = states.last(id, what, function.id);
    uint64_t value = 0;
    if (frame.size() >= sizeof(wire::FrameHeader) + 24)
      std::memcpy(&value, frame.data() + sizeof(wire::FrameHeader) + 16, 8);
    return value;
  }
  static wire::FunctionSpec spec() {
    wire::FunctionSpec f{};
    f.id = 1234;
    f.set_by = 1;
    return f;
  }

  const wire::FunctionSpec function = spec();
  LibraryStates states;
};

TEST_F(States, AnObjectIsWhatItWasToldLast) {
  states.made(1);
  set(1, 7, 10);
  const uint64_t ten = states.of(1);
  EXPECT_EQ(value_of(1, 7), 10u);
  set(1, 8, 5);
  const uint64_t both = states.of(1);
  set(1, 7, 11);
  EXPECT_NE(states.of(1), both);
  EXPECT_EQ(value_of(1, 7), 11u);
  set(1, 7, 10);
  EXPECT_EQ(states.of(1), both) << "the order of settings of different things says nothing";
  EXPECT_NE(both, ten);
  set(2, 7, 10);
  EXPECT_NE(states.of(2), ten) << "another object";
}

TEST_F(States, AnObjectThatIsMadeAnewIsAnother) {
  states.made(1);
  set(1, 7, 10);
  const uint64_t before = states.of(1), number = states.number_of(1);
  states.gone(1);
  EXPECT_EQ(states.of(1), 0u);
  EXPECT_EQ(states.number_of(1), 0u);
  EXPECT_TRUE(states.last(1, 7, function.id).empty());
  states.made(1);
  set(1, 7, 10);
  EXPECT_NE(states.of(1), before);
  EXPECT_NE(states.number_of(1), number);
}

// It may have been refused, so what the object is then is not known.
TEST_F(States, ASettingThatIsAnsweredIsLikeNone) {
  states.made(1);
  set(1, 7, 10);
  const uint64_t known = states.of(1);
  set(1, 7, 10, true);
  const uint64_t asked = states.of(1);
  EXPECT_NE(asked, known);
  EXPECT_TRUE(states.last(1, 7, function.id).empty()) << "what is not known cannot be told again";
  set(1, 7, 10, true);
  EXPECT_NE(states.of(1), asked);
  set(1, 7, 10);
  EXPECT_EQ(states.of(1), known);
}

TEST_F(States, WhatIsTriedChangesNothing) {
  states.made(1);
  states.made(2);
  set(1, 7, 10);
  const uint64_t before = states.of(1);
  LibraryStates tried = states.some({1, 3});
  EXPECT_EQ(tried.of(1), before);
  EXPECT_EQ(tried.of(2), 0u);
  const uint64_t body[] = {1, 7, 99};
  Command c;
  c.header = {sizeof c.header + sizeof body, function.id, wire::kNoLane, 0, 1};
  c.body = std::as_bytes(std::span(body));
  tried.set(1, 7, function, c, false);
  EXPECT_NE(tried.of(1), before);
  EXPECT_EQ(states.of(1), before);
  EXPECT_EQ(value_of(1, 7), 10u);
}

TEST_F(States, WhatIsKeptIsBounded) {
  states.made(1);
  set(1, 1, 1);
  constexpr uint64_t kFrame = sizeof(wire::FrameHeader) + 24;
  uint64_t kept = 0;
  // Each object has fewer than would make it forget what it was told.
  for (uint64_t i = 0; i < LibraryStates::kMostBytes / kFrame + 1000; ++i) {
    set(2 + i / 200, i % 200, i);
    kept += !states.last(2 + i / 200, i % 200, function.id).empty();
  }
  EXPECT_LE(kept * kFrame, LibraryStates::kMostBytes);
  EXPECT_GE(kept * kFrame, LibraryStates::kMostBytes - 2 * kFrame);
  // What goes makes room.
  states.gone(2);
  set(1, 1, 2);
  set(1, 2, 3);
  EXPECT_EQ(value_of(1, 2), 3u);
}

TEST(Recogniser, TakesNothingTooShortForAPiece) {
  Follower f;
  for (uint64_t turn = 0; turn < 10; ++turn) {
    for (uint64_t key = 1; key < Recogniser::kShortest; ++key) f.push(key);
    f.boundary();
  }
  EXPECT_TRUE(f.pieces.empty());
}

}  // namespace
}  // namespace sluice::worker::merge
