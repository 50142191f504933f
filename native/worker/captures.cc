// SPDX-License-Identifier: Apache-2.0
#include "worker/captures.h"

#include "worker/session.h"

namespace sluice::worker {

namespace {

// For what the legacy stream had when something last began to capture.
CUresult wait_for_legacy(Session& s, Vgpu* v) {
  CUevent done;
  {
    std::lock_guard lock(s.captures.mutex);
    done = v->legacy_done;
  }
  return done ? s.driver.cuEventSynchronize(done) : CUDA_SUCCESS;
}

}  // namespace

bool capturing(Session& s, CUstream stream) {
  if (!s.captures.any()) return false;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return s.driver.cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS &&
         status != CU_STREAM_CAPTURE_STATUS_NONE;
}

void keep_out(Session& s, CUstream stream, Vgpu* v) {
  v->gate->leave(stream);
  v->gate->leave(CU_STREAM_LEGACY);
  // Once a blocking stream captures, the legacy stream can be asked no more.
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (s.driver.cuStreamIsCapturing(CU_STREAM_LEGACY, &status) != CUDA_SUCCESS) return;
  if (!v->legacy_done &&
      s.driver.cuEventCreate(&v->legacy_done, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
    return;
  s.driver.cuEventRecord(v->legacy_done, CU_STREAM_LEGACY);
}

CUresult wait_idle(Session& s, Vgpu* v) {
  if (!s.captures.any()) {
    const CUresult e = s.driver.cuCtxSynchronize();
    if (!is_capture_error(e)) return e;
    // A capture has begun since, which may be one of the worker's own: those end soon.
    std::lock_guard lock(s.captures.mutex);
    if (!s.captures.any()) return s.driver.cuCtxSynchronize();
  }
  // A context with a stream that captures cannot be waited for as a whole, in no mode.
  CUresult result = CUDA_SUCCESS;
  const auto wait = [&](CUstream stream) {
    if (result == CUDA_SUCCESS && !capturing(s, stream))
      result = s.driver.cuStreamSynchronize(stream);
  };
  s.objects.streams.for_each([&](uint64_t, const StreamObject& o) {
    if (s.vgpus[o.device].get() == v) wait(o.handle);
  });
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (s.driver.cuStreamIsCapturing(CU_STREAM_LEGACY, &status) == CUDA_SUCCESS)
    wait(CU_STREAM_LEGACY);
  else if (result == CUDA_SUCCESS)
    result = wait_for_legacy(s, v);
  return result;
}

}  // namespace sluice::worker
