// SPDX-License-Identifier: Apache-2.0
#include "worker/library/laid.h"

#include <algorithm>

#include "worker/memory.h"

namespace sluice::worker {

namespace {

// The vGPU's context on this thread, whose own comes back: Session::use() remembers that.
class InContext {
 public:
  InContext(const Driver& driver, const Vgpu& v) : driver_(driver) {
    good_ = driver.cuCtxPushCurrent_v2(v.gpu->context) == CUDA_SUCCESS;
  }
  ~InContext() {
    CUcontext popped = nullptr;
    if (good_) driver_.cuCtxPopCurrent_v2(&popped);
  }
  InContext(const InContext&) = delete;

 private:
  const Driver& driver_;
  bool good_;
};

}  // namespace

CUresult lay(Session& s, Vgpu& v, uint64_t bytes, CUdeviceptr* address) {
  if (!LaysMemory::here()) return CUDA_ERROR_NOT_SUPPORTED;
  const Driver& d = s.driver;
  const InContext in(d, v);
  CUdeviceptr at = 0;
  if (d.cuMemAddressReserve(&at, bytes, 0, 0, 0) != CUDA_SUCCESS) return CUDA_ERROR_OUT_OF_MEMORY;
  Vgpu::Laid laid{bytes, 0};
  const CUmemAccessDesc access = full_access_of(*v.gpu);
  const CUresult e = map_new(d, *v.gpu, at, bytes, &laid.handle,
                             [&] { return d.cuMemSetAccess(at, bytes, &access, 1); });
  if (e != CUDA_SUCCESS) {
    d.cuMemAddressFree(at, bytes);
    return e;
  }
  std::lock_guard lock(v.mutex);
  v.laid.emplace(at, laid);
  v.memory.lay(bytes);
  *address = at;
  return CUDA_SUCCESS;
}

bool lift(Session& s, CUdeviceptr address, CUresult* status) {
  const auto holds = [&](const auto& v) {
    std::lock_guard lock(v->mutex);
    return v->laid.contains(address);
  };
  const auto owner = std::ranges::find_if(s.vgpus, holds);
  if (owner == s.vgpus.end()) return false;
  Vgpu& v = **owner;
  const Driver& d = s.driver;
  // A library's own thread waits; one that runs a command is not kept back in the middle of it.
  const bool waits = !Cut::runs_command();
  if (waits) s.cut.wait_until_open();
  const InContext in(d, v);
  *status = d.cuCtxSynchronize();
  if (*status != CUDA_SUCCESS) return true;  // as cuMemFree: it stays
  Vgpu::Laid laid;
  for (bool found = false; !found;) {
    if (waits) s.cut.wait_until_open();
    std::lock_guard lock(v.mutex);
    if (waits && s.cut.closed()) continue;  // else a move might have seen it
    auto extracted = v.laid.extract(address);
    if (!extracted) return *status = CUDA_ERROR_INVALID_VALUE, true;  // freed twice at once
    laid = extracted.mapped();
    v.memory.lift(laid.bytes);
    found = true;
  }
  *status = d.cuMemUnmap(address, laid.bytes);
  const CUresult released = d.cuMemRelease(laid.handle);
  if (*status == CUDA_SUCCESS) *status = released;
  d.cuMemAddressFree(address, laid.bytes);
  return true;
}

}  // namespace sluice::worker
