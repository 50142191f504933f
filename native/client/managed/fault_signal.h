// SPDX-License-Identifier: Apache-2.0
// The signal by which a touch of managed memory is learned of (SIGSEGV), shared with the program.
// A handler of the program's, had before or set later, gets what is none of managed memory's, with
// the mask and flags that it asked for; without one the process ends as it would. Nothing is
// installed before the first managed memory of the process.
#pragma once

#include <csignal>

namespace sluice::client {

// Called for each piece of managed memory: installs the handler, and sees to it that the program's
// calls reach us (managed/interposition.h), those of libraries that were loaded since included.
void watch_faults();

// sigaction() and signal() of the program for SIGSEGV, once the handler is installed.
int program_sigaction(const struct sigaction* wanted, struct sigaction* had);

}  // namespace sluice::client
