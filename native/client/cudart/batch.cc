// SPDX-License-Identifier: Apache-2.0
// Batches of copies, prefetches and discards, and the driver's log: the driver's own functions
// under other names.
#include "client/cudart/state.h"

using namespace sluice::cudart;

namespace {

// Arrays of pointers that the driver takes as arrays of addresses and does not write.
CUdeviceptr* addresses(const void* const* pointers) {
  return reinterpret_cast<CUdeviceptr*>(const_cast<void**>(pointers));
}

}  // namespace

extern "C" {

cudaError_t cudaMemcpyBatchAsync(void* const* dsts, const void* const* srcs, const size_t* sizes,
                                 size_t count, struct cudaMemcpyAttributes* attrs,
                                 size_t* attrsIdxs, size_t numAttrs, cudaStream_t stream) {
  return forward(cuMemcpyBatchAsync_v2, addresses(dsts), addresses(srcs),
                 const_cast<size_t*>(sizes), count, same<CUmemcpyAttributes>(attrs), attrsIdxs,
                 numAttrs, stream);
}

cudaError_t cudaMemcpy3DBatchAsync(size_t numOps, struct cudaMemcpy3DBatchOp* opList,
                                   unsigned long long flags, cudaStream_t stream) {
  return forward(cuMemcpy3DBatchAsync_v2, numOps, same<CUDA_MEMCPY3D_BATCH_OP>(opList), flags,
                 stream);
}

cudaError_t cudaMemPrefetchBatchAsync(void** dptrs, size_t* sizes, size_t count,
                                      struct cudaMemLocation* prefetchLocs, size_t* prefetchLocIdxs,
                                      size_t numPrefetchLocs, unsigned long long flags,
                                      cudaStream_t stream) {
  return forward(cuMemPrefetchBatchAsync, addresses(dptrs), sizes, count,
                 same<CUmemLocation>(prefetchLocs), prefetchLocIdxs, numPrefetchLocs, flags,
                 stream);
}

cudaError_t cudaMemDiscardBatchAsync(void** dptrs, size_t* sizes, size_t count,
                                     unsigned long long flags, cudaStream_t stream) {
  return forward(cuMemDiscardBatchAsync, addresses(dptrs), sizes, count, flags, stream);
}

cudaError_t cudaMemDiscardAndPrefetchBatchAsync(void** dptrs, size_t* sizes, size_t count,
                                                struct cudaMemLocation* prefetchLocs,
                                                size_t* prefetchLocIdxs, size_t numPrefetchLocs,
                                                unsigned long long flags, cudaStream_t stream) {
  return forward(cuMemDiscardAndPrefetchBatchAsync, addresses(dptrs), sizes, count,
                 same<CUmemLocation>(prefetchLocs), prefetchLocIdxs, numPrefetchLocs, flags,
                 stream);
}

cudaError_t cudaDeviceRegisterAsyncNotification(int device, cudaAsyncCallback callbackFunc,
                                                void* userData,
                                                cudaAsyncCallbackHandle_t* callback) {
  return forward_without_context(cuDeviceRegisterAsyncNotification, device,
                                 reinterpret_cast<CUasyncCallback>(callbackFunc), userData,
                                 reinterpret_cast<CUasyncCallbackHandle*>(callback));
}

cudaError_t cudaDeviceUnregisterAsyncNotification(int device, cudaAsyncCallbackHandle_t callback) {
  return forward_without_context(cuDeviceUnregisterAsyncNotification, device,
                                 reinterpret_cast<CUasyncCallbackHandle>(callback));
}

cudaError_t cudaLogsRegisterCallback(cudaLogsCallback_t callbackFunc, void* userData,
                                     cudaLogsCallbackHandle* callback_out) {
  return forward_without_context(cuLogsRegisterCallback,
                                 reinterpret_cast<CUlogsCallback>(callbackFunc), userData,
                                 callback_out);
}

cudaError_t cudaLogsUnregisterCallback(cudaLogsCallbackHandle callback) {
  return forward_without_context(cuLogsUnregisterCallback, callback);
}

cudaError_t cudaLogsCurrent(cudaLogIterator* iterator_out, unsigned int flags) {
  return forward_without_context(cuLogsCurrent, iterator_out, flags);
}

cudaError_t cudaLogsDumpToFile(cudaLogIterator* iterator, const char* pathToFile,
                               unsigned int flags) {
  return forward_without_context(cuLogsDumpToFile, iterator, pathToFile, flags);
}

cudaError_t cudaLogsDumpToMemory(cudaLogIterator* iterator, char* buffer, size_t* size,
                                 unsigned int flags) {
  return forward_without_context(cuLogsDumpToMemory, iterator, buffer, size, flags);
}

}  // extern "C"
