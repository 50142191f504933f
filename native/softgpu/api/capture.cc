// SPDX-License-Identifier: Apache-2.0
// Stream capture: begin, end, what a stream is recording.
#include "softgpu/api/api.h"

namespace sluice::softgpu {
namespace {

// What the pointers given out by cuStreamGetCaptureInfo point to: good until the thread asks again.
thread_local std::vector<CUgraphNode> told_nodes;
thread_local std::vector<CUgraphEdgeData> told_edges;

bool nodes_from(const CUgraphNode* handles, size_t count, std::vector<GraphNode*>& nodes) {
  for (size_t i = 0; i < count; ++i) {
    GraphNode* node = node_from(handles[i]);
    if (!node) return false;
    nodes.push_back(node);
  }
  return true;
}

}  // namespace
}  // namespace sluice::softgpu

using namespace sluice::softgpu;

CUresult cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode) {
  return with_stream(
      handle, [&](Context&, Stream& stream) { return begin_capture(stream, mode, nullptr, {}); });
}
CUresult cuStreamBeginCapture(CUstream handle) {
  return cuStreamBeginCapture_v2(handle, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult cuStreamBeginCaptureToGraph(CUstream handle, CUgraph graph_handle,
                                     const CUgraphNode* after, const CUgraphEdgeData*, size_t count,
                                     CUstreamCaptureMode mode) {
  return with_stream(handle, [&](Context&, Stream& stream) -> CUresult {
    std::shared_ptr<Graph> graph = graph_from(graph_handle);
    std::vector<GraphNode*> nodes;
    if (!graph || (count != 0 && !after) || !nodes_from(after, count, nodes)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    return begin_capture(stream, mode, std::move(graph), std::move(nodes));
  });
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph* graph) {
  return with_stream(
      handle, [&](Context&, Stream& stream) -> CUresult { return end_capture(stream, graph); });
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  return with_stream(handle, [&](Context&, Stream& stream) -> CUresult {
    if (!status) return CUDA_ERROR_INVALID_VALUE;
    CaptureState state;
    const CUresult result = capture_state(stream, &state);
    if (result == CUDA_SUCCESS) *status = state.status;
    return result;
  });
}

CUresult cuStreamGetCaptureInfo_v3(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id,
                                   CUgraph* graph, const CUgraphNode** after,
                                   const CUgraphEdgeData** edges, size_t* count) {
  return with_stream(handle, [&](Context&, Stream& stream) -> CUresult {
    if (!status) return CUDA_ERROR_INVALID_VALUE;
    CaptureState state;
    if (CUresult wrong = capture_state(stream, &state); wrong != CUDA_SUCCESS) return wrong;
    *status = state.status;
    if (state.status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;
    if (id) *id = state.id;
    if (graph) *graph = state.graph;
    told_nodes.clear();
    for (const GraphNode* node : state.after) told_nodes.push_back(handle_of(node));
    told_edges.assign(told_nodes.size(), {});
    if (after) *after = told_nodes.data();
    if (edges) *edges = told_edges.data();
    if (count) *count = told_nodes.size();
    return CUDA_SUCCESS;
  });
}
CUresult cuStreamGetCaptureInfo_v2(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id,
                                   CUgraph* graph, const CUgraphNode** after, size_t* count) {
  return cuStreamGetCaptureInfo_v3(handle, status, id, graph, after, nullptr, count);
}
CUresult cuStreamGetCaptureInfo(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id) {
  return cuStreamGetCaptureInfo_v3(handle, status, id, nullptr, nullptr, nullptr, nullptr);
}

CUresult cuStreamUpdateCaptureDependencies_v2(CUstream handle, CUgraphNode* after,
                                              const CUgraphEdgeData*, size_t count,
                                              unsigned int flags) {
  return with_stream(handle, [&](Context&, Stream& stream) -> CUresult {
    std::vector<GraphNode*> nodes;
    if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES || (count != 0 && !after) ||
        !nodes_from(after, count, nodes)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    return change_capture_dependencies(stream, nodes, flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES);
  });
}
CUresult cuStreamUpdateCaptureDependencies(CUstream handle, CUgraphNode* after, size_t count,
                                           unsigned int flags) {
  return cuStreamUpdateCaptureDependencies_v2(handle, after, nullptr, count, flags);
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  return exchange_capture_mode(mode);
}
