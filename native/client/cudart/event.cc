// SPDX-License-Identifier: Apache-2.0
// Events. Their flags have the driver's values.
#include "client/cudart/state.h"

using namespace sluice::cudart;

extern "C" {

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return forward(cuEventCreate, event, unsigned{cudaEventDefault});
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  return forward(cuEventCreate, event, flags);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) { return forward(cuEventDestroy_v2, event); }

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return forward(cuEventRecord, event, stream);
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int flags) {
  return forward(cuEventRecordWithFlags, event, stream, flags);
}

cudaError_t cudaEventQuery(cudaEvent_t event) { return forward(cuEventQuery, event); }

cudaError_t cudaEventSynchronize(cudaEvent_t event) { return forward(cuEventSynchronize, event); }

cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  return forward(cuEventElapsedTime_v2 != nullptr ? cuEventElapsedTime_v2 : cuEventElapsedTime, ms,
                 start, end);
}

}  // extern "C"
