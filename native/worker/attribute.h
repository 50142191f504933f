// SPDX-License-Identifier: Apache-2.0
// Attributes of launches, streams and kernel nodes, as commands bring them.
#pragma once

#include "worker/session.h"

namespace sluice::worker {

// False: rejected, as one that carries a handle, memory of nobody, or that there is not.
bool take_attribute(Session& s, const wire::LaunchAttribute& from, const char* what,
                    CUlaunchAttribute* to);

}  // namespace sluice::worker
