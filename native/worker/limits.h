// SPDX-License-Identifier: Apache-2.0
// What a context's limits and the local memory of kernels take of a GPU, charged to the vGPU before
// the driver takes it (rule 6). Threads' stacks and local memory are one piece of memory: as much
// as the stack's limit or the largest kernel says, for every thread that the GPU runs at a time. It
// grows when a kernel is launched or a graph of it instantiated, and shrinks when the limit is set.
// Device heap and pending launches are allocated as large as their limits, once and for all, when
// code first needs them. What printf writes into lies in the node's memory. How this was measured:
// docs/decisions/0001-what-code-takes.md. What comes with every context is not charged.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>

#include "worker/driver.h"

namespace sluice::worker {

class Session;
struct Vgpu;

// The accounts of one vGPU.
struct Limits {
  std::mutex mutex;
  uint64_t threads = 0;                   // that the GPU runs at a time
  uint64_t base_bytes = 0;                // local memory of each that comes with the context
  std::atomic<uint64_t> thread_bytes{0};  // that are charged, base_bytes included
  struct Held {
    uint64_t base = 0, value = 0;
  };
  std::map<CUlimit, Held> held;  // of the others
};

// With the vGPU's context current.
void open_limits(const Driver& driver, Vgpu& v);

// cuCtxSetLimit.
CUresult set_limit(Session& s, Vgpu& v, CUlimit limit, uint64_t value);

// Before a kernel with so much local memory is launched or put into a graph. False: the vGPU has
// not so much memory left.
bool take_local_memory(Session& s, Vgpu& v, uint64_t thread_bytes);

// After the driver may have made that memory larger than was charged: code that lies about its
// kernels, and kernels that launch kernels, whose memory counts for the first of them. It says how
// large it is. What cannot be charged any more ends the session.
void settle_local_memory(Session& s, Vgpu& v);

}  // namespace sluice::worker
