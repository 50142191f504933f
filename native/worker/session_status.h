// SPDX-License-Identifier: Apache-2.0
// What a worker tells the server of its session: as `status`, and in `ended` for the last time
// (native/api/control.yaml).
#pragma once

#include <map>
#include <string>

namespace sluice::worker {

class Session;

// nullptr: it has none yet. Never waits for the GPU.
std::map<std::string, std::string> session_status(Session* session);

}  // namespace sluice::worker
