// SPDX-License-Identifier: Apache-2.0
// What a kernel or copy node holds, and nodes that copy to and from the program's variables: the
// driver's functions, with kernels as host stubs and copies as the runtime describes them.
#include "client/cudart/pitched_copy.h"
#include "client/cudart/registry.h"
#include "client/cudart/state.h"
#include "client/cudart/symbol.h"

using namespace sluice::cudart;

namespace {

// One end of a copy as the runtime describes it; `element`: bytes that its positions count by.
void describe_end(CUmemorytype type, const void* host, CUdeviceptr device, CUarray array, size_t x,
                  size_t y, size_t z, size_t pitch, size_t height, cudaArray_t* to_array,
                  cudaPos* position, cudaPitchedPtr* memory) {
  *position = {x, y, z};
  *to_array = nullptr;
  *memory = {};
  if (type == CU_MEMORYTYPE_ARRAY) {
    const size_t element = element_size(array);
    if (element != 0) position->x /= element;
    *to_array = reinterpret_cast<cudaArray_t>(array);
    return;
  }
  memory->ptr =
      type == CU_MEMORYTYPE_HOST ? const_cast<void*>(host) : reinterpret_cast<void*>(device);
  memory->pitch = memory->xsize = pitch;
  memory->ysize = height;
}

cudaMemcpyKind kind_of(const CUDA_MEMCPY3D& copy) {
  if (copy.srcMemoryType == CU_MEMORYTYPE_UNIFIED || copy.dstMemoryType == CU_MEMORYTYPE_UNIFIED) {
    return cudaMemcpyDefault;
  }
  const bool from_host = copy.srcMemoryType == CU_MEMORYTYPE_HOST;
  const bool to_host = copy.dstMemoryType == CU_MEMORYTYPE_HOST;
  if (from_host) return to_host ? cudaMemcpyHostToHost : cudaMemcpyHostToDevice;
  return to_host ? cudaMemcpyDeviceToHost : cudaMemcpyDeviceToDevice;
}

cudaMemcpy3DParms runtime_copy(const CUDA_MEMCPY3D& copy) {
  cudaMemcpy3DParms params = {};
  describe_end(copy.srcMemoryType, copy.srcHost, copy.srcDevice, copy.srcArray, copy.srcXInBytes,
               copy.srcY, copy.srcZ, copy.srcPitch, copy.srcHeight, &params.srcArray,
               &params.srcPos, &params.srcPtr);
  describe_end(copy.dstMemoryType, copy.dstHost, copy.dstDevice, copy.dstArray, copy.dstXInBytes,
               copy.dstY, copy.dstZ, copy.dstPitch, copy.dstHeight, &params.dstArray,
               &params.dstPos, &params.dstPtr);
  params.extent = {copy.WidthInBytes, copy.Height, copy.Depth};
  const bool from_array = copy.srcMemoryType == CU_MEMORYTYPE_ARRAY;
  if (from_array || copy.dstMemoryType == CU_MEMORYTYPE_ARRAY) {
    const size_t element = element_size(from_array ? copy.srcArray : copy.dstArray);
    if (element != 0) params.extent.width /= element;
  }
  params.kind = kind_of(copy);
  return params;
}

}  // namespace

extern "C" {

cudaError_t cudaGraphKernelNodeGetParams(cudaGraphNode_t node,
                                         struct cudaKernelNodeParams* pNodeParams) {
  if (pNodeParams == nullptr) return record(cudaErrorInvalidValue);
  CUDA_KERNEL_NODE_PARAMS native = {};
  const cudaError_t error = forward(cuGraphKernelNodeGetParams_v2, node, &native);
  if (error != cudaSuccess) return error;
  const void* handle = native.func != nullptr ? static_cast<const void*>(native.func) : native.kern;
  const Kernel* kernel = find_kernel_of(handle);
  *pNodeParams = {};
  // What no code of the program registered stays the driver's handle, which is taken as well.
  pNodeParams->func = const_cast<void*>(kernel != nullptr ? kernel->host_stub : handle);
  pNodeParams->gridDim = {native.gridDimX, native.gridDimY, native.gridDimZ};
  pNodeParams->blockDim = {native.blockDimX, native.blockDimY, native.blockDimZ};
  pNodeParams->sharedMemBytes = native.sharedMemBytes;
  pNodeParams->kernelParams = native.kernelParams;
  pNodeParams->extra = native.extra;
  return cudaSuccess;
}

cudaError_t cudaGraphMemcpyNodeGetParams(cudaGraphNode_t node,
                                         struct cudaMemcpy3DParms* pNodeParams) {
  if (pNodeParams == nullptr) return record(cudaErrorInvalidValue);
  CUDA_MEMCPY3D copy = {};
  const cudaError_t error = forward(cuGraphMemcpyNodeGetParams, node, &copy);
  if (error == cudaSuccess) *pNodeParams = runtime_copy(copy);
  return error;
}

cudaError_t cudaGraphAddMemcpyNodeToSymbol(cudaGraphNode_t* pGraphNode, cudaGraph_t graph,
                                           const cudaGraphNode_t* pDependencies,
                                           size_t numDependencies, const void* symbol,
                                           const void* src, size_t count, size_t offset,
                                           enum cudaMemcpyKind kind) {
  void* place = nullptr;
  const cudaError_t error = symbol_as_destination(symbol, offset, count, kind, &place);
  if (error != cudaSuccess) return record(error);
  return cudaGraphAddMemcpyNode1D(pGraphNode, graph, pDependencies, numDependencies, place, src,
                                  count, kind);
}

cudaError_t cudaGraphAddMemcpyNodeFromSymbol(cudaGraphNode_t* pGraphNode, cudaGraph_t graph,
                                             const cudaGraphNode_t* pDependencies,
                                             size_t numDependencies, void* dst, const void* symbol,
                                             size_t count, size_t offset,
                                             enum cudaMemcpyKind kind) {
  void* place = nullptr;
  const cudaError_t error = symbol_as_source(symbol, offset, count, kind, &place);
  if (error != cudaSuccess) return record(error);
  return cudaGraphAddMemcpyNode1D(pGraphNode, graph, pDependencies, numDependencies, dst, place,
                                  count, kind);
}

cudaError_t cudaGraphMemcpyNodeSetParamsToSymbol(cudaGraphNode_t node, const void* symbol,
                                                 const void* src, size_t count, size_t offset,
                                                 enum cudaMemcpyKind kind) {
  void* place = nullptr;
  const cudaError_t error = symbol_as_destination(symbol, offset, count, kind, &place);
  if (error != cudaSuccess) return record(error);
  return cudaGraphMemcpyNodeSetParams1D(node, place, src, count, kind);
}

cudaError_t cudaGraphMemcpyNodeSetParamsFromSymbol(cudaGraphNode_t node, void* dst,
                                                   const void* symbol, size_t count, size_t offset,
                                                   enum cudaMemcpyKind kind) {
  void* place = nullptr;
  const cudaError_t error = symbol_as_source(symbol, offset, count, kind, &place);
  if (error != cudaSuccess) return record(error);
  return cudaGraphMemcpyNodeSetParams1D(node, dst, place, count, kind);
}

cudaError_t cudaGraphExecMemcpyNodeSetParamsToSymbol(cudaGraphExec_t hGraphExec,
                                                     cudaGraphNode_t node, const void* symbol,
                                                     const void* src, size_t count, size_t offset,
                                                     enum cudaMemcpyKind kind) {
  void* place = nullptr;
  const cudaError_t error = symbol_as_destination(symbol, offset, count, kind, &place);
  if (error != cudaSuccess) return record(error);
  return cudaGraphExecMemcpyNodeSetParams1D(hGraphExec, node, place, src, count, kind);
}

cudaError_t cudaGraphExecMemcpyNodeSetParamsFromSymbol(cudaGraphExec_t hGraphExec,
                                                       cudaGraphNode_t node, void* dst,
                                                       const void* symbol, size_t count,
                                                       size_t offset, enum cudaMemcpyKind kind) {
  void* place = nullptr;
  const cudaError_t error = symbol_as_source(symbol, offset, count, kind, &place);
  if (error != cudaSuccess) return record(error);
  return cudaGraphExecMemcpyNodeSetParams1D(hGraphExec, node, dst, place, count, kind);
}

}  // extern "C"
