// SPDX-License-Identifier: Apache-2.0
// The way from libcupti to libcuda.so.1, which has the session.
#pragma once

#include "client/profile/interface.h"

namespace sluice::cupti {

// Of the libcuda.so.1 that the process has, loaded if it has none; nullptr: there is none of ours.
const client::ProfileInterface* session();

// Says a line on the screen and in the log, each once in a process.
void say_once(const char* text);

}  // namespace sluice::cupti
