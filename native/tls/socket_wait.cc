// SPDX-License-Identifier: Apache-2.0
#include "tls/socket_wait.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace sluice::tls {

namespace {

constexpr const char* kTooLate = "it does not answer in time";

bool again(int e) { return e == EAGAIN || e == EWOULDBLOCK || e == EINTR; }

}  // namespace

bool wait_for(int socket, short events, Deadline deadline) {
  for (;;) {
    int milliseconds = -1;
    if (deadline != kNever) {
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
      milliseconds = static_cast<int>(std::clamp<long long>(left.count(), 0, 24ll * 3600 * 1000));
    }
    pollfd p{socket, events, 0};
    const int n = poll(&p, 1, milliseconds);
    if (n > 0) return true;
    if (n < 0 && errno != EINTR) return false;
    if (deadline != kNever && std::chrono::steady_clock::now() >= deadline) return false;
  }
}

bool send_by(int socket, const void* data, size_t n, Deadline deadline, std::string* error) {
  const char* at = static_cast<const char*>(data);
  while (n > 0) {
    const ssize_t sent = send(socket, at, n, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && again(errno)) {
      if (wait_for(socket, POLLOUT, deadline)) continue;
      *error = kTooLate;
      return false;
    }
    if (sent < 0) {
      *error = std::strerror(errno);
      return false;
    }
    at += sent;
    n -= static_cast<size_t>(sent);
  }
  return true;
}

long receive_by(int socket, void* data, size_t n, Deadline deadline, std::string* error) {
  for (;;) {
    const ssize_t got = recv(socket, data, n, MSG_DONTWAIT);
    if (got >= 0) return got;
    if (!again(errno)) {
      *error = std::strerror(errno);
      return -1;
    }
    if (!wait_for(socket, POLLIN, deadline)) {
      *error = kTooLate;
      return -1;
    }
  }
}

bool receive_all_by(int socket, void* data, size_t n, Deadline deadline, std::string* error) {
  char* at = static_cast<char*>(data);
  while (n > 0) {
    const long got = receive_by(socket, at, n, deadline, error);
    if (got == 0) *error = "it closed the connection";
    if (got <= 0) return false;
    at += got;
    n -= static_cast<size_t>(got);
  }
  return true;
}

}  // namespace sluice::tls
