// SPDX-License-Identifier: Apache-2.0
// The account of work: what a completed wait teaches of a stream and of its device, and what the
// rules of the default stream leave open.
#include "client/core/work_account.h"

#include <gtest/gtest.h>

#include "client/objects/device.h"
#include "client/objects/stream.h"

namespace sluice::client {
namespace {

class Work : public ::testing::Test {
 protected:
  Work() {
    for (Stream* s : {&device_.legacy, &a_, &b_, &apart_}) s->device = &device_;
    apart_.flags = CU_STREAM_NON_BLOCKING;
  }
  bool passed(Stream& s, StreamPoint point) { return account_.passed(device_, &s, point); }

  WorkAccount account_;
  Device device_;
  Stream a_, b_, apart_;
};

TEST_F(Work, OfOneStreamIsTheDevicesToo) {
  EXPECT_TRUE(account_.idle(device_));
  account_.add(a_);
  account_.add(a_);
  EXPECT_FALSE(account_.idle(device_));
  EXPECT_EQ(account_.issued(device_), 2u);
  account_.note_done(device_, &a_, 1);
  EXPECT_FALSE(account_.idle(device_));
  account_.note_done(device_, &a_, 2);
  EXPECT_TRUE(account_.idle(device_));
}

TEST_F(Work, OfSeveralStreamsIsDoneWhenTheDeviceIs) {
  account_.add(a_);
  account_.add(b_);
  const StreamPoint a = account_.point(a_), b = account_.point(b_);
  account_.note_done(device_, &b_, account_.issued(device_));
  EXPECT_TRUE(passed(b_, b));
  EXPECT_FALSE(passed(a_, a));
  EXPECT_FALSE(account_.idle(device_)) << "nobody has waited for the other stream";
  account_.note_done(device_, nullptr, account_.issued(device_));
  EXPECT_TRUE(passed(a_, a));
  EXPECT_TRUE(account_.idle(device_));
  // From rest, one stream's work is all there is again.
  account_.add(b_);
  account_.note_done(device_, &b_, account_.issued(device_));
  EXPECT_TRUE(account_.idle(device_));
}

TEST_F(Work, IsUnseenWhereTheHostCannotNoticeItsEnd) {
  EXPECT_TRUE(account_.unseen(apart_));
  account_.add(apart_, false);
  EXPECT_TRUE(account_.unseen(apart_));
  EXPECT_FALSE(account_.idle(device_)) << "it is work all the same";
  account_.add(apart_);
  account_.add(apart_, false);
  EXPECT_FALSE(account_.unseen(apart_)) << "what is before it is waited for, too";
  EXPECT_TRUE(account_.unseen(a_)) << "which does not wait for that stream";
  account_.note_done(device_, &apart_, 2);
  EXPECT_TRUE(account_.unseen(apart_));
}

TEST_F(Work, OfAStreamIsFinishedWhereItsLastIsKnownToBeDone) {
  EXPECT_TRUE(account_.finished(a_));
  account_.add(a_);
  account_.add(apart_);
  account_.note_done(device_, &a_, 2);
  EXPECT_TRUE(account_.finished(a_));
  EXPECT_FALSE(account_.finished(apart_));
  EXPECT_FALSE(account_.finished(device_.legacy)) << "which waits for the blocking one";
  account_.note_done(device_, &device_.legacy, 2);
  EXPECT_TRUE(account_.finished(device_.legacy));
  EXPECT_EQ(account_.add_event(a_), 3u);
  EXPECT_FALSE(account_.finished(a_)) << "the event may be asked";
  EXPECT_FALSE(account_.unseen(a_));
  account_.note_done(device_, &a_, 3);
  EXPECT_TRUE(account_.finished(a_));
}

TEST_F(Work, IsSeenWhereTheDefaultStreamWaitsForWhatIs) {
  account_.add(a_);
  account_.add(device_.legacy, false);
  EXPECT_FALSE(account_.unseen(device_.legacy)) << "it waits for the other stream";
  EXPECT_FALSE(account_.unseen(b_)) << "and this one for it";
  EXPECT_TRUE(account_.unseen(apart_));
  account_.note_done(device_, nullptr, account_.issued(device_));
  EXPECT_TRUE(account_.unseen(device_.legacy));
  account_.add(device_.legacy);
  EXPECT_FALSE(account_.unseen(b_));
  account_.note_done(device_, &device_.legacy, account_.issued(device_));
  EXPECT_TRUE(account_.unseen(b_));
}

TEST_F(Work, ThatGoesIntoAGraphIsNone) {
  a_.capture = 1;
  account_.add(a_);
  EXPECT_EQ(account_.issued(device_), 0u);
  EXPECT_TRUE(account_.idle(device_));
}

TEST_F(Work, OfBlockingStreamsIsBeforeTheLegacyStreamsAndBehindIt) {
  account_.add(a_);
  EXPECT_TRUE(account_.point(device_.legacy).whole_device) << "it waits for blocking streams";
  EXPECT_FALSE(account_.point(a_).whole_device);
  account_.add(device_.legacy);
  EXPECT_FALSE(account_.point(device_.legacy).whole_device) << "its own work is the newest";
  EXPECT_TRUE(account_.point(a_).whole_device) << "it waits for the legacy stream";
  EXPECT_FALSE(account_.point(apart_).whole_device) << "a non-blocking stream waits for neither";
  // A point of the whole device passes by the device's progress alone.
  const StreamPoint a = account_.point(a_);
  account_.note_done(device_, &a_, account_.issued(device_));
  EXPECT_FALSE(passed(a_, a));
  account_.note_done(device_, nullptr, account_.issued(device_));
  EXPECT_TRUE(passed(a_, a));
}

TEST_F(Work, OfNonBlockingStreamsIsNotWaitedForByTheLegacyStream) {
  account_.add(apart_);
  EXPECT_FALSE(account_.point(device_.legacy).whole_device);
}

// Another stream may get its place, and what that has done says nothing of the work of this one.
TEST_F(Work, OfAStreamThatIsGoneIsNobodysElse) {
  account_.add(a_);
  account_.forget(device_, &a_);
  account_.note_done(device_, &a_, account_.issued(device_));
  EXPECT_FALSE(account_.idle(device_));
  account_.note_done(device_, nullptr, account_.issued(device_));
  EXPECT_TRUE(account_.idle(device_));
}

}  // namespace
}  // namespace sluice::client
