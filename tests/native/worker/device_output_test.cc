// SPDX-License-Identifier: Apache-2.0
// What kernels print comes through whole, also when it is much more than a pipe holds. The standard
// output of a child process stands for the driver's.
#include "worker/device_output.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "process/log.h"
#include "process/log_budget.h"
#include "tests/native/process/child_log.h"

namespace sluice::worker {
namespace {

std::span<const std::byte> image(const char* text) {
  return {reinterpret_cast<const std::byte*>(text), std::strlen(text)};
}

// Runs in a child, as there is one standard output. 0: good; 14: killed by its alarm.
template <class F>
int with_own_output(F&& f) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);
    std::string error;
    if (!DeviceOutput::instance().redirect(&error)) _exit(100);
    _exit(f(DeviceOutput::instance()));
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status);
}

TEST(DeviceOutput, NothingIsLookedForBeforeCodeThatPrints) {
  EXPECT_EQ(with_own_output([](DeviceOutput& o) {
              o.expect(image(".version 8.0 // computes only"));
              std::printf("unexpected\n");
              return o.waiting() ? 1 : 0;
            }),
            0);
}

TEST(DeviceOutput, ComesInPiecesOfTheSizeThatIsAsked) {
  EXPECT_EQ(with_own_output([](DeviceOutput& o) {
              o.expect(image("call vprintf"));
              if (o.waiting()) return 1;
              std::printf("hello from the device\n");
              if (!o.waiting()) return 2;
              if (o.take(5) != "hello") return 3;
              if (!o.waiting() || o.take(100) != " from the device\n") return 4;
              return o.waiting() ? 5 : 0;
            }),
            0);
}

TEST(DeviceOutput, AssertionsComeFromStandardErrorOnceCodeHasSome) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer starts no threads in a forked child";
#endif
  EXPECT_EQ(with_own_output([](DeviceOutput& o) {
              o.expect(image("call vprintf"));
              std::fprintf(stderr, "the log's\n");
              if (o.waiting()) return 1;
              o.expect(image("call __assertfail"));
              std::fprintf(stderr, "Assertion failed\n");
              std::printf("printed\n");
              if (!o.waiting()) return 2;
              bool error = true;
              if (o.take(100, &error) != "printed\n" || error) return 3;
              if (o.take(100, &error) != "Assertion failed\n" || !error) return 4;
              return o.waiting() ? 5 : 0;
            }),
            0);
}

TEST(DeviceOutput, MoreThanAPipeHoldsNeedsNobodyToFetchIt) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer starts no threads in a forked child";
#endif
  EXPECT_EQ(with_own_output([](DeviceOutput& o) {
              o.expect(image("call vprintf"));
              for (int i = 0; i < 200'000; ++i) std::printf("line %d\n", i);
              if (!o.waiting()) return 1;
              std::string all, expected;
              while (o.waiting()) all += o.take(4096);
              for (int i = 0; i < 200'000; ++i) expected += "line " + std::to_string(i) + "\n";
              return all == expected ? 0 : 2;
            }),
            0);
}

TEST(DeviceOutput, IsFetchedWhileOthersPrint) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer starts no threads in a forked child";
#endif
  EXPECT_EQ(with_own_output([](DeviceOutput& o) {
              o.expect(image("call vprintf"));
              std::vector<std::thread> printing;
              for (int t = 0; t < 3; ++t)
                printing.emplace_back([] {
                  for (int i = 0; i < 50'000; ++i) std::printf("0123456789abcde\n");
                });
              size_t bytes = 0;
              std::thread fetching([&] {
                while (bytes < 3 * 50'000 * 16)
                  if (o.waiting()) bytes += o.take(8176).size();
              });
              for (auto& t : printing) t.join();
              fetching.join();
              return bytes == 3 * 50'000 * 16 ? 0 : 1;
            }),
            0);
}

TEST(DeviceOutput, WhatLibrariesSayIsBoundedInTheLog) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer starts no threads in a forked child";
#endif
  const std::string text = process::log_of([] {
    std::string error;
    if (!DeviceOutput::instance().redirect(&error) || !DeviceOutput::instance().take_errors(&error))
      _exit(1);
    for (int i = 0; i < 100'000; ++i) std::fprintf(stderr, "a library's complaint, number %d\n", i);
    while (DeviceOutput::instance().waiting()) {
    }
    usleep(300'000);  // the reader's last piece
    process::log_last("session ended");
  });
  EXPECT_LT(text.size(), process::LogBudget::kTextBytes + 1000);
  EXPECT_NE(text.find("number 0\n"), std::string::npos);
  EXPECT_NE(text.find("bytes of standard error were left out"), std::string::npos);
}

TEST(DeviceOutput, TheLogHasTheLastWordsOfAProcessThatAborts) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer starts no threads in a forked child";
#endif
  const std::string text = process::log_of([] {
    std::string error;
    if (!DeviceOutput::instance().redirect(&error) || !DeviceOutput::instance().take_errors(&error))
      _exit(1);
    std::fprintf(stderr, "terminate called after something\n");
    std::abort();
  });
  EXPECT_NE(text.find("terminate called"), std::string::npos) << text;
}

}  // namespace
}  // namespace sluice::worker
