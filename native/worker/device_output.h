// SPDX-License-Identifier: Apache-2.0
// What kernels print. The driver writes it to this process's standard output when something
// synchronises; here that is a pipe whose content goes to the client, which fetches it when a reply
// says that there is some. Owns the pipe and a thread that keeps it from filling up.
#pragma once

#include <atomic>
#include <cstddef>
#include <mutex>
#include <span>
#include <string>

namespace sluice::worker {

class DeviceOutput {
 public:
  static DeviceOutput& instance();

  // Puts the pipe in the place of standard output. Before any other thread runs.
  bool redirect(std::string* error);
  // Code that may print has been loaded: from now on it is worth looking.
  void expect(std::span<const std::byte> image);
  // Whether there is output to fetch; looks into the pipe.
  bool waiting();
  // Takes up to `limit` bytes.
  std::string take(size_t limit);

 private:
  void drain();  // mutex_ held
  void keep_flowing();

  int pipe_ = -1;
  std::atomic<bool> expected_{false};
  std::mutex mutex_;
  std::string text_;
};

}  // namespace sluice::worker
