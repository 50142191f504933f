// SPDX-License-Identifier: Apache-2.0
// Graphs built and changed node by node. What nodes hold is the driver's under other names, except
// kernels, which are host stubs here, and copies, which are described differently.
#include "client/cudart/pitched_copy.h"
#include "client/cudart/registry.h"
#include "client/cudart/state.h"

using namespace sluice::cudart;

namespace {

cudaError_t native_kernel(const cudaKernelNodeParams* params, CUDA_KERNEL_NODE_PARAMS* native) {
  if (params == nullptr) return cudaErrorInvalidValue;
  if (const cudaError_t error = ensure_context(); error != cudaSuccess) return error;
  *native = {};
  native->gridDimX = params->gridDim.x;
  native->gridDimY = params->gridDim.y;
  native->gridDimZ = params->gridDim.z;
  native->blockDimX = params->blockDim.x;
  native->blockDimY = params->blockDim.y;
  native->blockDimZ = params->blockDim.z;
  native->sharedMemBytes = params->sharedMemBytes;
  native->kernelParams = params->kernelParams;
  native->extra = params->extra;
  return resolve_function(params->func, &native->func);
}

// A copy or fill node belongs to a context, which the runtime's caller does not name.
cudaError_t current_context(CUcontext* context) {
  if (const cudaError_t error = ensure_context(); error != cudaSuccess) return error;
  return to_runtime(driver(cuCtxGetCurrent, context));
}

cudaError_t native_copy_here(const cudaMemcpy3DParms* params, CUDA_MEMCPY3D* copy,
                             CUcontext* context) {
  if (params == nullptr) return cudaErrorInvalidValue;
  if (const cudaError_t error = current_context(context); error != cudaSuccess) return error;
  return native_copy(*params, copy);
}

cudaMemcpy3DParms linear_copy(void* dst, const void* src, size_t count, cudaMemcpyKind kind) {
  cudaMemcpy3DParms params = {};
  params.srcPtr = {const_cast<void*>(src), count, count, 1};
  params.dstPtr = {dst, count, count, 1};
  params.extent = {count, 1, 1};
  params.kind = kind;
  return params;
}

}  // namespace

extern "C" {

cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t* pGraphNode, cudaGraph_t graph,
                                   const cudaGraphNode_t* pDependencies, size_t numDependencies,
                                   const struct cudaKernelNodeParams* pNodeParams) {
  CUDA_KERNEL_NODE_PARAMS native;
  const cudaError_t error = native_kernel(pNodeParams, &native);
  if (error != cudaSuccess) return record(error);
  return forward(cuGraphAddKernelNode_v2, pGraphNode, graph, pDependencies, numDependencies,
                 &native);
}

cudaError_t cudaGraphKernelNodeSetParams(cudaGraphNode_t node,
                                         const struct cudaKernelNodeParams* pNodeParams) {
  CUDA_KERNEL_NODE_PARAMS native;
  const cudaError_t error = native_kernel(pNodeParams, &native);
  if (error != cudaSuccess) return record(error);
  return forward(cuGraphKernelNodeSetParams_v2, node, &native);
}

cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t hGraphExec, cudaGraphNode_t node,
                                             const struct cudaKernelNodeParams* pNodeParams) {
  CUDA_KERNEL_NODE_PARAMS native;
  const cudaError_t error = native_kernel(pNodeParams, &native);
  if (error != cudaSuccess) return record(error);
  return forward(cuGraphExecKernelNodeSetParams_v2, hGraphExec, node, &native);
}

cudaError_t cudaGraphKernelNodeCopyAttributes(cudaGraphNode_t hDst, cudaGraphNode_t hSrc) {
  return forward(cuGraphKernelNodeCopyAttributes, hDst, hSrc);
}

cudaError_t cudaGraphKernelNodeGetAttribute(cudaGraphNode_t hNode, cudaLaunchAttributeID attr,
                                            cudaLaunchAttributeValue* value_out) {
  return forward(cuGraphKernelNodeGetAttribute, hNode, static_cast<CUkernelNodeAttrID>(attr),
                 same<CUkernelNodeAttrValue>(value_out));
}

cudaError_t cudaGraphKernelNodeSetAttribute(cudaGraphNode_t hNode, cudaLaunchAttributeID attr,
                                            const cudaLaunchAttributeValue* value) {
  return forward(cuGraphKernelNodeSetAttribute, hNode, static_cast<CUkernelNodeAttrID>(attr),
                 same<const CUkernelNodeAttrValue>(value));
}

cudaError_t cudaGraphAddMemcpyNode(cudaGraphNode_t* pGraphNode, cudaGraph_t graph,
                                   const cudaGraphNode_t* pDependencies, size_t numDependencies,
                                   const struct cudaMemcpy3DParms* pCopyParams) {
  CUDA_MEMCPY3D copy;
  CUcontext context = nullptr;
  const cudaError_t error = native_copy_here(pCopyParams, &copy, &context);
  if (error != cudaSuccess) return record(error);
  return forward(cuGraphAddMemcpyNode, pGraphNode, graph, pDependencies, numDependencies, &copy,
                 context);
}

cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t* pGraphNode, cudaGraph_t graph,
                                     const cudaGraphNode_t* pDependencies, size_t numDependencies,
                                     void* dst, const void* src, size_t count,
                                     enum cudaMemcpyKind kind) {
  const cudaMemcpy3DParms params = linear_copy(dst, src, count, kind);
  return cudaGraphAddMemcpyNode(pGraphNode, graph, pDependencies, numDependencies, &params);
}

cudaError_t cudaGraphMemcpyNodeSetParams(cudaGraphNode_t node,
                                         const struct cudaMemcpy3DParms* pNodeParams) {
  CUDA_MEMCPY3D copy;
  CUcontext context = nullptr;
  const cudaError_t error = native_copy_here(pNodeParams, &copy, &context);
  if (error != cudaSuccess) return record(error);
  return forward(cuGraphMemcpyNodeSetParams, node, &copy);
}

cudaError_t cudaGraphMemcpyNodeSetParams1D(cudaGraphNode_t node, void* dst, const void* src,
                                           size_t count, enum cudaMemcpyKind kind) {
  const cudaMemcpy3DParms params = linear_copy(dst, src, count, kind);
  return cudaGraphMemcpyNodeSetParams(node, &params);
}

cudaError_t cudaGraphExecMemcpyNodeSetParams(cudaGraphExec_t hGraphExec, cudaGraphNode_t node,
                                             const struct cudaMemcpy3DParms* pNodeParams) {
  CUDA_MEMCPY3D copy;
  CUcontext context = nullptr;
  const cudaError_t error = native_copy_here(pNodeParams, &copy, &context);
  if (error != cudaSuccess) return record(error);
  return forward(cuGraphExecMemcpyNodeSetParams, hGraphExec, node, &copy, context);
}

cudaError_t cudaGraphExecMemcpyNodeSetParams1D(cudaGraphExec_t hGraphExec, cudaGraphNode_t node,
                                               void* dst, const void* src, size_t count,
                                               enum cudaMemcpyKind kind) {
  const cudaMemcpy3DParms params = linear_copy(dst, src, count, kind);
  return cudaGraphExecMemcpyNodeSetParams(hGraphExec, node, &params);
}

cudaError_t cudaGraphAddMemsetNode(cudaGraphNode_t* pGraphNode, cudaGraph_t graph,
                                   const cudaGraphNode_t* pDependencies, size_t numDependencies,
                                   const struct cudaMemsetParams* pMemsetParams) {
  CUcontext context = nullptr;
  if (const cudaError_t error = current_context(&context); error != cudaSuccess) {
    return record(error);
  }
  return forward(cuGraphAddMemsetNode, pGraphNode, graph, pDependencies, numDependencies,
                 same<const CUDA_MEMSET_NODE_PARAMS>(pMemsetParams), context);
}

cudaError_t cudaGraphMemsetNodeGetParams(cudaGraphNode_t node,
                                         struct cudaMemsetParams* pNodeParams) {
  return forward(cuGraphMemsetNodeGetParams, node, same<CUDA_MEMSET_NODE_PARAMS>(pNodeParams));
}

cudaError_t cudaGraphMemsetNodeSetParams(cudaGraphNode_t node,
                                         const struct cudaMemsetParams* pNodeParams) {
  return forward(cuGraphMemsetNodeSetParams, node,
                 same<const CUDA_MEMSET_NODE_PARAMS>(pNodeParams));
}

cudaError_t cudaGraphExecMemsetNodeSetParams(cudaGraphExec_t hGraphExec, cudaGraphNode_t node,
                                             const struct cudaMemsetParams* pNodeParams) {
  CUcontext context = nullptr;
  if (const cudaError_t error = current_context(&context); error != cudaSuccess) {
    return record(error);
  }
  return forward(cuGraphExecMemsetNodeSetParams, hGraphExec, node,
                 same<const CUDA_MEMSET_NODE_PARAMS>(pNodeParams), context);
}

cudaError_t cudaGraphAddHostNode(cudaGraphNode_t* pGraphNode, cudaGraph_t graph,
                                 const cudaGraphNode_t* pDependencies, size_t numDependencies,
                                 const struct cudaHostNodeParams* pNodeParams) {
  return forward(cuGraphAddHostNode, pGraphNode, graph, pDependencies, numDependencies,
                 same<const CUDA_HOST_NODE_PARAMS>(pNodeParams));
}

cudaError_t cudaGraphHostNodeGetParams(cudaGraphNode_t node,
                                       struct cudaHostNodeParams* pNodeParams) {
  return forward(cuGraphHostNodeGetParams, node, same<CUDA_HOST_NODE_PARAMS>(pNodeParams));
}

cudaError_t cudaGraphHostNodeSetParams(cudaGraphNode_t node,
                                       const struct cudaHostNodeParams* pNodeParams) {
  return forward(cuGraphHostNodeSetParams, node, same<const CUDA_HOST_NODE_PARAMS>(pNodeParams));
}

cudaError_t cudaGraphExecHostNodeSetParams(cudaGraphExec_t hGraphExec, cudaGraphNode_t node,
                                           const struct cudaHostNodeParams* pNodeParams) {
  return forward(cuGraphExecHostNodeSetParams, hGraphExec, node,
                 same<const CUDA_HOST_NODE_PARAMS>(pNodeParams));
}

cudaError_t cudaGraphAddChildGraphNode(cudaGraphNode_t* pGraphNode, cudaGraph_t graph,
                                       const cudaGraphNode_t* pDependencies, size_t numDependencies,
                                       cudaGraph_t childGraph) {
  return forward(cuGraphAddChildGraphNode, pGraphNode, graph, pDependencies, numDependencies,
                 childGraph);
}

cudaError_t cudaGraphChildGraphNodeGetGraph(cudaGraphNode_t node, cudaGraph_t* pGraph) {
  return forward(cuGraphChildGraphNodeGetGraph, node, pGraph);
}

cudaError_t cudaGraphExecChildGraphNodeSetParams(cudaGraphExec_t hGraphExec, cudaGraphNode_t node,
                                                 cudaGraph_t childGraph) {
  return forward(cuGraphExecChildGraphNodeSetParams, hGraphExec, node, childGraph);
}

cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t* pGraphNode, cudaGraph_t graph,
                                  const cudaGraphNode_t* pDependencies, size_t numDependencies) {
  return forward(cuGraphAddEmptyNode, pGraphNode, graph, pDependencies, numDependencies);
}

cudaError_t cudaGraphAddEventRecordNode(cudaGraphNode_t* pGraphNode, cudaGraph_t graph,
                                        const cudaGraphNode_t* pDependencies,
                                        size_t numDependencies, cudaEvent_t event) {
  return forward(cuGraphAddEventRecordNode, pGraphNode, graph, pDependencies, numDependencies,
                 event);
}

cudaError_t cudaGraphEventRecordNodeGetEvent(cudaGraphNode_t node, cudaEvent_t* event_out) {
  return forward(cuGraphEventRecordNodeGetEvent, node, event_out);
}

cudaError_t cudaGraphEventRecordNodeSetEvent(cudaGraphNode_t node, cudaEvent_t event) {
  return forward(cuGraphEventRecordNodeSetEvent, node, event);
}

cudaError_t cudaGraphExecEventRecordNodeSetEvent(cudaGraphExec_t hGraphExec, cudaGraphNode_t hNode,
                                                 cudaEvent_t event) {
  return forward(cuGraphExecEventRecordNodeSetEvent, hGraphExec, hNode, event);
}

cudaError_t cudaGraphAddEventWaitNode(cudaGraphNode_t* pGraphNode, cudaGraph_t graph,
                                      const cudaGraphNode_t* pDependencies, size_t numDependencies,
                                      cudaEvent_t event) {
  return forward(cuGraphAddEventWaitNode, pGraphNode, graph, pDependencies, numDependencies, event);
}

cudaError_t cudaGraphEventWaitNodeGetEvent(cudaGraphNode_t node, cudaEvent_t* event_out) {
  return forward(cuGraphEventWaitNodeGetEvent, node, event_out);
}

cudaError_t cudaGraphEventWaitNodeSetEvent(cudaGraphNode_t node, cudaEvent_t event) {
  return forward(cuGraphEventWaitNodeSetEvent, node, event);
}

cudaError_t cudaGraphExecEventWaitNodeSetEvent(cudaGraphExec_t hGraphExec, cudaGraphNode_t hNode,
                                               cudaEvent_t event) {
  return forward(cuGraphExecEventWaitNodeSetEvent, hGraphExec, hNode, event);
}

cudaError_t cudaGraphAddMemAllocNode(cudaGraphNode_t* pGraphNode, cudaGraph_t graph,
                                     const cudaGraphNode_t* pDependencies, size_t numDependencies,
                                     struct cudaMemAllocNodeParams* nodeParams) {
  return forward(cuGraphAddMemAllocNode, pGraphNode, graph, pDependencies, numDependencies,
                 same<CUDA_MEM_ALLOC_NODE_PARAMS>(nodeParams));
}

cudaError_t cudaGraphMemAllocNodeGetParams(cudaGraphNode_t node,
                                           struct cudaMemAllocNodeParams* params_out) {
  return forward(cuGraphMemAllocNodeGetParams, node, same<CUDA_MEM_ALLOC_NODE_PARAMS>(params_out));
}

cudaError_t cudaGraphAddMemFreeNode(cudaGraphNode_t* pGraphNode, cudaGraph_t graph,
                                    const cudaGraphNode_t* pDependencies, size_t numDependencies,
                                    void* dptr) {
  return forward(cuGraphAddMemFreeNode, pGraphNode, graph, pDependencies, numDependencies,
                 device_address(dptr));
}

cudaError_t cudaGraphMemFreeNodeGetParams(cudaGraphNode_t node, void* dptr_out) {
  return forward(cuGraphMemFreeNodeGetParams, node, static_cast<CUdeviceptr*>(dptr_out));
}

cudaError_t cudaGraphConditionalHandleCreate(cudaGraphConditionalHandle* pHandle_out,
                                             cudaGraph_t graph, unsigned int defaultLaunchValue,
                                             unsigned int flags) {
  static_assert(sizeof(cudaGraphConditionalHandle) == sizeof(CUgraphConditionalHandle));
  CUcontext context = nullptr;
  if (const cudaError_t error = current_context(&context); error != cudaSuccess) {
    return record(error);
  }
  return forward(cuGraphConditionalHandleCreate, same<CUgraphConditionalHandle>(pHandle_out), graph,
                 context, defaultLaunchValue, flags);
}

}  // extern "C"
