// SPDX-License-Identifier: Apache-2.0
// The rests of answers: given piece by piece to the lane that asked, and bounded for all lanes.
#include "worker/unfetched_answers.h"

#include <gtest/gtest.h>

#include "wire/frame.h"

namespace sluice::worker {
namespace {

std::vector<std::byte> rest_of(size_t bytes) {
  std::vector<std::byte> rest(bytes);
  for (size_t i = 0; i < bytes; ++i) rest[i] = static_cast<std::byte>(i);
  return rest;
}

TEST(UnfetchedAnswers, ALaneFetchesItsOwnFromWhereItIs) {
  UnfetchedAnswers answers;
  const auto rest = rest_of(10);
  ASSERT_TRUE(answers.keep(3, 40, rest));
  std::vector<std::byte> piece;
  bool more = false;
  EXPECT_FALSE(answers.take(4, 40, 8, &piece, &more)) << "another lane's";
  for (const uint64_t from : {uint64_t{0}, uint64_t{39}, uint64_t{41}, ~uint64_t{0}})
    EXPECT_FALSE(answers.take(3, from, 8, &piece, &more)) << from;
  EXPECT_TRUE(answers.take(3, 40, 8, &piece, &more));
  EXPECT_EQ(piece, std::vector<std::byte>(rest.begin(), rest.begin() + 8));
  EXPECT_TRUE(more);
  EXPECT_FALSE(answers.take(3, 40, 8, &piece, &more)) << "it was given already";
  EXPECT_TRUE(answers.take(3, 48, 8, &piece, &more));
  EXPECT_EQ(piece, std::vector<std::byte>(rest.begin() + 8, rest.end()));
  EXPECT_FALSE(more);
  EXPECT_FALSE(answers.take(3, 50, 8, &piece, &more)) << "nothing is left";
}

TEST(UnfetchedAnswers, AreBoundedWhoeverFetchesNothing) {
  UnfetchedAnswers answers;
  const std::vector<std::byte> rest(wire::kMaxAnswer);
  uint16_t kept = 0;
  while (kept < 64 && answers.keep(kept, 0, rest)) ++kept;
  EXPECT_EQ(kept, UnfetchedAnswers::kMostBytes / wire::kMaxAnswer);
  EXPECT_TRUE(answers.keep(0, 0, rest)) << "a lane's next answer takes its place";
  std::vector<std::byte> piece;
  bool more = true;
  for (uint64_t from = 0; more; from += piece.size())
    ASSERT_TRUE(answers.take(0, from, 1 << 20, &piece, &more));
  EXPECT_TRUE(answers.keep(kept, 0, rest)) << "what was fetched makes room";
  EXPECT_FALSE(answers.keep(kept + 1, 0, rest));
}

}  // namespace
}  // namespace sluice::worker
