// SPDX-License-Identifier: Apache-2.0
// The log of a child process, for tests of what gets into one.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

namespace sluice::process {

// What a child wrote to its log, which lies in memory.
template <class F>
std::string log_of(F&& f) {
  const int file = memfd_create("log", 0);
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    dup2(file, STDERR_FILENO);
    f();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  std::string text(static_cast<size_t>(lseek(file, 0, SEEK_END)), '\0');
  EXPECT_EQ(pread(file, text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  close(file);
  return text;
}

}  // namespace sluice::process
