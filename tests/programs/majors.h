// SPDX-License-Identifier: Apache-2.0
// The functions of the runtime whose parameters differ between CUDA 12 and 13, as the test programs
// call them: built against either's headers, a program calls that version's own.
#pragma once

#include <cuda_runtime.h>

inline cudaError_t add_graph_node(cudaGraphNode_t* node, cudaGraph_t graph,
                                  const cudaGraphNode_t* after, size_t count,
                                  cudaGraphNodeParams* params) {
#if CUDART_VERSION >= 13000
  return cudaGraphAddNode(node, graph, after, nullptr, count, params);
#else
  return cudaGraphAddNode(node, graph, after, count, params);
#endif
}

inline cudaError_t count_graph_edges(cudaGraph_t graph, size_t* count) {
#if CUDART_VERSION >= 13000
  return cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, count);
#else
  return cudaGraphGetEdges(graph, nullptr, nullptr, count);
#endif
}

inline cudaError_t count_dependent_nodes(cudaGraphNode_t node, size_t* count) {
#if CUDART_VERSION >= 13000
  return cudaGraphNodeGetDependentNodes(node, nullptr, nullptr, count);
#else
  return cudaGraphNodeGetDependentNodes(node, nullptr, count);
#endif
}

inline cudaError_t remove_graph_edge(cudaGraph_t graph, const cudaGraphNode_t* from,
                                     const cudaGraphNode_t* to) {
#if CUDART_VERSION >= 13000
  return cudaGraphRemoveDependencies(graph, from, to, nullptr, 1);
#else
  return cudaGraphRemoveDependencies(graph, from, to, 1);
#endif
}

inline cudaError_t what_is_captured(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                    cudaGraph_t* graph, const cudaGraphNode_t** last,
                                    size_t* count) {
#if CUDART_VERSION >= 13000
  return cudaStreamGetCaptureInfo(stream, status, nullptr, graph, last, nullptr, count);
#else
  return cudaStreamGetCaptureInfo_v2(stream, status, nullptr, graph, last, count);
#endif
}

inline cudaError_t capture_goes_on_after(cudaStream_t stream, cudaGraphNode_t* node) {
#if CUDART_VERSION >= 13000
  return cudaStreamUpdateCaptureDependencies(stream, node, nullptr, 1,
                                             cudaStreamSetCaptureDependencies);
#else
  return cudaStreamUpdateCaptureDependencies(stream, node, 1, cudaStreamSetCaptureDependencies);
#endif
}

inline cudaError_t copy_batch(void** to, const void** from, size_t* sizes, size_t count,
                              cudaMemcpyAttributes* attributes, size_t* firsts,
                              size_t attribute_count, cudaStream_t stream) {
#if CUDART_VERSION >= 13000
  return cudaMemcpyBatchAsync(to, from, sizes, count, attributes, firsts, attribute_count, stream);
#else
  size_t failed;
  return cudaMemcpyBatchAsync(to, const_cast<void**>(from), sizes, count, attributes, firsts,
                              attribute_count, &failed, stream);
#endif
}

inline cudaError_t copy_boxes(size_t count, cudaMemcpy3DBatchOp* boxes, cudaStream_t stream) {
#if CUDART_VERSION >= 13000
  return cudaMemcpy3DBatchAsync(count, boxes, 0, stream);
#else
  size_t failed;
  return cudaMemcpy3DBatchAsync(count, boxes, &failed, 0, stream);
#endif
}

inline cudaMemLocation location_of(int device) {
  cudaMemLocation location{};
  location.type = device == cudaCpuDeviceId ? cudaMemLocationTypeHost : cudaMemLocationTypeDevice;
  location.id = device == cudaCpuDeviceId ? 0 : device;
  return location;
}

inline cudaError_t prefetch(const void* at, size_t bytes, int device, cudaStream_t stream) {
#if CUDART_VERSION >= 13000
  return cudaMemPrefetchAsync(at, bytes, location_of(device), 0, stream);
#else
  return cudaMemPrefetchAsync(at, bytes, device, stream);
#endif
}

inline cudaError_t advise(const void* at, size_t bytes, cudaMemoryAdvise advice, int device) {
#if CUDART_VERSION >= 13000
  return cudaMemAdvise(at, bytes, advice, location_of(device));
#else
  return cudaMemAdvise(at, bytes, advice, device);
#endif
}
