// SPDX-License-Identifier: Apache-2.0
// The answer to OpenSession: its head, the session's record and one of each vGPU
// (native/api/protocol.yaml), in which the client finds whatever it can answer without asking.
// Session::open() has it written once the vGPUs have their windows and limits.
#pragma once

#include <cstddef>
#include <vector>

#include "worker/session.h"

namespace sluice::worker {

std::vector<std::byte> session_record(Session& s);

}  // namespace sluice::worker
