// SPDX-License-Identifier: Apache-2.0
#include "channel/dial.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "channel/stream.h"

namespace sluice::channel {

namespace {

int connect_one(const addrinfo& a, tls::Deadline deadline) {
  const int s = socket(a.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (s < 0) return -1;
  int trouble = 0;
  if (connect(s, a.ai_addr, a.ai_addrlen) != 0) {
    trouble = errno;
    socklen_t n = sizeof trouble;
    if (trouble == EINPROGRESS && !tls::wait_for(s, POLLOUT, deadline))
      trouble = ETIMEDOUT;
    else if (trouble == EINPROGRESS && getsockopt(s, SOL_SOCKET, SO_ERROR, &trouble, &n) != 0)
      trouble = errno;
  }
  if (trouble == 0 && fcntl(s, F_SETFL, fcntl(s, F_GETFL) & ~O_NONBLOCK) == 0) return s;
  if (trouble == 0) trouble = errno;
  ::close(s);
  errno = trouble;
  return -1;
}

}  // namespace

void set_patience(int socket, int seconds) {
  const timeval most{seconds, 0};
  setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
}

int dial(const std::string& host, const std::string& port, tls::Deadline deadline,
         std::string* error) {
  addrinfo hints{}, *list = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const int rc = getaddrinfo(host.c_str(), port.c_str(), &hints, &list);
  if (rc != 0) {
    *error = gai_strerror(rc);
    return -1;
  }
  int s = -1, left = 0;
  for (const addrinfo* a = list; a; a = a->ai_next) ++left;
  for (const addrinfo* a = list; a && s < 0; a = a->ai_next, --left) {
    const auto now = std::chrono::steady_clock::now();
    s = connect_one(*a, now + (std::max(deadline, now) - now) / left);
    if (s < 0) *error = std::strerror(errno);
  }
  freeaddrinfo(list);
  // A node that is gone without a word is noticed, also by a program that only waits.
  if (s >= 0) keep_alive(s, {.idle = 30, .interval = 10, .probes = 6});
  return s;
}

}  // namespace sluice::channel
