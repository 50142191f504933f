// SPDX-License-Identifier: Apache-2.0
// What one GPU may do with another's memory: asked of the driver for the session's record, and kept
// on every mapping that a vGPU's users have enabled.
#pragma once

#include "worker/session.h"

namespace sluice::worker {

struct PeerLink {
  bool access = false, atomics = false;
  uint8_t rank = 0;
};
PeerLink peer_link(const Driver& driver, const Gpu& from, const Gpu& to);

// Reading and writing for the vGPU whose memory it is and for all that may use that. The caller
// holds the owner's mutex.
CUresult set_usual_access(Session& s, const Vgpu& owner, uint64_t address, uint64_t bytes);

}  // namespace sluice::worker
