// SPDX-License-Identifier: Apache-2.0
// Images under way: memory grows with what has come, within its bound, and pieces follow one
// another.
#include "worker/uploads.h"

#include <gtest/gtest.h>

namespace sluice::worker {
namespace {

using Added = Uploads::Added;
using Taken = Uploads::Taken;

std::vector<std::byte> piece(size_t bytes, int value) {
  return std::vector<std::byte>(bytes, static_cast<std::byte>(value));
}

TEST(Uploads, AnImageIsItsPiecesInOrder) {
  Uploads uploads;
  EXPECT_EQ(uploads.add(1, 5, 0, piece(3, 7)), Added::kYes);
  EXPECT_EQ(uploads.add(2, 1, 0, piece(1, 9)), Added::kYes) << "others come in between";
  std::vector<std::byte> image;
  EXPECT_EQ(uploads.take(1, &image), Taken::kIncomplete);
  EXPECT_EQ(uploads.add(1, 5, 3, piece(2, 8)), Added::kYes);
  EXPECT_EQ(uploads.take(1, &image), Taken::kWhole);
  auto whole = piece(3, 7);
  whole.insert(whole.end(), 2, std::byte{8});
  EXPECT_EQ(image, whole);
  EXPECT_EQ(uploads.take(1, &image), Taken::kIncomplete) << "it was taken";
  EXPECT_EQ(uploads.take(3, &image), Taken::kIncomplete) << "nobody sent it";
  EXPECT_EQ(uploads.bytes(), 1u);
}

TEST(Uploads, WhatDoesNotFollowIsNotAdded) {
  Uploads uploads;
  EXPECT_EQ(uploads.add(1, 8, 2, piece(2, 0)), Added::kOutOfSequence) << "not from the start";
  EXPECT_EQ(uploads.add(1, 8, 0, piece(4, 0)), Added::kYes);
  EXPECT_EQ(uploads.add(1, 8, 0, piece(4, 0)), Added::kOutOfSequence) << "again";
  EXPECT_EQ(uploads.add(1, 8, 5, piece(3, 0)), Added::kOutOfSequence) << "with a hole";
  EXPECT_EQ(uploads.add(1, 9, 4, piece(4, 0)), Added::kOutOfSequence) << "of another length";
  EXPECT_EQ(uploads.add(1, 8, 4, piece(5, 0)), Added::kOutOfSequence) << "beyond its end";
  EXPECT_EQ(uploads.bytes(), 4u);
}

TEST(Uploads, AnnouncingTakesNoMemory) {
  Uploads uploads;
  for (uint64_t id = 0; id < 4; ++id)
    ASSERT_EQ(uploads.add(id, Uploads::kMostBytes, 0, piece(8, 0)), Added::kYes);
  EXPECT_EQ(uploads.bytes(), 4 * 8u);
  EXPECT_LT(uploads.reserved(), 4 * 1024u);
}

TEST(Uploads, AnImageWithoutRoomIsLetGoAndItsTakerTold) {
  Uploads uploads(16);
  EXPECT_EQ(uploads.add(1, 20, 0, piece(10, 0)), Added::kYes);
  EXPECT_EQ(uploads.add(2, 6, 0, piece(6, 0)), Added::kYes) << "the last that fits";
  EXPECT_EQ(uploads.add(1, 20, 10, piece(5, 0)), Added::kYes) << "no client is at fault";
  EXPECT_EQ(uploads.bytes(), 6u) << "what had come of it is let go";
  EXPECT_EQ(uploads.add(1, 20, 15, piece(5, 0)), Added::kYes);
  EXPECT_EQ(uploads.bytes(), 6u) << "nothing more of it is kept, though there is room by now";
  std::vector<std::byte> image;
  EXPECT_EQ(uploads.take(1, &image), Taken::kRefused);
  EXPECT_TRUE(image.empty());
  EXPECT_EQ(uploads.take(2, &image), Taken::kWhole);
  EXPECT_EQ(uploads.bytes(), 0u);
  EXPECT_EQ(uploads.add(3, 16, 0, piece(16, 0)), Added::kYes);
  EXPECT_EQ(uploads.take(3, &image), Taken::kWhole) << "what was taken made room";
}

TEST(Uploads, SoManyAreUnderWayAndNoMore) {
  Uploads uploads;
  for (uint64_t id = 0; id < Uploads::kMostImages; ++id)
    ASSERT_EQ(uploads.add(id, 2, 0, piece(1, 0)), Added::kYes);
  EXPECT_EQ(uploads.add(1000, 2, 0, piece(1, 0)), Added::kTooMany);
  EXPECT_EQ(uploads.count(), Uploads::kMostImages);
  EXPECT_EQ(uploads.add(0, 2, 1, piece(1, 0)), Added::kYes) << "those go on";
  std::vector<std::byte> image;
  EXPECT_EQ(uploads.take(0, &image), Taken::kWhole);
  EXPECT_EQ(uploads.add(1000, 2, 0, piece(1, 0)), Added::kYes);
}

}  // namespace
}  // namespace sluice::worker
