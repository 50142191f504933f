// SPDX-License-Identifier: Apache-2.0
// The three functions that add and change nodes of whatever type. Most types' parameters are the
// driver's own; kernels are host stubs here, copies are described differently, and the context that
// the driver wants named is the current one.
#include <cstring>

#include "client/cudart/pitched_copy.h"
#include "client/cudart/registry.h"
#include "client/cudart/state.h"

using namespace sluice::cudart;

namespace {

static_assert(sizeof(cudaGraphNodeParams) == sizeof(CUgraphNodeParams));
static_assert(sizeof(cudaMemAllocNodeParamsV2) == sizeof(CUDA_MEM_ALLOC_NODE_PARAMS_v2));
static_assert(offsetof(cudaConditionalNodeParams, phGraph_out) ==
              offsetof(CUDA_CONDITIONAL_NODE_PARAMS, phGraph_out));

cudaError_t to_native(const cudaGraphNodeParams& from, CUgraphNodeParams* to) {
  CUcontext context = nullptr;
  if (const cudaError_t error = ensure_context(); error != cudaSuccess) return error;
  if (const cudaError_t error = to_runtime(driver(cuCtxGetCurrent, &context)); error != cudaSuccess)
    return error;
  *to = {};
  to->type = static_cast<CUgraphNodeType>(from.type);
  switch (from.type) {
    case cudaGraphNodeTypeKernel: {
      auto& k = to->kernel;
      k.gridDimX = from.kernel.gridDim.x;
      k.gridDimY = from.kernel.gridDim.y;
      k.gridDimZ = from.kernel.gridDim.z;
      k.blockDimX = from.kernel.blockDim.x;
      k.blockDimY = from.kernel.blockDim.y;
      k.blockDimZ = from.kernel.blockDim.z;
      k.sharedMemBytes = from.kernel.sharedMemBytes;
      k.kernelParams = from.kernel.kernelParams;
      k.extra = from.kernel.extra;
      return resolve_function(from.kernel.func, &k.func);
    }
    case cudaGraphNodeTypeMemcpy:
      to->memcpy.flags = from.memcpy.flags;
      to->memcpy.copyCtx = context;
      return native_copy(from.memcpy.copyParams, &to->memcpy.copyParams);
    case cudaGraphNodeTypeMemset: {
      const auto& m = from.memset;
      to->memset = {reinterpret_cast<CUdeviceptr>(m.dst),
                    m.pitch,
                    m.value,
                    m.elementSize,
                    m.width,
                    m.height,
                    context};
      return cudaSuccess;
    }
    case cudaGraphNodeTypeConditional:
      std::memcpy(&to->conditional, &from.conditional, sizeof from.conditional);
      to->conditional.ctx = context;
      return cudaSuccess;
    case cudaGraphNodeTypeHost:
    case cudaGraphNodeTypeGraph:
    case cudaGraphNodeTypeEmpty:
    case cudaGraphNodeTypeWaitEvent:
    case cudaGraphNodeTypeEventRecord:
    case cudaGraphNodeTypeExtSemaphoreSignal:
    case cudaGraphNodeTypeExtSemaphoreWait:
    case cudaGraphNodeTypeMemAlloc:
    case cudaGraphNodeTypeMemFree:
      std::memcpy(to->reserved1, from.reserved1, sizeof to->reserved1);
      return cudaSuccess;
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

extern "C" {

cudaError_t cudaGraphAddNode(cudaGraphNode_t* pGraphNode, cudaGraph_t graph,
                             const cudaGraphNode_t* pDependencies,
                             const cudaGraphEdgeData* dependencyData, size_t numDependencies,
                             struct cudaGraphNodeParams* nodeParams) {
  if (nodeParams == nullptr) return record(cudaErrorInvalidValue);
  CUgraphNodeParams native;
  if (const cudaError_t error = to_native(*nodeParams, &native); error != cudaSuccess)
    return record(error);
  const cudaError_t error =
      forward(cuGraphAddNode_v2, pGraphNode, graph, pDependencies,
              same<const CUgraphEdgeData>(dependencyData), numDependencies, &native);
  if (error != cudaSuccess) return error;
  if (nodeParams->type == cudaGraphNodeTypeMemAlloc)
    nodeParams->alloc.dptr = reinterpret_cast<void*>(native.alloc.dptr);
  if (nodeParams->type == cudaGraphNodeTypeConditional)
    nodeParams->conditional.phGraph_out = native.conditional.phGraph_out;
  return error;
}

cudaError_t cudaGraphNodeSetParams(cudaGraphNode_t node, struct cudaGraphNodeParams* nodeParams) {
  if (nodeParams == nullptr) return record(cudaErrorInvalidValue);
  CUgraphNodeParams native;
  if (const cudaError_t error = to_native(*nodeParams, &native); error != cudaSuccess)
    return record(error);
  return forward(cuGraphNodeSetParams, node, &native);
}

cudaError_t cudaGraphExecNodeSetParams(cudaGraphExec_t graphExec, cudaGraphNode_t node,
                                       struct cudaGraphNodeParams* nodeParams) {
  if (nodeParams == nullptr) return record(cudaErrorInvalidValue);
  CUgraphNodeParams native;
  if (const cudaError_t error = to_native(*nodeParams, &native); error != cudaSuccess)
    return record(error);
  return forward(cuGraphExecNodeSetParams, graphExec, node, &native);
}

}  // extern "C"
