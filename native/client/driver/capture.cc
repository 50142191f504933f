// SPDX-License-Identifier: Apache-2.0
// What is asked about stream capture while it is not spoken: no stream is capturing, so nothing
// else is written (as CUDA does).
#include "client/core/session.h"

using namespace sluice::client;

namespace {

CUresult not_capturing(CUstream handle, CUstreamCaptureStatus* status) {
  Session* s;
  Device* d;
  Stream* stream;
  if (const CUresult e = enter(&s, &d); e != CUDA_SUCCESS) return e;
  if (const CUresult e = resolve_stream(s, d, handle, &stream); e != CUDA_SUCCESS) return e;
  if (!status) return CUDA_ERROR_INVALID_VALUE;
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t*) {
  return not_capturing(stream, status);
}

CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t*,
                                   CUgraph*, const CUgraphNode**, size_t*) {
  return not_capturing(stream, status);
}

CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t*,
                                   CUgraph*, const CUgraphNode**, const CUgraphEdgeData**,
                                   size_t*) {
  return not_capturing(stream, status);
}

}  // extern "C"
