// SPDX-License-Identifier: Apache-2.0
// Two connected ends of an RDMA connection in one process, over this machine's first device, each
// with its end of a socket pair beside it.
#pragma once

#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

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

#define NEEDS_RDMA(pair)                                                 \
  RdmaPair pair;                                                         \
  {                                                                      \
    std::string error;                                                   \
    if (!(pair).open(&error)) GTEST_SKIP() << "no RDMA here: " << error; \
  }

inline std::vector<char> some_bytes(size_t n, unsigned seed) {
  std::vector<char> bytes(n);
  for (size_t i = 0; i < n; ++i) {
    seed = seed * 1664525 + 1013904223;
    bytes[i] = static_cast<char>(seed >> 24);
  }
  return bytes;
}

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

// As pinned memory is made.
class Owned {
 public:
  explicit Owned(size_t n, unsigned seed = 0) : bytes_(n) {
    void* at = mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    at_ = at == MAP_FAILED ? nullptr : static_cast<std::byte*>(at);
    if (seed) std::memcpy(at_, some_bytes(n, seed).data(), n);
    OwnMemory::add(at_, n);
  }
  ~Owned() {
    OwnMemory::remove(at_);
    munmap(at_, bytes_);
  }
  Owned(const Owned&) = delete;
  std::byte* at(size_t offset = 0) const { return at_ + offset; }
  size_t bytes() const { return bytes_; }
  bool holds(const void* what, size_t n, size_t offset = 0) const {
    return std::memcmp(at_ + offset, what, n) == 0;
  }

 private:
  std::byte* at_;
  const size_t bytes_;
};

inline bool write_kept(RdmaConnection& end, const void* head, size_t head_bytes, const void* bulk,
                       size_t n) {
  iovec parts[2] = {{const_cast<void*>(head), head_bytes}, {const_cast<void*>(bulk), n}};
  return end.write_kept(parts, 2);
}

}  // namespace sluice::channel
