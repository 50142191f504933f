// SPDX-License-Identifier: Apache-2.0
// Opening a session over a connection, to a GPU node's data port or by vsock to the own host's: the
// request is presented, the reply and the session's record are read. Used by the client and by the
// relay.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "channel/stream.h"

namespace sluice::channel {

struct Opened {
  std::vector<std::byte> reply;  // OpenReply with the session's record
  // Where it was not: the line for the user, and the CUresult (0: none was said).
  std::string error;
  uint32_t status = 0;
};

// So many bytes, however they come. False: the connection ended before.
bool read_exact(Stream* stream, void* data, size_t n);

// `request`: an OpenSession, with its key where one is needed. `server`: who answers, for the line.
// `waits` is told each line of a server that waits for a grant itself.
bool open_over(Stream* stream, std::span<const std::byte> request, const std::string& server,
               Opened* opened, const std::function<void(const char* line)>& waits = {});

}  // namespace sluice::channel
