// SPDX-License-Identifier: Apache-2.0
// What repeats is found, wherever it comes; what does not costs little and keeps nothing.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

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
  EXPECT_GE(f.slept, kCommands * 9 / 10);
  EXPECT_EQ(f.foretold, 0u);
  // And looks again: what repeats from now on is found.
  const Keys program = random_keys(random, 300, 1000);
  size_t pushed = 0;
  while (f.foretold == 0 && pushed < 1'000'000) {
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
