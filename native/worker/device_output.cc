// SPDX-License-Identifier: Apache-2.0
#include "worker/device_output.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <thread>

namespace sluice::worker {

namespace {
constexpr size_t kKept = 16 << 20;  // of a client that never synchronises
constexpr uint32_t kContainerMagic = 0xba55ed50;
}  // namespace

DeviceOutput& DeviceOutput::instance() {
  static DeviceOutput* output = new DeviceOutput;  // its thread lives as long as the process
  return *output;
}

bool DeviceOutput::redirect(std::string* error) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0 || dup2(ends[1], STDOUT_FILENO) < 0 ||
      fcntl(ends[0], F_SETFL, O_NONBLOCK) != 0) {
    *error = std::string("redirecting standard output: ") + std::strerror(errno);
    return false;
  }
  close(ends[1]);
  pipe_ = ends[0];
  return true;
}

// Fat binaries may be compressed and hide the name that they link to, so they all count.
void DeviceOutput::expect(std::span<const std::byte> image) {
  uint32_t magic = 0;
  if (image.size() >= sizeof magic) std::memcpy(&magic, image.data(), sizeof magic);
  if (magic != kContainerMagic && !memmem(image.data(), image.size(), "vprintf", 7)) return;
  if (pipe_ >= 0 && !expected_.exchange(true)) std::thread([this] { keep_flowing(); }).detach();
}

void DeviceOutput::drain() {
  char buffer[16384];
  for (ssize_t n; (n = read(pipe_, buffer, sizeof buffer)) > 0;)
    if (text_.size() < kKept) text_.append(buffer, static_cast<size_t>(n));
}

void DeviceOutput::keep_flowing() {
  for (;;) {
    pollfd p{pipe_, POLLIN, 0};
    if (poll(&p, 1, -1) < 0 && errno != EINTR) return;
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
  return !text_.empty();
}

std::string DeviceOutput::take(size_t limit) {
  std::lock_guard lock(mutex_);
  std::string part = text_.substr(0, limit);
  text_.erase(0, part.size());
  return part;
}

}  // namespace sluice::worker
