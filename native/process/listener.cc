// SPDX-License-Identifier: Apache-2.0
#include "process/listener.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace sluice::process {

int listen_at(const std::string& path, std::string* error) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    return *error = "the socket's path is too long: " + path, -1;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  umask(0177);
  if (s >= 0 && bind(s, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
      listen(s, 4) == 0)
    return s;
  *error = path + ": " + std::strerror(errno);
  if (s >= 0) close(s);
  return -1;
}

bool control_path(int argc, char** argv, std::string* path) {
  if (argc != 3 || std::strcmp(argv[1], "--control") != 0) return false;
  *path = argv[2];
  return true;
}

}  // namespace sluice::process
