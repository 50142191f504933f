// SPDX-License-Identifier: Apache-2.0
// Opening a session on the same host: ask the server over its Unix socket, map the memfd that comes
// back.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <span>

#include "channel/packet.h"
#include "client/core/open_channel.h"
#include "client/core/slot_channel.h"
#include "client/core/view.h"
#include "wire/address_windows.h"

namespace sluice::client {

namespace {

struct FdCloser {
  int fd;
  ~FdCloser() {
    if (fd >= 0) ::close(fd);
  }
};

// A connection on which the request is sent; -1 with `error`.
int ask_server(const std::string& socket_path, const wire::OpenSession& request,
               const RequestOptions& options, std::string* error) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (socket_path.size() >= sizeof address.sun_path) {
    *error = "the server's socket path is too long: " + socket_path;
    return -1;
  }
  std::memcpy(address.sun_path, socket_path.data(), socket_path.size());
  const int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (s < 0 || connect(s, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    *error = "no sluice-server at " + socket_path + ": " + std::strerror(errno);
    if (s >= 0) ::close(s);
    return -1;
  }
  const std::vector<std::byte> frame = open_frame(request, options);
  if (send(s, frame.data(), frame.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(frame.size()))
    return s;
  *error = "asking sluice-server at " + socket_path + ": " + std::strerror(errno);
  ::close(s);
  return -1;
}

constexpr timeval kViewTime{15, 0};  // the server asks others for less

}  // namespace

bool view_unix(const std::string& socket_path, wire::OpenSession request,
               const RequestOptions& options, std::string* text, Refusal* refusal) {
  request.channel = wire::ChannelKind::kShm;
  const FdCloser socket{ask_server(socket_path, request, options, &refusal->text)};
  if (socket.fd < 0) return false;
  setsockopt(socket.fd, SOL_SOCKET, SO_RCVTIMEO, &kViewTime, sizeof kViewTime);
  std::vector<std::byte> reply(sizeof(wire::OpenReply) + wire::kMaxViewBytes);
  const ssize_t got = recv(socket.fd, reply.data(), reply.size(), 0);
  return read_view(reply.data(), static_cast<size_t>(std::max<ssize_t>(got, 0)),
                   "sluice-server at " + socket_path, text, refusal);
}

std::unique_ptr<Channel> open_unix(const std::string& socket_path, wire::OpenSession request,
                                   const RequestOptions& options, Refusal* refusal) {
  std::string* error = &refusal->text;
  request.channel = wire::ChannelKind::kShm;
  const int s = ask_server(socket_path, request, options, error);
  if (s < 0) return nullptr;
  FdCloser socket_closer{s};
  int fds[2] = {-1, -1};
  for (;;) {
    wire::OpenReply reply{};
    const channel::Received got =
        channel::receive_packet(s, std::as_writable_bytes(std::span(&reply, 1)), fds);
    if (got.bytes < static_cast<ssize_t>(offsetof(wire::OpenReply, message)) ||
        reply.header.function != wire::kOpenReply) {
      *error = "sluice-server at " + socket_path + " closed the connection before it answered";
      return nullptr;
    }
    reply.message[sizeof reply.message - 1] = 0;
    if (reply.status == 600) {
      if (request.flags & wire::kHoldJob) continue;
      std::fprintf(stderr, "sluice: %s\n", reply.message);
      continue;
    }
    if (reply.status != 0) {
      *error = reply.message;
      refusal->status = reply.status;
      return nullptr;
    }
    break;
  }
  FdCloser region{fds[0]}, worker{fds[1]};
  struct stat st;
  if (fds[0] < 0 || fstat(fds[0], &st) != 0) {
    *error = "sluice-server granted a session without its shared memory";
    return nullptr;
  }
  const size_t slot_bytes = channel::slot_bytes_of(static_cast<size_t>(st.st_size), 1);
  channel::MappedSlot slot;
  if (!slot.map(fds[0], slot_bytes, 0, wire::kArenaAddress, error)) return nullptr;
  if (slot.header().magic != channel::kSlotMagic) {
    *error = "the session's shared memory was not set up by a worker of this release";
    return nullptr;
  }
  // The socket's end says nothing about the session (a child may hold it), so it is closed here.
  worker.fd = -1;
  return channel_over(std::move(slot), wire::ChannelKind::kShm, fds[1], -1);
}

}  // namespace sluice::client
