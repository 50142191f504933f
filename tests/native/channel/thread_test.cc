// SPDX-License-Identifier: Apache-2.0
#include "channel/thread.h"

#include <gtest/gtest.h>

#include <atomic>

#include "channel/futex.h"
#include "tests/native/channel/no_threads.h"

namespace sluice::channel {
namespace {

TEST(Threads, RunWhatTheyAreGivenUnderTheirName) {
  std::string name(16, '\0');
  Thread thread;
  ASSERT_TRUE(thread.start("a-name-that-is-long", [&] { prctl(PR_GET_NAME, name.data()); }));
  thread.join();
  EXPECT_EQ(name.c_str(), std::string("a-name-that-is-"));
  EXPECT_FALSE(thread.started());
  static std::atomic<uint32_t> ran{0};
  ASSERT_TRUE(start_detached("", [] {
    ran = 1;
    futex_wake(ran);
  }));
  for (int i = 0; i < 1000 && !ran; ++i) futex_wait(ran, 0, 20'000'000);
  EXPECT_EQ(ran, 1u);
}

TEST(Threads, OfALibraryTakeNoSignals) {
  for (const Signals signals : {Signals::kTaken, Signals::kBlocked}) {
    sigset_t mask;
    Thread thread;
    ASSERT_TRUE(thread.start("", [&] { pthread_sigmask(SIG_SETMASK, nullptr, &mask); }, signals));
    thread.join();
    EXPECT_EQ(sigismember(&mask, SIGTERM), signals == Signals::kBlocked);
  }
  sigset_t own;
  pthread_sigmask(SIG_SETMASK, nullptr, &own);
  EXPECT_FALSE(sigismember(&own, SIGTERM)) << "the starting thread's stay as they were";
}

TEST(Threads, ThatAreNotToBeHadEndNothing) {
  test::NoThreads none;
  bool ran = false;
  EXPECT_FALSE(start_detached("", [&] { ran = true; }));
  Thread thread;
  EXPECT_FALSE(thread.start("", [&] { ran = true; }));
  thread.join();
  EXPECT_FALSE(ran);
}

}  // namespace
}  // namespace sluice::channel
