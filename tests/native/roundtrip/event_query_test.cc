// SPDX-License-Identifier: Apache-2.0
// Events that are asked for behind another's need not be: a thread may destroy one meanwhile.
#include <gtest/gtest.h>

#include <cstring>

#include "tests/native/roundtrip/loopback_session.h"
#include "tests/native/roundtrip/valid_frames.h"

namespace sluice::test {
namespace {

constexpr uint64_t kOther = FurnishedRig::kSecondEventId;

struct Asked {
  bool accepted;
  std::string reason;
  Answer answer;
};

Asked ask(FurnishedRig& rig, const std::vector<uint64_t>& behind) {
  ValidFrame f = make("EventQuery", wire::kEventQuery, true, "cuEventQuery",
                      wire::EventQuery{FurnishedRig::kEventId});
  f.words.insert(f.words.end(), behind.begin(), behind.end());
  Asked asked;
  asked.accepted = rig.dispatch(f.header(), f.body(), &asked.answer);
  asked.reason = rig.session().reason();
  return asked;
}

uint32_t done(const Asked& asked) {
  wire::EventQueryReply reply{};
  EXPECT_TRUE(asked.accepted) << asked.reason;
  EXPECT_EQ(asked.answer.status, 0u);
  EXPECT_EQ(asked.answer.body.size(), sizeof reply);
  std::memcpy(&reply, asked.answer.body.data(), std::min(sizeof reply, asked.answer.body.size()));
  return reply.done;
}

TEST(EventQuery, OfOneSaysNothingMore) {
  FurnishedRig rig;
  const Asked asked = ask(rig, {});
  EXPECT_TRUE(asked.accepted);
  EXPECT_TRUE(asked.answer.body.empty());
}

TEST(EventQuery, SaysHowManyOfTheOthersAreDone) {
  FurnishedRig rig;
  EXPECT_EQ(done(ask(rig, {kOther, kOther})), 2u);
  for (const uint64_t none :
       std::vector<uint64_t>{0, kOther ^ 1ull << 24, FurnishedRig::kStreamId, ~0ull})
    EXPECT_EQ(done(ask(rig, {kOther, none, kOther})), 1u) << none;
  int left = 2;
  ScopedAnswer a(SLUICE_ON(cuEventQuery),
                 [&](CUevent) { return left-- > 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY; });
  EXPECT_EQ(done(ask(rig, {kOther, kOther, kOther})), 1u);
  const Asked asked = ask(rig, {kOther});
  EXPECT_EQ(asked.answer.status, static_cast<uint32_t>(CUDA_ERROR_NOT_READY));
  EXPECT_TRUE(asked.answer.body.empty());
}

TEST(EventQuery, AsksForNoMoreThanItMay) {
  FurnishedRig rig;
  EXPECT_EQ(done(ask(rig, std::vector(wire::kMostEventsAsked, kOther))), wire::kMostEventsAsked);
  Recording::get().calls.clear();
  const Asked asked = ask(rig, std::vector(wire::kMostEventsAsked + 1, kOther));
  EXPECT_FALSE(asked.accepted);
  EXPECT_EQ(asked.reason, "EventQuery names more events than it may");
  EXPECT_TRUE(Recording::get().calls.empty());
}

}  // namespace
}  // namespace sluice::test
