// SPDX-License-Identifier: Apache-2.0
// libcupti.so.13. A profiler that cannot subscribe goes on without the GPU: Kineto, which is what
// torch.profiler stands on, warns once and records the CPU's side.
#include "client/absent/note.h"
#include "client/absent_cupti.inc"

constexpr uint32_t kApiVersion = 130001;  // of the CUPTI whose names are exported here

// Of the two above.
#include "client/absent/cupti_answers.h"
