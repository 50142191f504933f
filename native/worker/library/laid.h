// SPDX-License-Identifier: Apache-2.0
// What NVIDIA's libraries allocate in a call of the session's, laid as the session's own memory is:
// a physical allocation under an address that stays, so that it moves with the rest
// (memory_moves.h). Small pieces stay with the driver, which cuts many from one; so do what a
// library's own threads take, what is allocated in the order of a stream, and all of NCCL's, which
// other processes open. charge.h has charged it by then.
#pragma once

#include <cstdint>

#include "worker/session.h"

namespace sluice::worker {

// While this thread is in the call of a library whose memory may move.
class LaysMemory {
 public:
  explicit LaysMemory(bool may) : before_(t_here) { t_here = may; }
  ~LaysMemory() { t_here = before_; }
  LaysMemory(const LaysMemory&) = delete;
  static bool here() { return t_here; }

 private:
  static inline thread_local bool t_here = false;
  const bool before_;
};

// As cuMemAlloc of whole slabs; CUDA_ERROR_NOT_SUPPORTED: not here, the driver is to be asked.
CUresult lay(Session& s, Vgpu& v, uint64_t bytes, CUdeviceptr* address);
// As cuMemFree, which waits for the device's work. False: nothing was laid there.
bool lift(Session& s, CUdeviceptr address, CUresult* status);

}  // namespace sluice::worker
