// SPDX-License-Identifier: Apache-2.0
#include "worker/dispatch.h"

namespace sluice::worker {

void add_generated_handlers(DispatchTable&) {}

}  // namespace sluice::worker
