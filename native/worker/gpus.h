// SPDX-License-Identifier: Apache-2.0
// The GPUs that this process sees, each with its primary context retained and a stream of the
// worker's own: made once, before there is a session, and kept until the process ends.
#pragma once

#include <string>
#include <vector>

#include "worker/vgpu.h"

namespace sluice::worker {

// Initialises the driver. False with `error`: it does not run, shows no GPU, or has no context for
// one of them.
bool open_gpus(const Driver& driver, std::vector<Gpu>* gpus, std::string* error);

}  // namespace sluice::worker
