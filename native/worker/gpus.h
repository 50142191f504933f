// SPDX-License-Identifier: Apache-2.0
// The GPUs that this process uses, each with its primary context retained and a stream of the
// worker's own: made once, before there is a session, and kept until the process ends. They are the
// first of those that it sees. Others it sees so that the driver can restore on them what it took
// off its own (docs/suspension.md, "On another GPU"): nothing of it is ever there before that.
#pragma once

#include <string>
#include <vector>

#include "worker/vgpu.h"

namespace sluice::worker {

// Initialises the driver, and takes the GPUs with these UUIDs, with commas; none named: all that it
// sees. False with `error`: it does not run, does not show them first, or has no context for one.
bool open_gpus(const Driver& driver, const std::string& own, std::vector<Gpu>* gpus,
               std::string* error);

}  // namespace sluice::worker
