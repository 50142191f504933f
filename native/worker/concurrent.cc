// SPDX-License-Identifier: Apache-2.0
#include "worker/concurrent.h"

#include "channel/futex.h"
#include "worker/gate.h"
#include "worker/session.h"
#include "worker/vgpu.h"

namespace sluice::worker {

namespace {

constexpr uint64_t kLookNs = 500'000;

// Streams first: a context cannot be waited for while one of its streams captures.
bool busy(Session& session, Vgpu& vgpu) {
  const Driver& d = session.driver;
  d.cuCtxSetCurrent(vgpu.gpu->context);
  const auto works = [&](CUstream stream) {
    return d.cuStreamQuery(stream) == CUDA_ERROR_NOT_READY;
  };
  return works(vgpu.gpu->house) || works(CU_STREAM_LEGACY);
}

}  // namespace

bool runs_under_mps(const Driver& driver, const std::vector<Gpu>& gpus, std::string* error) {
  for (const Gpu& gpu : gpus) {
    int enabled = 0;
    const CUresult e =
        driver.cuDeviceGetAttribute(&enabled, CU_DEVICE_ATTRIBUTE_MPS_ENABLED, gpu.ordinal);
    if (e == CUDA_SUCCESS && enabled != 0) continue;
    *error = "GPU " + uuid_text(gpu.uuid) + " does not run through MPS" +
             (e == CUDA_SUCCESS ? std::string(": its daemon cannot be reached")
                                : ": " + driver.error_text(e));
    return false;
  }
  return true;
}

void drain(Session& session) {
  for (auto& v : session.vgpus) v->gate->hold();
  for (auto& v : session.vgpus) {
    for (;;) {
      bool works = busy(session, *v);
      session.objects.streams.for_each([&](uint64_t, const StreamObject& s) {
        works |= session.driver.cuStreamQuery(s.handle) == CUDA_ERROR_NOT_READY;
      });
      if (!works) break;
      channel::sleep_ns(kLookNs);
    }
    // what libraries have on streams of their own
    session.driver.cuCtxSynchronize();
  }
}

}  // namespace sluice::worker
