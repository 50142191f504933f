// SPDX-License-Identifier: Apache-2.0
// Sending and receiving on a socket until a moment, whatever mode it is in. Used while a connection
// is made, when the other side is not trusted to answer at all.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

namespace sluice::tls {

using Deadline = std::chrono::steady_clock::time_point;

// "for ever": as long as the connection lives.
inline constexpr Deadline kNever = Deadline::max();
inline Deadline in_seconds(int seconds) {
  return std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
}

// Whether poll() says so before the deadline; errors of the socket count as ready.
bool wait_for(int socket, short events, Deadline deadline);
// All of it, or false with `error`.
bool send_by(int socket, const void* data, size_t n, Deadline deadline, std::string* error);
// At least one byte; 0 at the end, -1 with `error`.
long receive_by(int socket, void* data, size_t n, Deadline deadline, std::string* error);
// All of it, or false with `error`.
bool receive_all_by(int socket, void* data, size_t n, Deadline deadline, std::string* error);

}  // namespace sluice::tls
