// SPDX-License-Identifier: Apache-2.0
#include "worker/device_output.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "channel/thread.h"
#include "image_format.h"
#include "process/log.h"

namespace sluice::worker {

namespace {
constexpr size_t kKept = 16 << 20;  // of a client that never synchronises

// What is said when the process aborts stands in a pipe that ends with it.
std::atomic<int> g_errors{-1};
void write_last_words(int) {
  char buffer[4096];
  for (ssize_t n; (n = read(g_errors, buffer, sizeof buffer)) > 0;)
    if (write(process::log_descriptor(), buffer, static_cast<size_t>(n)) < 0) return;
}
}  // namespace

// A sanitizer's, where there is one: its reports go to the log by themselves.
extern "C" __attribute__((weak)) void __sanitizer_set_report_fd(void* descriptor);

DeviceOutput& DeviceOutput::instance() {
  static DeviceOutput* output = new DeviceOutput;  // its thread lives as long as the process
  return *output;
}

bool DeviceOutput::replace(Source& source, int descriptor) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0 || fcntl(ends[0], F_SETFL, O_NONBLOCK) != 0 ||
      dup2(ends[1], descriptor) < 0)
    return false;
  close(ends[1]);
  source.pipe = ends[0];
  return true;
}

bool DeviceOutput::redirect(std::string* error) {
  const int log = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
  if (log < 0 || !replace(out_, STDOUT_FILENO) || pipe2(wake_, O_CLOEXEC | O_NONBLOCK) != 0) {
    *error = std::string("redirecting standard output: ") + std::strerror(errno);
    return false;
  }
  process::log_to(log);
  return true;
}

// Fat binaries may be compressed and hide the name that they link to, so they all count.
void DeviceOutput::expect(std::span<const std::byte> image) {
  uint32_t magic = 0;
  if (image.size() >= sizeof magic) std::memcpy(&magic, image.data(), sizeof magic);
  const bool hidden = magic == fat_binary::kContainerMagic;
  const auto calls = [&](std::string_view name) {
    return hidden || memmem(image.data(), image.size(), name.data(), name.size());
  };
  const bool asserts = calls("__assertfail");
  if (out_.pipe < 0 || (!asserts && !calls("vprintf"))) return;
  std::lock_guard lock(mutex_);
  if (!take_errors())
    return process::log_error("what kernels print cannot be read: no thread, or no pipe");
  drain();  // what was said before is the log's alone
  asserts_ |= asserts;
  expected_ = true;
}

bool DeviceOutput::take_errors(std::string* error) {
  std::lock_guard lock(mutex_);
  if (take_errors()) return true;
  *error = "standard error cannot be read: no thread can be started, or no pipe made";
  return false;
}

bool DeviceOutput::take_errors() {
  if (!flows_) flows_ = channel::start_detached("output", [this] { keep_flowing(); });
  if (!flows_ || err_.pipe >= 0) return flows_;
  if (!replace(err_, STDERR_FILENO)) return false;
  g_errors = err_.pipe.load();
  struct sigaction last {};
  last.sa_handler = write_last_words;
  last.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGABRT, &last, nullptr);
  if (__sanitizer_set_report_fd)
    __sanitizer_set_report_fd(
        reinterpret_cast<void*>(static_cast<intptr_t>(process::log_descriptor())));
  const char one = 0;
  if (write(wake_[1], &one, 1) < 0) process::log_error("waking the reader of standard error");
  return true;
}

void DeviceOutput::drain(Source& source, bool keep, bool log) {
  if (source.pipe < 0) return;
  char buffer[16384];
  for (ssize_t n; (n = read(source.pipe, buffer, sizeof buffer)) > 0;) {
    const std::string_view piece(buffer, static_cast<size_t>(n));
    if (keep && source.text.size() < kKept) source.text += piece;
    if (log) process::log_text(piece);
  }
}

void DeviceOutput::drain() {
  drain(out_, true, false);
  drain(err_, asserts_, true);
}

void DeviceOutput::keep_flowing() {
  for (;;) {
    pollfd p[] = {{out_.pipe, POLLIN, 0}, {wake_[0], POLLIN, 0}, {err_.pipe, POLLIN, 0}};
    if (poll(p, 3, -1) < 0 && errno != EINTR) return;
    char told;
    while (read(wake_[0], &told, 1) > 0) {
    }
    std::lock_guard lock(mutex_);
    drain();
  }
}

bool DeviceOutput::waiting() {
  if (!expected_.load(std::memory_order_relaxed)) return false;
  // Without the lock, and never by keep_flowing(): this waits for whoever prints, and he for the
  // pipe to be emptied.
  std::fflush(stdout);
  std::lock_guard lock(mutex_);
  drain();
  return !out_.text.empty() || !err_.text.empty();
}

std::string DeviceOutput::take(size_t limit, bool* error) {
  std::lock_guard lock(mutex_);
  const bool from_error = out_.text.empty() && error;
  Source& source = from_error ? err_ : out_;
  if (error) *error = from_error;
  std::string part = source.text.substr(0, limit);
  source.text.erase(0, part.size());
  return part;
}

}  // namespace sluice::worker
