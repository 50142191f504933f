// SPDX-License-Identifier: Apache-2.0
// What the server said that a session is: read from its message, never changed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice::process {
struct Message;
}

namespace sluice::worker {

// Whether commands that repeat are launched as graphs; kForce: at once, for tests.
enum class Merging : uint8_t { kOff, kAuto, kForce };

struct SessionPlan {
  std::string id, grant, channel;
  struct VgpuPlan {
    std::string device;  // UUID
    uint64_t memory_mib;
    uint32_t compute_percent;
    uint32_t grant_index = 0;
  };
  std::vector<VgpuPlan> vgpus;
  uint64_t grant_vgpus = 0;  // 0: the workers of other grants are this user, too
  // The client's vGPUs on all nodes, each of which has an address window, and the first of this
  // session's among them. 0: it has these only.
  uint64_t windows = 0, first_window = 0;
  // How long it may be without a connection; 0: it ends with that. Where the other end was closed,
  // so that the client may have ended, it is the second.
  uint32_t network_grace_seconds = 0, closed_grace_seconds = 0;
  // Of the client's runtime, as its OpenSession says: 12090 = 12.9. 0: the server did not pass it
  // on.
  uint32_t cuda_version = 0;
  Merging merging = Merging::kOff;
};

// What the message `session` says (native/api/control.yaml).
SessionPlan read_plan(const process::Message& message);

}  // namespace sluice::worker
