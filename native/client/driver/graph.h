// SPDX-License-Identifier: Apache-2.0
// Shared by the graph functions (graph.cc, graph_node.cc, capture.cc) and by what goes into a graph
// while a stream captures (graph_host.cc): nodes' handles, and the host's side of graphs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "client/core/enter.h"
#include "client/driver/transfer.h"
#include "client/objects/graph.h"
#include "wire/graph_commands.h"

namespace sluice::client {

// ---- graphs and nodes

inline uint64_t id_of(CUgraph g) { return reinterpret_cast<uint64_t>(g); }
inline uint64_t id_of(CUgraphNode n) { return reinterpret_cast<uint64_t>(n); }
inline uint64_t id_of(CUgraphExec e) { return reinterpret_cast<uint64_t>(e); }

// Graph, or CUDA_ERROR_INVALID_VALUE, as CUDA answers to a wrong handle.
CUresult find_graph(CUgraph handle, Session** s, Graph** graph);
CUresult find_node(CUgraphNode handle, Session** s, GraphNode** node, Graph** graph);
// The handle of a graph's node, made when it is first asked for.
CUgraphNode node_handle(Session* s, uint64_t graph_id, Graph* graph, uint32_t ordinal);
// A graph's handle and its nodes' end.
void drop_graph(Session* s, uint64_t id);
// Edges as the wire has them. False: a handle that is no node of this graph.
bool pack_nodes(Session* s, uint64_t graph_id, const CUgraphNode* from, const CUgraphNode* to,
                const CUgraphEdgeData* data, size_t count, std::vector<wire::GraphEdge>* edges);
// Stream memory operations of a device as the wire has them. False: CUDA would refuse them.
bool pack_operations(Session* s, const CUstreamBatchMemOpParams* operations, size_t count,
                     std::vector<wire::MemOp>* packed, const Device* user);
inline std::span<const std::byte> bytes_of(const std::vector<wire::GraphEdge>& edges) {
  return std::as_bytes(std::span(edges));
}
// The vGPU that a node's context means, which none leaves as it is: the graph's.
CUresult device_of_context(Session* s, CUcontext handle, Device** device);

// A list that comes in pieces: `ask` sends the request for those from `first` on.
template <class Request>
CUresult fetch_list(Session* s, uint16_t function, Request request, uint32_t context,
                    std::vector<wire::GraphEdge>* all) {
  std::vector<std::byte> sink(64 << 10);
  for (;;) {
    request.first = static_cast<uint32_t>(all->size());
    size_t got = 0;
    const CUresult e = s->exchange(function, request, {}, sink, &got, nullptr, context);
    if (e != CUDA_SUCCESS) return e;
    wire::GraphListReply head{};
    if (got < sizeof head) return CUDA_ERROR_UNKNOWN;
    std::memcpy(&head, sink.data(), sizeof head);
    const size_t held = (std::min(got, sink.size()) - sizeof head) / sizeof(wire::GraphEdge);
    const size_t count = std::min<size_t>(head.count, held);
    const auto* at = reinterpret_cast<const wire::GraphEdge*>(sink.data() + sizeof head);
    all->insert(all->end(), at, at + count);
    if (all->size() >= head.total || count == 0) return CUDA_SUCCESS;
  }
}

// What a node holds, as it came from the worker.
struct NodeContents {
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  std::vector<std::byte> body;
  const HostCall* call = nullptr;  // the node calls this function, or is a copy that does

  template <class T>
  const T* as() const {
    return body.size() >= sizeof(T) ? reinterpret_cast<const T*>(body.data()) : nullptr;
  }
};
CUresult read_node(Session* s, const GraphNode& node, Graph* graph, NodeContents* out);

// Has the worker add a node, whose body is `body`.
CUresult send_node(Session* s, uint64_t graph_id, Graph* graph, uint32_t type,
                   const std::vector<std::byte>& body, const std::vector<wire::GraphEdge>& edges,
                   const Device* device, CUgraphNode* added);
// Nodes of types of their own (graph_conditional.cc).
CUresult add_conditional_node(Session* s, uint64_t graph_id, Graph* graph,
                              const std::vector<wire::GraphEdge>& edges, CUgraphNodeParams* params,
                              CUgraphNode* added);
// Memory nodes (graph_memory.cc).
CUresult add_allocation_node(Session* s, uint64_t graph_id, Graph* graph,
                             const std::vector<wire::GraphEdge>& edges,
                             CUDA_MEM_ALLOC_NODE_PARAMS_v2* params, CUgraphNode* added);
CUresult add_free_node(Session* s, uint64_t graph_id, Graph* graph,
                       const std::vector<wire::GraphEdge>& edges, CUdeviceptr pointer,
                       CUgraphNode* added);
// The same as what a capturing stream records; `users`: a bit for each vGPU that may use it.
CUresult capture_allocation(Session* s, Stream* stream, const CUmemPoolProps& properties,
                            uint64_t users, size_t bytes, CUdeviceptr* pointer);
CUresult capture_free(Session* s, Stream* stream, CUdeviceptr pointer);
// The memory node that the worker knows as an empty one.
bool find_memory_node(const Graph& graph, uint32_t ordinal, GraphPlan::Node* node);
// What an executable graph takes over of the memory of the graph that it is updated to.
bool memory_fits(const Graph& graph, const GraphExec& exec);

// May be no child, has no clones and one executable graph at a time.
inline bool stands_alone(const Graph& graph) { return graph.conditional || graph.memory; }

// A graph will record the event: no mark of ours tells when.
void leave_to_driver(Session* s, CUevent handle, Event* event);

// ---- what happens in this process when a graph runs

// Says once for each `what` that Sluice cannot put it into a graph, and breaks the capture.
CUresult refuse_in_graph(Session* s, Stream* stream, const char* what);
void note_refused(const char* what);

// The application's function as a node of the capture that `stream` takes part in.
CUresult capture_host_function(Session* s, Stream* stream, CUhostFn function, void* data);
// Copies whose host side the worker cannot reach, as nodes of the capture.
CUresult capture_copy_to_device(Session* s, Stream* stream, uint64_t to, uint64_t to_pitch,
                                const void* from, uint64_t from_pitch, Rect rect);
CUresult capture_copy_to_host(Session* s, Stream* stream, void* to, uint64_t to_pitch,
                              uint64_t from, uint64_t from_pitch, Rect rect);
CUresult capture_host_copy(Session* s, Stream* stream, void* to, uint64_t to_pitch,
                           const void* from, uint64_t from_pitch, Rect rect);
// Work of ours on host memory, as a node of the capture.
CUresult capture_host_work(Session* s, Stream* stream, std::function<void()> work);

// A copy of a box as a node.
struct PackedCopy {
  uint32_t type = 0;
  std::vector<std::byte> body;
  std::vector<HostCall> calls;  // one, if it needs any
  std::vector<HostAround> around;
};
// `now`: the call of the node that is changed, if it has one; `fixed`: in an executable graph,
// where a node stays what it is; `body`: inside of a condition.
CUresult pack_copy(Session* s, Device* device, const CUDA_MEMCPY3D& copy, const HostCall* now,
                   bool fixed, bool body, PackedCopy* packed);
// The same as a node of the capture that `stream` takes part in.
CUresult capture_copy(Session* s, Stream* stream, const CUDA_MEMCPY3D& copy);
// The graph that a capturing stream records into; nullptr: the capture is broken.
Graph* graph_of_capture(Session* s, Stream* stream);

// Words for a host function in a graph; nullptr: none is left.
std::shared_ptr<Handshake> make_handshake(Session* s);
uint64_t make_call_key();
// What a node with these words does.
std::vector<wire::MemOp> handshake_operations(const Handshake& words);

// A graph's host side with that of the bodies in it.
HostSide whole_host_side(Session* s, const Graph& graph);
// A graph's host side is that of the graph that it lies in, if it lies in one.
Graph* root_of(Session* s, Graph* graph);
// The call with this key; nullptr: there is none.
HostCall* find_call(HostSide* host, uint64_t key);
// Gives the calls of a graph that `taken` picks words of their own, and with `new_keys` keys too.
CUresult renew_words(Session* s, uint64_t graph_id, Graph* graph, bool new_keys,
                     const std::function<bool(const HostCall&)>& taken);
// Before the driver makes or updates an executable graph: no word of the graph's is in use by
// another. And after it.
CUresult prepare_host_side(Session* s, uint64_t graph_id, Graph* graph, const GraphExec& exec);
void adopt_host_side(const HostSide& from, GraphExec* exec);
void leave_host_side(GraphExec* exec);
// Around a launch.
CUresult before_launch(Session* s, GraphExec* exec, Stream* stream);
CUresult after_launch(Session* s, GraphExec* exec, Stream* stream);

// Has the thread for host functions run `call` when its node comes to it (host_function.cc).
void expect_call(Session* s, Device* device, const HostCall& call);
// False: there is no thread for them, as the log says.
bool host_functions_run();
// The same thread runs a function that waits for nothing.
void run_soon(Session* s, Device* device, std::function<void()> run);

}  // namespace sluice::client
