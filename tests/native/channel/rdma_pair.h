// SPDX-License-Identifier: Apache-2.0
// Two connected ends of an RDMA connection in one process, over this machine's first device, each
// with its end of a socket pair beside it.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "channel/rdma_connection.h"

namespace sluice::channel {

struct RdmaPair {
  // False with `error`: this machine has no RDMA.
  bool open(std::string* error) {
    for (int i = 0; i < 2; ++i) {
      const auto device = RdmaDevice::open({}, error);
      if (!device || !(ends[i] = RdmaConnection::make(device, error))) return false;
    }
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) return false;
    for (int i = 0; i < 2; ++i) {
      if (!ends[i]->connect(ends[1 - i]->terms(), error)) return false;
      ends[i]->follow(sockets[i]);
    }
    return true;
  }
  ~RdmaPair() {
    ends[0].reset();
    ends[1].reset();
    for (int socket : sockets)
      if (socket >= 0) ::close(socket);
  }

  std::shared_ptr<RdmaConnection> ends[2];
  int sockets[2] = {-1, -1};
};

inline bool write_all(RdmaConnection& end, const void* data, size_t n) {
  iovec part{const_cast<void*>(data), n};
  return end.write(&part, 1);
}

// Until so many bytes have come. False: the connection ended before.
inline bool read_all(RdmaConnection& end, void* data, size_t n) {
  auto* to = static_cast<std::byte*>(data);
  while (n > 0) {
    const iovec part{to, n};
    const ssize_t got = end.read(&part, 1);
    if (got <= 0) return false;
    to += got;
    n -= static_cast<size_t>(got);
  }
  return true;
}

}  // namespace sluice::channel
