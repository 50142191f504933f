// SPDX-License-Identifier: Apache-2.0
#include "wire/control.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace sluice::wire {

namespace {
constexpr size_t kPacket = 64 << 10;
constexpr size_t kDescriptors = 8;
}  // namespace

const std::string& Message::text(const std::string& key) const {
  static const std::string none;
  const auto it = values.find(key);
  return it == values.end() ? none : it->second;
}

bool Message::number(const std::string& key, uint64_t low, uint64_t high, uint64_t* value) const {
  const std::string& t = text(key);
  if (t.empty() || t.find_first_not_of("0123456789") != std::string::npos || t.size() > 19)
    return false;
  *value = std::strtoull(t.c_str(), nullptr, 10);
  return *value >= low && *value <= high;
}

void Control::accept() {
  const int c = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
  if (c < 0) return;
  std::lock_guard lock(send_mutex_);
  if (connection_ >= 0) ::close(connection_);
  connection_ = c;
}

void Control::disconnect() {
  std::lock_guard lock(send_mutex_);
  if (connection_ >= 0) ::close(connection_);
  connection_ = -1;
}

bool Control::receive(Message* message) {
  std::string packet(kPacket, '\0');
  alignas(cmsghdr) char control[CMSG_SPACE(kDescriptors * sizeof(int))];
  iovec io{packet.data(), packet.size()};
  msghdr m{};
  m.msg_iov = &io;
  m.msg_iovlen = 1;
  m.msg_control = control;
  m.msg_controllen = sizeof control;
  ssize_t n;
  do n = recvmsg(connection_, &m, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  while (n < 0 && errno == EINTR);
  for (cmsghdr* c = CMSG_FIRSTHDR(&m); n >= 0 && c; c = CMSG_NXTHDR(&m, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
      message->descriptors.push_back(fd);
    }
  }
  // poll() may have spoken of the connection before this one.
  if (n < 0 && errno == EAGAIN) return false;
  if (n <= 0) {
    disconnect();
    return false;
  }
  packet.resize(static_cast<size_t>(n));
  size_t at = 0;
  for (bool first = true; at < packet.size(); first = false) {
    size_t end = packet.find('\n', at);
    if (end == std::string::npos) end = packet.size();
    const std::string line = packet.substr(at, end - at);
    at = end + 1;
    const size_t equal = line.find('=');
    if (first)
      message->verb = line;
    else if (equal != std::string::npos)
      message->values[line.substr(0, equal)] = line.substr(equal + 1);
  }
  return true;
}

bool Control::send(const std::string& verb, const std::map<std::string, std::string>& values,
                   int descriptor) {
  std::string packet = verb + "\n";
  for (const auto& [key, value] : values) {
    std::string line = value;
    for (char& c : line)
      if (c == '\n') c = ' ';
    packet += key + "=" + line + "\n";
  }
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  iovec io{packet.data(), packet.size()};
  msghdr m{};
  m.msg_iov = &io;
  m.msg_iovlen = 1;
  if (descriptor >= 0) {
    m.msg_control = control;
    m.msg_controllen = sizeof control;
    cmsghdr* c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof descriptor);
    std::memcpy(CMSG_DATA(c), &descriptor, sizeof descriptor);
  }
  std::lock_guard lock(send_mutex_);
  return connection_ >= 0 && sendmsg(connection_, &m, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0;
}

}  // namespace sluice::wire
