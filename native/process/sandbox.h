// SPDX-License-Identifier: Apache-2.0
// What a worker may still do once its driver runs and before it hears of a client (rule 6): no
// capabilities, no new privileges, its own user, and only the system calls that drivers and this
// program need.
#pragma once

#include <cstdint>
#include <string>

namespace sluice::process {

// As much memory as RDMA takes may be locked: said while that may be said, before
// drop_privileges(). Whoever may not say so keeps what he has.
void allow_locked_memory();

// Drops to uid/gid (when running as root and they are not 0) and all capabilities. False with
// `error`.
bool drop_privileges(uint32_t uid, uint32_t gid, std::string* error);

// Refuses every system call that has no business in a worker: programs, other processes, mounts,
// modules, keys, listening sockets. `software`: the software GPU needs no devices, so sockets to
// anywhere, signals to others and changing the file tree go too. `rdma`: but what an RDMA device
// that is open already is asked by.
bool restrict_system_calls(bool software, bool rdma, std::string* error);

}  // namespace sluice::process
