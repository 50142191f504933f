// SPDX-License-Identifier: Apache-2.0
// A packet of a Unix socket with the descriptors that came along (SCM_RIGHTS): what the client gets
// from the server, and workers, relays and doorbells from theirs.
#pragma once

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <span>

namespace sluice::channel {

struct Received {
  ssize_t bytes;       // as recvmsg says it
  size_t descriptors;  // how many came, the receiver's own from now on
};

// Receives into `data`, and into `descriptors` as many as have room there: the kernel closes
// others. They are closed at exec.
inline Received receive_packet(int socket, std::span<std::byte> data, std::span<int> descriptors,
                               int flags = 0) {
  constexpr size_t kMost = 8;
  alignas(cmsghdr) char control[CMSG_SPACE(kMost * sizeof(int))];
  iovec io{data.data(), data.size()};
  msghdr m{};
  m.msg_iov = &io;
  m.msg_iovlen = 1;
  m.msg_control = control;
  // Not CMSG_SPACE, whose padding would have room for one more.
  m.msg_controllen = CMSG_LEN(std::min(descriptors.size(), kMost) * sizeof(int));
  Received got{};
  do got.bytes = recvmsg(socket, &m, flags | MSG_CMSG_CLOEXEC);
  while (got.bytes < 0 && errno == EINTR);
  const cmsghdr* c = got.bytes < 0 ? nullptr : CMSG_FIRSTHDR(&m);
  if (!c || c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) return got;
  got.descriptors = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
  std::memcpy(descriptors.data(), CMSG_DATA(c), got.descriptors * sizeof(int));
  return got;
}

}  // namespace sluice::channel
