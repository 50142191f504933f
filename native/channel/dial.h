// SPDX-License-Identifier: Apache-2.0
// Connections to a host and port, made before a deadline.
#pragma once

#include <string>

#include "tls/socket_wait.h"

namespace sluice::channel {

// A connected socket that blocks, or -1 with `error`. Each address of the name has its own share of
// the time that is left, so that one which is dead does not take that of the others.
int dial(const std::string& host, const std::string& port, tls::Deadline deadline,
         std::string* error);

// How long a read of the socket waits at most; 0: for ever.
void set_patience(int socket, int seconds);

}  // namespace sluice::channel
