// SPDX-License-Identifier: Apache-2.0
// What kernels print, and what assertions that fail say. The driver writes it to this process's
// standard output and standard error when something synchronises; here these are pipes whose
// content goes to the client, which fetches it when a reply says that there is some. Owns the pipes
// and a thread that keeps them from filling up. Standard error becomes one when a session begins,
// and what comes there goes to the log, which bounds it; to the client as well once code with
// assertions is loaded.
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

  // Puts the pipe in the place of standard output, and has the log keep what is standard error now.
  // Before any other thread runs.
  bool redirect(std::string* error);
  // A session begins: from now on its doings are what is written to standard error. False: there is
  // no thread, or no pipe.
  bool take_errors(std::string* error);
  // Code that may print has been loaded: from now on it is worth looking.
  void expect(std::span<const std::byte> image);
  // Whether there is output to fetch; looks into the pipe.
  bool waiting();
  // Takes up to `limit` bytes of one of them; `error` says of which.
  std::string take(size_t limit, bool* error = nullptr);

 private:
  struct Source {
    std::atomic<int> pipe{-1};
    std::string text;
  };
  bool replace(Source& source, int descriptor);
  bool take_errors();
  void drain();  // mutex_ held
  void drain(Source& source, bool keep, bool log);
  void keep_flowing();

  Source out_, err_;
  std::atomic<bool> expected_{false};
  bool flows_ = false;    // keep_flowing() runs; under mutex_, as what follows
  bool asserts_ = false;  // the client wants to see standard error
  std::mutex mutex_;
  int wake_[2] = {-1, -1};  // tells keep_flowing() of another pipe
};

}  // namespace sluice::worker
