// SPDX-License-Identifier: Apache-2.0
// What a worker tells the server of its session: as `status`, and in `ended` for the last time
// (native/api/control.yaml).
#pragma once

#include <map>
#include <string>

namespace sluice::worker {

class Session;

// What it goes over now: a session that was to go over RDMA may have come to TCP.
std::string channel_of(Session& session);

// nullptr: it has none yet. Never waits for the GPU.
std::map<std::string, std::string> session_status(Session* session);

// Of launches as graphs: what was replayed, and what was left and why. A line for its log.
std::string merging_text(const Session& session);

}  // namespace sluice::worker
