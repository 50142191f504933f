// SPDX-License-Identifier: Apache-2.0
// Copying large blocks of host memory with several threads: one core moves some 10 GiB/s, a bus
// five times that. Threads are started at the first large copy on machines with cores to spare,
// spin briefly between the pieces of one copy and sleep otherwise. One copy at a time (the staging
// lock).
#pragma once

#include <cstddef>

namespace sluice::client {

// memcpy, by several threads when it is worth it.
void crew_copy(std::byte* to, const std::byte* from, size_t bytes);

}  // namespace sluice::client
