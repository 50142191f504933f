// SPDX-License-Identifier: Apache-2.0
// Streams: their life, order among each other, attributes, and host functions queued on them.
#include "client/cudart/state.h"

using namespace sluice::cudart;

static_assert(sizeof(cudaLaunchAttributeValue) == sizeof(CUlaunchAttributeValue));

extern "C" {

cudaError_t cudaStreamCreate(cudaStream_t* pStream) {
  return forward(cuStreamCreate, pStream, unsigned{cudaStreamDefault});
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* pStream, unsigned int flags) {
  return forward(cuStreamCreate, pStream, flags);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* pStream, unsigned int flags, int priority) {
  return forward(cuStreamCreateWithPriority, pStream, flags, priority);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread) {
    return record(cudaErrorInvalidResourceHandle);
  }
  return forward(cuStreamDestroy_v2, stream);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return forward(cuStreamSynchronize, stream);
}

cudaError_t cudaStreamQuery(cudaStream_t stream) { return forward(cuStreamQuery, stream); }

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags) {
  return forward(cuStreamWaitEvent, stream, event, flags);
}

cudaError_t cudaStreamGetPriority(cudaStream_t hStream, int* priority) {
  return forward(cuStreamGetPriority, hStream, priority);
}

cudaError_t cudaStreamGetFlags(cudaStream_t hStream, unsigned int* flags) {
  return forward(cuStreamGetFlags, hStream, flags);
}

cudaError_t cudaStreamGetId(cudaStream_t hStream, unsigned long long* streamId) {
  return forward(cuStreamGetId, hStream, streamId);
}

cudaError_t cudaStreamGetDevice(cudaStream_t hStream, int* device) {
  if (device == nullptr) return record(cudaErrorInvalidValue);
  CUdevice handle = 0;
  const cudaError_t error = forward(cuStreamGetDevice, hStream, &handle);
  return error != cudaSuccess ? error : record(ordinal_of(handle, device));
}

cudaError_t cudaStreamCopyAttributes(cudaStream_t dst, cudaStream_t src) {
  return forward(cuStreamCopyAttributes, dst, src);
}

cudaError_t cudaStreamGetAttribute(cudaStream_t hStream, cudaLaunchAttributeID attr,
                                   cudaLaunchAttributeValue* value_out) {
  return forward(cuStreamGetAttribute, hStream, static_cast<CUstreamAttrID>(attr),
                 reinterpret_cast<CUstreamAttrValue*>(value_out));
}

cudaError_t cudaStreamSetAttribute(cudaStream_t hStream, cudaLaunchAttributeID attr,
                                   const cudaLaunchAttributeValue* value) {
  return forward(cuStreamSetAttribute, hStream, static_cast<CUstreamAttrID>(attr),
                 reinterpret_cast<const CUstreamAttrValue*>(value));
}

cudaError_t cudaStreamAttachMemAsync(cudaStream_t stream, void* devPtr, size_t length,
                                     unsigned int flags) {
  return forward(cuStreamAttachMemAsync, stream, device_address(devPtr), length, flags);
}

// cudaError_t and CUresult are both ints with the same values, so the callback is the driver's.
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback,
                                  void* userData, unsigned int flags) {
  if (callback == nullptr) return record(cudaErrorInvalidValue);
  return forward(cuStreamAddCallback, stream, reinterpret_cast<CUstreamCallback>(callback),
                 userData, flags);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void* userData) {
  if (fn == nullptr) return record(cudaErrorInvalidValue);
  return forward(cuLaunchHostFunc, stream, static_cast<CUhostFn>(fn), userData);
}

}  // extern "C"
