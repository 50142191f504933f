// SPDX-License-Identifier: Apache-2.0
// What ends streams: their own command, and the end of the green context that they run in.
#pragma once

#include "worker/session.h"

namespace sluice::worker {

// Of one that the table has no more: out of the gate, out of the driver, out of the account. Under
// captures.mutex.
CUresult end_stream(Session& s, Vgpu& v, const StreamObject& o);

}  // namespace sluice::worker
