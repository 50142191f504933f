// SPDX-License-Identifier: Apache-2.0
#include "worker/device_output.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <thread>

#include "worker/log.h"

namespace sluice::worker {

namespace {
constexpr size_t kKept = 16 << 20;  // of a client that never synchronises
constexpr uint32_t kContainerMagic = 0xba55ed50;
}  // namespace

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
  log_to(log);
  return true;
}

// Fat binaries may be compressed and hide the name that they link to, so they all count.
void DeviceOutput::expect(std::span<const std::byte> image) {
  uint32_t magic = 0;
  if (image.size() >= sizeof magic) std::memcpy(&magic, image.data(), sizeof magic);
  const bool hidden = magic == kContainerMagic;
  const auto calls = [&](std::string_view name) {
    return hidden || memmem(image.data(), image.size(), name.data(), name.size());
  };
  const bool asserts = calls("__assertfail");
  if (out_.pipe < 0 || (!asserts && !calls("vprintf"))) return;
  if (asserts) {
    std::lock_guard lock(mutex_);
    if (err_.pipe < 0 && replace(err_, STDERR_FILENO)) {
      const char one = 0;
      if (write(wake_[1], &one, 1) < 0) log_error("waking the reader of standard error");
    }
  }
  if (!expected_.exchange(true)) std::thread([this] { keep_flowing(); }).detach();
}

void DeviceOutput::drain(Source& source, bool log) {
  if (source.pipe < 0) return;
  char buffer[16384];
  for (ssize_t n; (n = read(source.pipe, buffer, sizeof buffer)) > 0;) {
    const std::string_view piece(buffer, static_cast<size_t>(n));
    if (source.text.size() < kKept) source.text += piece;
    if (log) log_text(piece);
  }
}

void DeviceOutput::drain() {
  drain(out_, false);
  drain(err_, true);
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
