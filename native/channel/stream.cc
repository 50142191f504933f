// SPDX-License-Identifier: Apache-2.0
#include "channel/stream.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>

#include "channel/futex.h"

namespace sluice::channel {

bool Stream::readable() const {
  pollfd p{socket_, POLLIN, 0};
  return pending() || poll(&p, 1, 0) > 0;
}

bool Stream::writable() const {
  pollfd p{socket_, POLLOUT, 0};
  return poll(&p, 1, 0) > 0;
}

void Stream::finish() { shutdown(socket_, SHUT_WR); }

void Stream::cut() { shutdown(socket_, SHUT_RDWR); }

bool Stream::wait_readable(int milliseconds) {
  pollfd p{socket_, POLLIN, 0};
  return pending() || poll(&p, 1, milliseconds) > 0;
}

Stream::Line Stream::line() const {
  pollfd p{socket_, 0, 0};
  if (poll(&p, 1, 0) <= 0 || !(p.revents & (POLLERR | POLLHUP))) return Line::kUp;
  int error = 0;
  socklen_t n = sizeof error;
  const bool told = getsockopt(socket_, SOL_SOCKET, SO_ERROR, &error, &n) == 0;
  return told && error != 0 && error != ECONNRESET && error != EPIPE ? Line::kLost : Line::kClosed;
}

bool Stream::unheard_of(uint32_t milliseconds) const {
  return channel::unheard_of(socket_, milliseconds);
}

uint32_t Stream::round_trip_us() const { return channel::round_trip_us(socket_); }

ssize_t Stream::receive(msghdr* message) const {
  const size_t beside = message->msg_controllen;
  const auto receive = [&](int flags) {
    ssize_t got;
    do {
      message->msg_controllen = beside;
      got = recvmsg(socket_, message, flags);
    } while (got < 0 && errno == EINTR);
    return got;
  };
  if (!patience_.looks()) return receive(0);
  const auto came = [](ssize_t got) { return got >= 0 || errno != EAGAIN; };
  ssize_t got = receive(MSG_DONTWAIT);
  if (came(got)) return got;
  const uint64_t start = now_ns(), until = start + patience_.nanoseconds();
  for (uint64_t last = start; last < until;) {
    cpu_relax();
    if (came(got = receive(MSG_DONTWAIT))) break;
    const uint64_t now = now_ns();
    if (now - last > SpinTime::kHeldUp) {
      patience_.held_up();
      break;
    }
    last = now;
  }
  if (!came(got)) got = receive(0);
  patience_.waited(now_ns() - start);
  return got;
}

bool unheard_of(int socket, uint32_t milliseconds) {
  tcp_info info{};
  socklen_t n = sizeof info;
  if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &n) != 0) return false;
  return info.tcpi_unacked > 0 && info.tcpi_last_ack_recv > milliseconds;
}

void keep_alive(int socket, const KeepAlive& how) {
  constexpr int kOn = 1;
  const auto set = [&](int option, int value) {
    setsockopt(socket, IPPROTO_TCP, option, &value, sizeof value);
  };
  setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &kOn, sizeof kOn);
  set(TCP_NODELAY, kOn);
  set(TCP_KEEPIDLE, how.idle);
  set(TCP_KEEPINTVL, how.interval);
  set(TCP_KEEPCNT, how.probes);
}

uint32_t round_trip_us(int socket) {
  tcp_info info{};
  socklen_t n = sizeof info;
  return getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &n) == 0 ? info.tcpi_rtt : 0;
}

bool send_parts(int socket, iovec* parts, int count) {
  while (count > 0) {
    msghdr m{};
    m.msg_iov = parts;
    m.msg_iovlen = static_cast<size_t>(count);
    ssize_t sent = sendmsg(socket, &m, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return false;
    while (count > 0 && static_cast<size_t>(sent) >= parts->iov_len) {
      sent -= static_cast<ssize_t>(parts++->iov_len);
      --count;
    }
    if (count > 0 && sent > 0) {
      parts->iov_base = static_cast<char*>(parts->iov_base) + sent;
      parts->iov_len -= static_cast<size_t>(sent);
    }
  }
  return true;
}

ssize_t PlainStream::read(const iovec* parts, int count) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts);
  message.msg_iovlen = static_cast<size_t>(count);
  return receive(&message);
}

bool PlainStream::write(iovec* parts, int count) { return send_parts(socket_, parts, count); }

void PlainStream::try_write(const void* data, size_t n) {
  if (send(socket_, data, n, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) return;
}

}  // namespace sluice::channel
