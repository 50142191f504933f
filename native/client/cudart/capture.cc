// SPDX-License-Identifier: Apache-2.0
// Recording streams into graphs, and the graphs so made as a whole: instantiated, launched,
// destroyed.
#include "client/cudart/state.h"

using namespace sluice::cudart;

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
  return forward(cuStreamBeginCapture_v2, stream, static_cast<CUstreamCaptureMode>(mode));
}

cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph,
                                          const cudaGraphNode_t* dependencies,
                                          const cudaGraphEdgeData* dependencyData,
                                          size_t numDependencies, enum cudaStreamCaptureMode mode) {
  return forward(cuStreamBeginCaptureToGraph, stream, graph, dependencies,
                 same<const CUgraphEdgeData>(dependencyData), numDependencies,
                 static_cast<CUstreamCaptureMode>(mode));
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* pGraph) {
  return forward(cuStreamEndCapture, stream, pGraph);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream,
                                  enum cudaStreamCaptureStatus* pCaptureStatus) {
  return forward(cuStreamIsCapturing, stream, same<CUstreamCaptureStatus>(pCaptureStatus));
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream,
                                     enum cudaStreamCaptureStatus* captureStatus_out,
                                     unsigned long long* id_out, cudaGraph_t* graph_out,
                                     const cudaGraphNode_t** dependencies_out,
                                     const cudaGraphEdgeData** edgeData_out,
                                     size_t* numDependencies_out) {
  return forward(cuStreamGetCaptureInfo_v3, stream, same<CUstreamCaptureStatus>(captureStatus_out),
                 same<cuuint64_t>(id_out), graph_out, dependencies_out,
                 same<const CUgraphEdgeData*>(edgeData_out), numDependencies_out);
}

cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t stream, cudaGraphNode_t* dependencies,
                                                const cudaGraphEdgeData* dependencyData,
                                                size_t numDependencies, unsigned int flags) {
  return forward(cuStreamUpdateCaptureDependencies_v2, stream, dependencies,
                 same<const CUgraphEdgeData>(dependencyData), numDependencies, flags);
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode* mode) {
  return forward(cuThreadExchangeStreamCaptureMode, same<CUstreamCaptureMode>(mode));
}

cudaError_t cudaGraphCreate(cudaGraph_t* pGraph, unsigned int flags) {
  return forward(cuGraphCreate, pGraph, flags);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return forward(cuGraphDestroy, graph); }

cudaError_t cudaGraphClone(cudaGraph_t* pGraphClone, cudaGraph_t originalGraph) {
  return forward(cuGraphClone, pGraphClone, originalGraph);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* pGraphExec, cudaGraph_t graph,
                                 unsigned long long flags) {
  return forward(cuGraphInstantiateWithFlags, pGraphExec, graph, flags);
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* pGraphExec, cudaGraph_t graph,
                                          unsigned long long flags) {
  return forward(cuGraphInstantiateWithFlags, pGraphExec, graph, flags);
}

cudaError_t cudaGraphInstantiateWithParams(cudaGraphExec_t* pGraphExec, cudaGraph_t graph,
                                           cudaGraphInstantiateParams* instantiateParams) {
  return forward(cuGraphInstantiateWithParams, pGraphExec, graph,
                 same<CUDA_GRAPH_INSTANTIATE_PARAMS>(instantiateParams));
}

// The null stream of the upload is the thread's own here.
cudaError_t cudaGraphInstantiateWithParams_ptsz(cudaGraphExec_t* pGraphExec, cudaGraph_t graph,
                                                cudaGraphInstantiateParams* instantiateParams) {
  return forward(cuGraphInstantiateWithParams_ptsz, pGraphExec, graph,
                 same<CUDA_GRAPH_INSTANTIATE_PARAMS>(instantiateParams));
}

cudaError_t cudaGraphExecGetFlags(cudaGraphExec_t graphExec, unsigned long long* flags) {
  return forward(cuGraphExecGetFlags, graphExec, same<cuuint64_t>(flags));
}

cudaError_t cudaGraphExecUpdate(cudaGraphExec_t hGraphExec, cudaGraph_t hGraph,
                                cudaGraphExecUpdateResultInfo* resultInfo) {
  return forward(cuGraphExecUpdate_v2, hGraphExec, hGraph,
                 same<CUgraphExecUpdateResultInfo>(resultInfo));
}

cudaError_t cudaGraphUpload(cudaGraphExec_t graphExec, cudaStream_t stream) {
  return forward(cuGraphUpload, graphExec, stream);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graphExec, cudaStream_t stream) {
  return forward(cuGraphLaunch, graphExec, stream);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graphExec) {
  return forward(cuGraphExecDestroy, graphExec);
}

cudaError_t cudaGraphDebugDotPrint(cudaGraph_t graph, const char* path, unsigned int flags) {
  return forward(cuGraphDebugDotPrint, graph, path, flags);
}

cudaError_t cudaUserObjectCreate(cudaUserObject_t* object_out, void* ptr, cudaHostFn_t destroy,
                                 unsigned int initialRefcount, unsigned int flags) {
  return forward(cuUserObjectCreate, object_out, ptr, static_cast<CUhostFn>(destroy),
                 initialRefcount, flags);
}

cudaError_t cudaUserObjectRetain(cudaUserObject_t object, unsigned int count) {
  return forward(cuUserObjectRetain, object, count);
}

cudaError_t cudaUserObjectRelease(cudaUserObject_t object, unsigned int count) {
  return forward(cuUserObjectRelease, object, count);
}

cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object,
                                      unsigned int count, unsigned int flags) {
  return forward(cuGraphRetainUserObject, graph, object, count, flags);
}

cudaError_t cudaGraphReleaseUserObject(cudaGraph_t graph, cudaUserObject_t object,
                                       unsigned int count) {
  return forward(cuGraphReleaseUserObject, graph, object, count);
}

}  // extern "C"
