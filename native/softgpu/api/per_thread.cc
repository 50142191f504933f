// SPDX-License-Identifier: Apache-2.0
// The variants that programs built for a per-thread default stream call: the same functions, in
// which stream 0 means CU_STREAM_PER_THREAD.
#include "softgpu/api/api.h"

namespace sluice::softgpu {
namespace {

template <class... Parameters, class... Arguments>
CUresult call(CUresult (*function)(Parameters...), Arguments... arguments) noexcept {
  PerThreadDefault scope;
  return function(arguments...);
}

}  // namespace
}  // namespace sluice::softgpu

using sluice::softgpu::call;

CUresult cuEventRecordWithFlags_ptsz(CUevent hEvent, CUstream hStream, unsigned int flags) {
  return call(cuEventRecordWithFlags, hEvent, hStream, flags);
}
CUresult cuEventRecord_ptsz(CUevent hEvent, CUstream hStream) {
  return call(cuEventRecord, hEvent, hStream);
}
CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec* phGraphExec, CUgraph hGraph,
                                           CUDA_GRAPH_INSTANTIATE_PARAMS* instantiateParams) {
  return call(cuGraphInstantiateWithParams, phGraphExec, hGraph, instantiateParams);
}
CUresult cuGraphLaunch_ptsz(CUgraphExec hGraphExec, CUstream hStream) {
  return call(cuGraphLaunch, hGraphExec, hStream);
}
CUresult cuGraphUpload_ptsz(CUgraphExec hGraphExec, CUstream hStream) {
  return call(cuGraphUpload, hGraphExec, hStream);
}
CUresult cuLaunchCooperativeKernel_ptsz(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                                        unsigned int gridDimZ, unsigned int blockDimX,
                                        unsigned int blockDimY, unsigned int blockDimZ,
                                        unsigned int sharedMemBytes, CUstream hStream,
                                        void** kernelParams) {
  return call(cuLaunchCooperativeKernel, f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY,
              blockDimZ, sharedMemBytes, hStream, kernelParams);
}
CUresult cuLaunchHostFunc_ptsz(CUstream hStream, CUhostFn fn, void* userData) {
  return call(cuLaunchHostFunc, hStream, fn, userData);
}
CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig* config, CUfunction f, void** kernelParams,
                               void** extra) {
  return call(cuLaunchKernelEx, config, f, kernelParams, extra);
}
CUresult cuLaunchKernel_ptsz(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                             unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,
                             unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
                             void** kernelParams, void** extra) {
  return call(cuLaunchKernel, f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ,
              sharedMemBytes, hStream, kernelParams, extra);
}
CUresult cuMemAllocAsync_ptsz(CUdeviceptr* dptr, size_t bytesize, CUstream hStream) {
  return call(cuMemAllocAsync, dptr, bytesize, hStream);
}
CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* dptr, size_t bytesize, CUmemoryPool pool,
                                      CUstream hStream) {
  return call(cuMemAllocFromPoolAsync, dptr, bytesize, pool, hStream);
}
CUresult cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream hStream) {
  return call(cuMemFreeAsync, dptr, hStream);
}
CUresult cuMemcpy2DAsync_v2_ptsz(const CUDA_MEMCPY2D* pCopy, CUstream hStream) {
  return call(cuMemcpy2DAsync_v2, pCopy, hStream);
}
CUresult cuMemcpy2DUnaligned_v2_ptds(const CUDA_MEMCPY2D* pCopy) {
  return call(cuMemcpy2DUnaligned_v2, pCopy);
}
CUresult cuMemcpy2D_v2_ptds(const CUDA_MEMCPY2D* pCopy) { return call(cuMemcpy2D_v2, pCopy); }
CUresult cuMemcpy3DAsync_v2_ptsz(const CUDA_MEMCPY3D* pCopy, CUstream hStream) {
  return call(cuMemcpy3DAsync_v2, pCopy, hStream);
}
CUresult cuMemcpy3DPeerAsync_ptsz(const CUDA_MEMCPY3D_PEER* pCopy, CUstream hStream) {
  return call(cuMemcpy3DPeerAsync, pCopy, hStream);
}
CUresult cuMemcpy3DPeer_ptds(const CUDA_MEMCPY3D_PEER* pCopy) {
  return call(cuMemcpy3DPeer, pCopy);
}
CUresult cuMemcpy3D_v2_ptds(const CUDA_MEMCPY3D* pCopy) { return call(cuMemcpy3D_v2, pCopy); }
CUresult cuMemcpyAsync_ptsz(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream) {
  return call(cuMemcpyAsync, dst, src, ByteCount, hStream);
}
CUresult cuMemcpyDtoDAsync_v2_ptsz(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount,
                                   CUstream hStream) {
  return call(cuMemcpyDtoDAsync_v2, dstDevice, srcDevice, ByteCount, hStream);
}
CUresult cuMemcpyDtoD_v2_ptds(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount) {
  return call(cuMemcpyDtoD_v2, dstDevice, srcDevice, ByteCount);
}
CUresult cuMemcpyDtoHAsync_v2_ptsz(void* dstHost, CUdeviceptr srcDevice, size_t ByteCount,
                                   CUstream hStream) {
  return call(cuMemcpyDtoHAsync_v2, dstHost, srcDevice, ByteCount, hStream);
}
CUresult cuMemcpyDtoH_v2_ptds(void* dstHost, CUdeviceptr srcDevice, size_t ByteCount) {
  return call(cuMemcpyDtoH_v2, dstHost, srcDevice, ByteCount);
}
CUresult cuMemcpyHtoDAsync_v2_ptsz(CUdeviceptr dstDevice, const void* srcHost, size_t ByteCount,
                                   CUstream hStream) {
  return call(cuMemcpyHtoDAsync_v2, dstDevice, srcHost, ByteCount, hStream);
}
CUresult cuMemcpyHtoD_v2_ptds(CUdeviceptr dstDevice, const void* srcHost, size_t ByteCount) {
  return call(cuMemcpyHtoD_v2, dstDevice, srcHost, ByteCount);
}
CUresult cuMemcpyPeerAsync_ptsz(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                                CUcontext srcContext, size_t ByteCount, CUstream hStream) {
  return call(cuMemcpyPeerAsync, dstDevice, dstContext, srcDevice, srcContext, ByteCount, hStream);
}
CUresult cuMemcpyPeer_ptds(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                           CUcontext srcContext, size_t ByteCount) {
  return call(cuMemcpyPeer, dstDevice, dstContext, srcDevice, srcContext, ByteCount);
}
CUresult cuMemcpy_ptds(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount) {
  return call(cuMemcpy, dst, src, ByteCount);
}
CUresult cuMemsetD16Async_ptsz(CUdeviceptr dstDevice, unsigned short us, size_t N,
                               CUstream hStream) {
  return call(cuMemsetD16Async, dstDevice, us, N, hStream);
}
CUresult cuMemsetD16_v2_ptds(CUdeviceptr dstDevice, unsigned short us, size_t N) {
  return call(cuMemsetD16_v2, dstDevice, us, N);
}
CUresult cuMemsetD2D16Async_ptsz(CUdeviceptr dstDevice, size_t dstPitch, unsigned short us,
                                 size_t Width, size_t Height, CUstream hStream) {
  return call(cuMemsetD2D16Async, dstDevice, dstPitch, us, Width, Height, hStream);
}
CUresult cuMemsetD2D16_v2_ptds(CUdeviceptr dstDevice, size_t dstPitch, unsigned short us,
                               size_t Width, size_t Height) {
  return call(cuMemsetD2D16_v2, dstDevice, dstPitch, us, Width, Height);
}
CUresult cuMemsetD2D32Async_ptsz(CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui,
                                 size_t Width, size_t Height, CUstream hStream) {
  return call(cuMemsetD2D32Async, dstDevice, dstPitch, ui, Width, Height, hStream);
}
CUresult cuMemsetD2D32_v2_ptds(CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui,
                               size_t Width, size_t Height) {
  return call(cuMemsetD2D32_v2, dstDevice, dstPitch, ui, Width, Height);
}
CUresult cuMemsetD2D8Async_ptsz(CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc,
                                size_t Width, size_t Height, CUstream hStream) {
  return call(cuMemsetD2D8Async, dstDevice, dstPitch, uc, Width, Height, hStream);
}
CUresult cuMemsetD2D8_v2_ptds(CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc,
                              size_t Width, size_t Height) {
  return call(cuMemsetD2D8_v2, dstDevice, dstPitch, uc, Width, Height);
}
CUresult cuMemsetD32Async_ptsz(CUdeviceptr dstDevice, unsigned int ui, size_t N, CUstream hStream) {
  return call(cuMemsetD32Async, dstDevice, ui, N, hStream);
}
CUresult cuMemsetD32_v2_ptds(CUdeviceptr dstDevice, unsigned int ui, size_t N) {
  return call(cuMemsetD32_v2, dstDevice, ui, N);
}
CUresult cuMemsetD8Async_ptsz(CUdeviceptr dstDevice, unsigned char uc, size_t N, CUstream hStream) {
  return call(cuMemsetD8Async, dstDevice, uc, N, hStream);
}
CUresult cuMemsetD8_v2_ptds(CUdeviceptr dstDevice, unsigned char uc, size_t N) {
  return call(cuMemsetD8_v2, dstDevice, uc, N);
}
CUresult cuStreamAddCallback_ptsz(CUstream hStream, CUstreamCallback callback, void* userData,
                                  unsigned int flags) {
  return call(cuStreamAddCallback, hStream, callback, userData, flags);
}
CUresult cuStreamAttachMemAsync_ptsz(CUstream hStream, CUdeviceptr dptr, size_t length,
                                     unsigned int flags) {
  return call(cuStreamAttachMemAsync, hStream, dptr, length, flags);
}
CUresult cuStreamBatchMemOp_v2_ptsz(CUstream stream, unsigned int count,
                                    CUstreamBatchMemOpParams* paramArray, unsigned int flags) {
  return call(cuStreamBatchMemOp_v2, stream, count, paramArray, flags);
}
CUresult cuStreamBeginCapture_v2_ptsz(CUstream hStream, CUstreamCaptureMode mode) {
  return call(cuStreamBeginCapture_v2, hStream, mode);
}
CUresult cuStreamEndCapture_ptsz(CUstream hStream, CUgraph* phGraph) {
  return call(cuStreamEndCapture, hStream, phGraph);
}
CUresult cuStreamGetCaptureInfo_v3_ptsz(CUstream hStream, CUstreamCaptureStatus* captureStatus_out,
                                        cuuint64_t* id_out, CUgraph* graph_out,
                                        const CUgraphNode** dependencies_out,
                                        const CUgraphEdgeData** edgeData_out,
                                        size_t* numDependencies_out) {
  return call(cuStreamGetCaptureInfo_v3, hStream, captureStatus_out, id_out, graph_out,
              dependencies_out, edgeData_out, numDependencies_out);
}
CUresult cuStreamUpdateCaptureDependencies_v2_ptsz(CUstream hStream, CUgraphNode* dependencies,
                                                   const CUgraphEdgeData* dependencyData,
                                                   size_t numDependencies, unsigned int flags) {
  return call(cuStreamUpdateCaptureDependencies_v2, hStream, dependencies, dependencyData,
              numDependencies, flags);
}
CUresult cuStreamSetAttribute_ptsz(CUstream stream, CUstreamAttrID id,
                                   const CUstreamAttrValue* value) {
  return call(cuStreamSetAttribute, stream, id, value);
}
CUresult cuStreamGetAttribute_ptsz(CUstream stream, CUstreamAttrID id, CUstreamAttrValue* value) {
  return call(cuStreamGetAttribute, stream, id, value);
}
CUresult cuStreamCopyAttributes_ptsz(CUstream dst, CUstream src) {
  return call(cuStreamCopyAttributes, dst, src);
}
CUresult cuStreamGetCtx_ptsz(CUstream hStream, CUcontext* pctx) {
  return call(cuStreamGetCtx, hStream, pctx);
}
CUresult cuStreamGetDevice_ptsz(CUstream hStream, CUdevice* device) {
  return call(cuStreamGetDevice, hStream, device);
}
CUresult cuStreamGetFlags_ptsz(CUstream hStream, unsigned int* flags) {
  return call(cuStreamGetFlags, hStream, flags);
}
CUresult cuStreamGetId_ptsz(CUstream hStream, unsigned long long* streamId) {
  return call(cuStreamGetId, hStream, streamId);
}
CUresult cuStreamGetPriority_ptsz(CUstream hStream, int* priority) {
  return call(cuStreamGetPriority, hStream, priority);
}
CUresult cuStreamIsCapturing_ptsz(CUstream hStream, CUstreamCaptureStatus* captureStatus) {
  return call(cuStreamIsCapturing, hStream, captureStatus);
}
CUresult cuStreamQuery_ptsz(CUstream hStream) { return call(cuStreamQuery, hStream); }
CUresult cuStreamSynchronize_ptsz(CUstream hStream) { return call(cuStreamSynchronize, hStream); }
CUresult cuStreamWaitEvent_ptsz(CUstream hStream, CUevent hEvent, unsigned int Flags) {
  return call(cuStreamWaitEvent, hStream, hEvent, Flags);
}
CUresult cuStreamWaitValue32_v2_ptsz(CUstream stream, CUdeviceptr addr, cuuint32_t value,
                                     unsigned int flags) {
  return call(cuStreamWaitValue32_v2, stream, addr, value, flags);
}
CUresult cuStreamWaitValue64_v2_ptsz(CUstream stream, CUdeviceptr addr, cuuint64_t value,
                                     unsigned int flags) {
  return call(cuStreamWaitValue64_v2, stream, addr, value, flags);
}
CUresult cuStreamWriteValue32_v2_ptsz(CUstream stream, CUdeviceptr addr, cuuint32_t value,
                                      unsigned int flags) {
  return call(cuStreamWriteValue32_v2, stream, addr, value, flags);
}
CUresult cuStreamWriteValue64_v2_ptsz(CUstream stream, CUdeviceptr addr, cuuint64_t value,
                                      unsigned int flags) {
  return call(cuStreamWriteValue64_v2, stream, addr, value, flags);
}
