// SPDX-License-Identifier: Apache-2.0
// Stream capture. Beginning is fire and forget, the end is answered: it is where the driver says
// whether the graph came about. What streams record is sent as ever and lands in the graph.
#include <utility>

#include "client/driver/graph.h"

using namespace sluice::client;
namespace wire = sluice::wire;

namespace {

CUresult with_stream(CUstream handle, Session** s, Device** d, Stream** stream) {
  if (const CUresult e = enter(s, d); e != CUDA_SUCCESS) return e;
  return resolve_stream(*s, *d, handle, stream);
}

CUresult begin(CUstream handle, CUgraph graph_handle, const CUgraphNode* after,
               const CUgraphEdgeData* data, size_t count, CUstreamCaptureMode mode, bool existing) {
  Session* s;
  Device* d;
  Stream* stream;
  if (const CUresult e = with_stream(handle, &s, &d, &stream); e != CUDA_SUCCESS) return e;
  if (mode < CU_STREAM_CAPTURE_MODE_GLOBAL || mode > CU_STREAM_CAPTURE_MODE_RELAXED)
    return CUDA_ERROR_INVALID_VALUE;
  if (stream->wire_id == 0) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
  uint64_t id = id_of(graph_handle);
  std::vector<wire::GraphEdge> edges;
  if (existing) {
    if (!s->graphs.find(id) || s->captures.of_graph(id) ||
        !pack_nodes(s, id, after, nullptr, data, count, &edges))
      return CUDA_ERROR_INVALID_VALUE;
  } else {
    Graph* made = s->graphs.create(&id);
    if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
    made->device = stream->device;
  }
  if (const CUresult e = s->captures.begin(stream, mode, id, existing); e != CUDA_SUCCESS) {
    if (!existing) s->graphs.destroy(id);
    return e;
  }
  const wire::CaptureBegin m{stream->wire_id, id, existing, static_cast<uint32_t>(edges.size())};
  return s->post(wire::kCaptureBegin, m, bytes_of(edges), nullptr, stream->device->context());
}

// What was given out by cuStreamGetCaptureInfo: good until the thread asks again.
struct Told {
  std::vector<CUgraphNode> nodes;
  std::vector<CUgraphEdgeData> data;
};

CUresult tell_dependencies(Session* s, const Stream* stream, const Capture& capture, Told* told) {
  std::vector<wire::GraphEdge> list;
  const CUresult e =
      fetch_list(s, wire::kCaptureInfo, wire::CaptureInfo{stream->wire_id, capture.graph, 0, 0},
                 stream->device->context(), &list);
  if (e != CUDA_SUCCESS) return e;
  Graph* graph = s->graphs.find(capture.graph);
  if (!graph) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  *told = {};
  for (const wire::GraphEdge& entry : list) {
    CUgraphEdgeData data;
    std::memcpy(&data, &entry.data, sizeof data);
    told->nodes.push_back(node_handle(s, capture.graph, graph, entry.from));
    told->data.push_back(data);
  }
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  return begin(stream, nullptr, nullptr, nullptr, 0, mode, false);
}
CUresult cuStreamBeginCapture(CUstream stream) {
  return cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}
CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode* after,
                                     const CUgraphEdgeData* data, size_t count,
                                     CUstreamCaptureMode mode) {
  return begin(stream, graph, after, data, count, mode, true);
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph* graph) {
  Session* s;
  Device* d;
  Stream* stream;
  if (const CUresult e = with_stream(handle, &s, &d, &stream); e != CUDA_SUCCESS) return e;
  Capture capture;
  // Whoever recorded into a graph of his own knows it.
  CUstreamCaptureStatus status;
  if (!graph &&
      (s->captures.status(stream, &status, &capture) != CUDA_SUCCESS || !capture.existing))
    return CUDA_ERROR_INVALID_VALUE;
  if (graph) *graph = nullptr;
  const CUresult ended = s->captures.end(stream, &capture);
  // Another thread than the one that began it ends a capture all the same, and gets no graph.
  if (ended != CUDA_SUCCESS && ended != CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD) return ended;
  CUresult e = s->exchange(wire::kCaptureEnd,
                           wire::CaptureEnd{stream->wire_id, capture.graph, capture.invalidated, 0},
                           {}, {}, nullptr, nullptr, stream->device->context());
  if (capture.invalidated) e = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (ended != CUDA_SUCCESS) e = ended;
  if (e == CUDA_SUCCESS && graph)
    *graph = reinterpret_cast<CUgraph>(capture.graph);
  else if (e != CUDA_SUCCESS && !capture.existing)
    drop_graph(s, capture.graph);
  return e;
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  Session* s;
  Device* d;
  Stream* stream;
  if (const CUresult e = with_stream(handle, &s, &d, &stream); e != CUDA_SUCCESS) return e;
  if (!status) return CUDA_ERROR_INVALID_VALUE;
  Capture capture;
  return s->captures.status(stream, status, &capture);
}

CUresult cuStreamGetCaptureInfo_v3(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id,
                                   CUgraph* graph, const CUgraphNode** after,
                                   const CUgraphEdgeData** data, size_t* count) {
  Session* s;
  Device* d;
  Stream* stream;
  if (const CUresult e = with_stream(handle, &s, &d, &stream); e != CUDA_SUCCESS) return e;
  if (!status) return CUDA_ERROR_INVALID_VALUE;
  Capture capture;
  if (const CUresult e = s->captures.status(stream, status, &capture); e != CUDA_SUCCESS) return e;
  if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;
  if (id) *id = capture.id;
  if (graph) *graph = reinterpret_cast<CUgraph>(capture.graph);
  if (!after && !count && !data) return CUDA_SUCCESS;
  static thread_local Told told;
  if (const CUresult e = tell_dependencies(s, stream, capture, &told); e != CUDA_SUCCESS) return e;
  if (after) *after = told.nodes.data();
  if (data) *data = told.data.data();
  if (count) *count = told.nodes.size();
  return CUDA_SUCCESS;
}
CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                   CUgraph* graph, const CUgraphNode** after, size_t* count) {
  return cuStreamGetCaptureInfo_v3(stream, status, id, graph, after, nullptr, count);
}
CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id) {
  return cuStreamGetCaptureInfo_v3(stream, status, id, nullptr, nullptr, nullptr, nullptr);
}

CUresult cuStreamUpdateCaptureDependencies_v2(CUstream handle, CUgraphNode* nodes,
                                              const CUgraphEdgeData* data, size_t count,
                                              unsigned int flags) {
  Session* s;
  Device* d;
  Stream* stream;
  if (const CUresult e = with_stream(handle, &s, &d, &stream); e != CUDA_SUCCESS) return e;
  if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES) return CUDA_ERROR_INVALID_VALUE;
  Capture capture;
  CUstreamCaptureStatus status;
  if (const CUresult e = s->captures.status(stream, &status, &capture); e != CUDA_SUCCESS) return e;
  if (status == CU_STREAM_CAPTURE_STATUS_NONE) return CUDA_ERROR_ILLEGAL_STATE;
  if (status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  std::vector<wire::GraphEdge> edges;
  if (!pack_nodes(s, capture.graph, nodes, nullptr, data, count, &edges))
    return CUDA_ERROR_INVALID_VALUE;
  const wire::CaptureUpdate m{stream->wire_id, capture.graph,
                              flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES,
                              static_cast<uint32_t>(edges.size())};
  return s->exchange(wire::kCaptureUpdate, m, bytes_of(edges), {}, nullptr, nullptr,
                     stream->device->context());
}
CUresult cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode* nodes, size_t count,
                                           unsigned int flags) {
  return cuStreamUpdateCaptureDependencies_v2(stream, nodes, nullptr, count, flags);
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  if (!mode || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
    return CUDA_ERROR_INVALID_VALUE;
  std::swap(*mode, thread_state().capture_mode);
  return CUDA_SUCCESS;
}

CUresult cuStreamBatchMemOp_v2(CUstream handle, unsigned int count,
                               CUstreamBatchMemOpParams* operations, unsigned int flags) {
  Session* s;
  Device* d;
  Stream* stream;
  if (const CUresult e = enter(&s, &d); e != CUDA_SUCCESS) return e;
  if (const CUresult e = stream_for_work(s, d, handle, &stream); e != CUDA_SUCCESS) return e;
  std::vector<wire::MemOp> packed;
  if (flags != 0 || !pack_operations(s, operations, count, &packed, stream->device))
    return CUDA_ERROR_INVALID_VALUE;
  return s->post(wire::kStreamMemOps, wire::StreamMemOps{stream->wire_id, count, 0},
                 std::as_bytes(std::span(packed)), stream, stream->device->context());
}

}  // extern "C"
