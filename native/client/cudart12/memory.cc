// SPDX-License-Identifier: Apache-2.0
// Advice, prefetching and batches of copies as CUDA 12 declares them: a device's number where a
// location came later, and the place of the copy that failed.
#include "abi/cuda12_runtime.h"
#include "client/cudart/state.h"

using namespace sluice::cudart;

namespace sluice::cuda12 {

extern "C" {

cudaError_t cudart12_cudaMemAdvise(const void* devPtr, size_t count, enum cudaMemoryAdvise advice,
                                   int device) {
  return forward(cuMemAdvise, device_address(devPtr), count, static_cast<CUmem_advise>(advice),
                 device);
}

cudaError_t cudart12_cudaMemPrefetchAsync(const void* devPtr, size_t count, int dstDevice,
                                          cudaStream_t stream) {
  return forward(cuMemPrefetchAsync, device_address(devPtr), count, dstDevice, stream);
}

cudaError_t cudart12_cudaMemcpyBatchAsync(void** dsts, void** srcs, size_t* sizes, size_t count,
                                          struct cudaMemcpyAttributes* attrs, size_t* attrsIdxs,
                                          size_t numAttrs, size_t* failIdx, cudaStream_t stream) {
  return forward(cuMemcpyBatchAsync, reinterpret_cast<CUdeviceptr*>(dsts),
                 reinterpret_cast<CUdeviceptr*>(srcs), sizes, count,
                 same<CUmemcpyAttributes>(attrs), attrsIdxs, numAttrs, failIdx, stream);
}

cudaError_t cudart12_cudaMemcpy3DBatchAsync(size_t numOps, struct cudaMemcpy3DBatchOp* opList,
                                            size_t* failIdx, unsigned long long flags,
                                            cudaStream_t stream) {
  return forward(cuMemcpy3DBatchAsync, numOps, same<CUDA_MEMCPY3D_BATCH_OP>(opList), failIdx, flags,
                 stream);
}

}  // extern "C"

}  // namespace sluice::cuda12
