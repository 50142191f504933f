// SPDX-License-Identifier: Apache-2.0
// The socket of a process of which a host has one (doorbell, arbiter): it makes its own, as it
// outlives the server that started it.
#pragma once

#include <string>

namespace sluice::process {

// A listening SOCK_SEQPACKET socket at `path`, its owner's alone. -1 with `error`.
int listen_at(const std::string& path, std::string* error);

// "--control SOCKET" and nothing else. False: main() prints its usage.
bool control_path(int argc, char** argv, std::string* path);

}  // namespace sluice::process
