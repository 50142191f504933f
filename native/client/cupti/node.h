// SPDX-License-Identifier: Apache-2.0
// What the nodes' CUPTI recorded. The client believes nothing of it: sizes, kinds, devices, names
// and correlation ids are checked, and what does not fit is dropped and said once.
#pragma once

#include <cstdint>
#include <string>

namespace sluice::cupti {

// Has every node of the session record `activities` (bits 1 << kind) from now on. False: `why` says
// what is missing where.
bool set_nodes(uint64_t activities, std::string* why);
// Brings what there is and gives it to the recorder.
void fetch_nodes(bool forced);

}  // namespace sluice::cupti
