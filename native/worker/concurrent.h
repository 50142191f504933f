// SPDX-License-Identifier: Apache-2.0
// A worker that is a client of NVIDIA's MPS (docs/decisions/0005): its session runs at once with
// others of its project. The driver runs without MPS, and says nothing, where it cannot reach the
// daemon; and a client that ends with work under way takes its neighbours with it. So a worker
// looks whether it is one, and drains before it exits.
#pragma once

#include <string>
#include <vector>

#include "worker/driver.h"
#include "worker/gpus.h"

namespace sluice::worker {

class Session;

// Whether the driver runs all of these GPUs through MPS. False with `error`.
bool runs_under_mps(const Driver& driver, const std::vector<Gpu>& gpus, std::string* error);

// Lets nothing pass the session's gates any more and waits until its GPUs have done what did: as
// long as that takes, or until MPS has been told to end this client.
void drain(Session& session);

}  // namespace sluice::worker
