// SPDX-License-Identifier: Apache-2.0
// Graphs as a whole: made, cloned, looked at, wired, instantiated, updated, launched, destroyed.
// Making and destroying, launching and uploading are fire and forget; what builds or changes a
// graph is answered, as CUDA says at once what it refuses.
#include "client/driver/graph.h"

#include <cstdio>

using namespace sluice::client;
namespace wire = sluice::wire;
using wire::GraphEdge;

namespace sluice::client {

CUresult find_graph(CUgraph handle, Session** s, Graph** graph) {
  if (const CUresult e = enter(s); e != CUDA_SUCCESS) return e;
  *graph = (*s)->graphs.find(handle);
  return *graph ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult find_node(CUgraphNode handle, Session** s, GraphNode** node, Graph** graph) {
  if (const CUresult e = enter(s); e != CUDA_SUCCESS) return e;
  *node = (*s)->graph_nodes.find(handle);
  *graph = *node ? (*s)->graphs.find((*node)->graph) : nullptr;
  return *graph ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUgraphNode node_handle(Session* s, uint64_t graph_id, Graph* graph, uint32_t ordinal) {
  if (ordinal >= graph->nodes.size()) graph->nodes.resize(ordinal + 1);
  uint64_t& id = graph->nodes[ordinal];
  if (!id) {
    GraphNode* node = s->graph_nodes.create(&id);
    if (!node) return nullptr;
    node->graph = graph_id;
    node->ordinal = ordinal;
  }
  return reinterpret_cast<CUgraphNode>(id);
}

void drop_graph(Session* s, uint64_t id) {
  Graph* graph = s->graphs.find(id);
  if (!graph) return;
  for (const auto& [ordinal, child] : std::exchange(graph->children, {})) drop_graph(s, child);
  for (uint64_t node : graph->nodes) {
    if (!node) continue;
    if (GraphNode* n = s->graph_nodes.find(node)) *n = {};
    s->graph_nodes.destroy(node);
  }
  *graph = {};
  s->graphs.retire(id);
  s->graphs.recycle(id);
}

bool pack_nodes(Session* s, uint64_t graph_id, const CUgraphNode* from, const CUgraphNode* to,
                const CUgraphEdgeData* data, size_t count, std::vector<GraphEdge>* edges) {
  if (count > wire::kMaxGraphEdges || (count && !from)) return false;
  for (size_t i = 0; i < count; ++i) {
    const GraphNode* a = s->graph_nodes.find(from[i]);
    const GraphNode* b = to ? s->graph_nodes.find(to[i]) : a;
    if (!a || !b || a->graph != graph_id || b->graph != graph_id) return false;
    GraphEdge edge{a->ordinal, to ? b->ordinal : 0, 0};
    if (data) std::memcpy(&edge.data, &data[i], sizeof edge.data);
    edges->push_back(edge);
  }
  return true;
}

}  // namespace sluice::client

namespace {

CUresult list(Session* s, CUgraph handle, const Graph* graph, wire::GraphListOf what, uint32_t node,
              std::vector<GraphEdge>* all) {
  return fetch_list(s, wire::kGraphList, wire::GraphList{id_of(handle), what, node, 0, 0},
                    graph->device->context(), all);
}

// CUDA's way of giving lists out: the count alone, or as many as there is room for, null behind.
template <class F>
CUresult give_out(size_t have, size_t* count, bool wanted, F&& put) {
  if (!count) return CUDA_ERROR_INVALID_VALUE;
  if (!wanted) {
    *count = have;
    return CUDA_SUCCESS;
  }
  for (size_t i = 0; i < *count; ++i) put(i, i < have);
  *count = std::min(*count, have);
  return CUDA_SUCCESS;
}

CUresult nodes_of(CUgraph handle, wire::GraphListOf what, CUgraphNode* nodes, size_t* count) {
  Session* s;
  Graph* graph;
  if (const CUresult e = find_graph(handle, &s, &graph); e != CUDA_SUCCESS) return e;
  std::vector<GraphEdge> all;
  if (const CUresult e = list(s, handle, graph, what, 0, &all); e != CUDA_SUCCESS) return e;
  return give_out(all.size(), count, nodes, [&](size_t i, bool there) {
    nodes[i] = there ? node_handle(s, id_of(handle), graph, all[i].from) : nullptr;
  });
}

CUresult nodes_around(CUgraphNode handle, wire::GraphListOf what, CUgraphNode* nodes,
                      CUgraphEdgeData* data, size_t* count) {
  Session* s;
  GraphNode* node;
  Graph* graph;
  if (const CUresult e = find_node(handle, &s, &node, &graph); e != CUDA_SUCCESS) return e;
  std::vector<GraphEdge> all;
  const uint64_t id = node->graph;
  if (const CUresult e = list(s, reinterpret_cast<CUgraph>(id), graph, what, node->ordinal, &all);
      e != CUDA_SUCCESS)
    return e;
  return give_out(all.size(), count, nodes, [&](size_t i, bool there) {
    nodes[i] = there ? node_handle(s, id, graph, all[i].from) : nullptr;
    if (data && there) std::memcpy(&data[i], &all[i].data, sizeof data[i]);
  });
}

CUresult edit(CUgraph handle, wire::GraphChange what, const CUgraphNode* from,
              const CUgraphNode* to, const CUgraphEdgeData* data, size_t count) {
  Session* s;
  Graph* graph;
  if (const CUresult e = find_graph(handle, &s, &graph); e != CUDA_SUCCESS) return e;
  std::vector<GraphEdge> edges;
  if (count == 0) return CUDA_SUCCESS;
  if (graph->memory && what == wire::GraphChange::kRemoveDependencies)
    return CUDA_ERROR_NOT_SUPPORTED;
  if (!to || !pack_nodes(s, id_of(handle), from, to, data, count, &edges))
    return CUDA_ERROR_INVALID_VALUE;
  const wire::GraphEdit m{id_of(handle), 0, what, 0, static_cast<uint32_t>(edges.size()), 0};
  return s->exchange(wire::kGraphEdit, m, bytes_of(edges), {}, nullptr, nullptr,
                     graph->device->context());
}

CUgraphNode told_node(Session* s, uint64_t graph_id, Graph* graph, uint32_t ordinal) {
  return ordinal == wire::kNoNode ? nullptr : node_handle(s, graph_id, graph, ordinal);
}

template <class Request>
CUresult ask_outcome(Session* s, uint16_t function, const Request& request, const Graph* graph,
                     wire::GraphOutcome* outcome) {
  *outcome = {0, wire::kNoNode, wire::kNoNode, 0};
  return s->exchange(function, request, {},
                     {reinterpret_cast<std::byte*>(outcome), sizeof *outcome}, nullptr, nullptr,
                     graph->device->context());
}

CUresult instantiate(CUgraphExec* exec, CUgraph handle, unsigned long long flags,
                     CUgraphInstantiateResult* why, CUgraphNode* error) {
  Session* s;
  Graph* graph;
  if (const CUresult e = find_graph(handle, &s, &graph); e != CUDA_SUCCESS) return e;
  constexpr unsigned long long kKnown =
      CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
      CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
  if (!exec || flags & ~kKnown || graph->body || s->captures.of_graph(id_of(handle)))
    return CUDA_ERROR_INVALID_VALUE;
  if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) return CUDA_ERROR_NOT_SUPPORTED;
  if (!graph->instance.expired()) return CUDA_ERROR_NOT_SUPPORTED;
  uint64_t id;
  GraphExec* made = s->graph_execs.create(&id);
  if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
  made->device = graph->device;
  made->flags = flags;
  wire::GraphOutcome outcome{};
  CUresult e = prepare_host_side(s, id_of(handle), graph, *made);
  if (e == CUDA_SUCCESS)
    e = ask_outcome(s, wire::kGraphInstantiate,
                    wire::GraphInstantiate{id, id_of(handle),
                                           flags & ~static_cast<unsigned long long>(
                                                       CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD)},
                    graph, &outcome);
  if (why) *why = static_cast<CUgraphInstantiateResult>(outcome.result);
  if (error) *error = told_node(s, id_of(handle), graph, outcome.node);
  if (e == CUDA_SUCCESS) {
    if (stands_alone(*graph)) graph->instance = made->instance = std::make_shared<char>();
    made->memory = graph->memory;
    adopt_host_side(whole_host_side(s, *graph), made);
    *exec = reinterpret_cast<CUgraphExec>(id);
    return e;
  }
  s->graph_execs.destroy(id);
  return e;
}

CUresult launch(CUgraphExec handle, CUstream stream_handle, bool upload) {
  Session* s;
  Device* d;
  Stream* stream;
  if (const CUresult e = enter(&s, &d); e != CUDA_SUCCESS) return e;
  GraphExec* exec = s->graph_execs.find(handle);
  if (!exec) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult e = stream_for_work(s, d, stream_handle, &stream); e != CUDA_SUCCESS) return e;
  if (exec->device->place.node != stream->device->place.node) return CUDA_ERROR_INVALID_VALUE;
  const bool host_side = !exec->host.calls.empty();
  if (stream->capture && (host_side || upload))
    return refuse_in_graph(s, stream, "the launch of a graph that calls host functions");
  if (stream->capture && exec->instance)  // it would be a child
    return refuse_in_graph(s, stream, "the launch of a graph with conditions or memory");
  if (!upload)
    if (const CUresult e = before_launch(s, exec, stream); e != CUDA_SUCCESS) return e;
  const auto send = [&] {
    return s->post(wire::kGraphLaunch, wire::GraphLaunch{id_of(handle), stream->wire_id, upload, 0},
                   {}, stream, stream->device->context());
  };
  const bool auto_free = exec->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
  const CUresult e =
      exec->memory ? (*exec->memory)
                         ->home.run(**exec->memory, id_of(handle), stream, auto_free, upload, send)
                   : send();
  return e == CUDA_SUCCESS && !upload ? after_launch(s, exec, stream) : e;
}

}  // namespace

extern "C" {

CUresult cuGraphCreate(CUgraph* graph, unsigned int flags) {
  Session* s;
  Device* d;
  if (const CUresult e = enter(&s, &d); e != CUDA_SUCCESS) return e;
  if (!graph || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  uint64_t id;
  Graph* made = s->graphs.create(&id);
  if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
  made->device = d;
  *graph = reinterpret_cast<CUgraph>(id);
  return s->post(wire::kGraphCreate, wire::GraphCreate{id}, {}, nullptr, d->context());
}

CUresult cuGraphDestroy(CUgraph handle) {
  Session* s;
  Graph* graph;
  if (const CUresult e = find_graph(handle, &s, &graph); e != CUDA_SUCCESS) return e;
  if (graph->parent || s->captures.of_graph(id_of(handle))) return CUDA_ERROR_INVALID_VALUE;
  const uint32_t context = graph->device->context();
  // The worker hears of the end before its slot is anybody else's.
  const CUresult e =
      s->post(wire::kGraphDestroy, wire::GraphId{id_of(handle)}, {}, nullptr, context);
  drop_graph(s, id_of(handle));
  return e;
}

CUresult cuGraphClone(CUgraph* clone, CUgraph handle) {
  Session* s;
  Graph* graph;
  if (const CUresult e = find_graph(handle, &s, &graph); e != CUDA_SUCCESS) return e;
  if (!clone || s->captures.of_graph(id_of(handle))) return CUDA_ERROR_INVALID_VALUE;
  if (stands_alone(*graph)) return CUDA_ERROR_NOT_SUPPORTED;
  uint64_t id;
  Graph* made = s->graphs.create(&id);
  if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult e =
      s->exchange(wire::kGraphCopy, wire::GraphCopy{id, id_of(handle), wire::kNoNode, 0}, {}, {},
                  nullptr, nullptr, graph->device->context());
  if (e != CUDA_SUCCESS) return s->graphs.destroy(id), e;
  made->device = graph->device;
  made->host = root_of(s, graph)->host;
  made->host.stale |= graph->parent != 0;  // some may lie elsewhere in the graph around it
  *clone = reinterpret_cast<CUgraph>(id);
  return CUDA_SUCCESS;
}

// A clone's nodes have their originals' ordinals, as far as those had been asked for.
CUresult cuGraphNodeFindInClone(CUgraphNode* found, CUgraphNode original, CUgraph clone_handle) {
  Session* s;
  Graph *clone, *graph;
  GraphNode* node;
  if (const CUresult e = find_graph(clone_handle, &s, &clone); e != CUDA_SUCCESS) return e;
  if (const CUresult e = find_node(original, &s, &node, &graph); e != CUDA_SUCCESS) return e;
  if (!found) return CUDA_ERROR_INVALID_VALUE;
  std::vector<GraphEdge> all;
  if (const CUresult e = list(s, clone_handle, clone, wire::GraphListOf::kNodes, 0, &all);
      e != CUDA_SUCCESS)
    return e;
  const bool there = std::any_of(all.begin(), all.end(),
                                 [&](const GraphEdge& n) { return n.from == node->ordinal; });
  if (!there) return CUDA_ERROR_INVALID_VALUE;
  *found = node_handle(s, id_of(clone_handle), clone, node->ordinal);
  return CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
  return nodes_of(graph, wire::GraphListOf::kNodes, nodes, count);
}
CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
  return nodes_of(graph, wire::GraphListOf::kRoots, nodes, count);
}

CUresult cuGraphGetEdges_v2(CUgraph handle, CUgraphNode* from, CUgraphNode* to,
                            CUgraphEdgeData* data, size_t* count) {
  Session* s;
  Graph* graph;
  if (const CUresult e = find_graph(handle, &s, &graph); e != CUDA_SUCCESS) return e;
  if ((from == nullptr) != (to == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  std::vector<GraphEdge> all;
  if (const CUresult e = list(s, handle, graph, wire::GraphListOf::kEdges, 0, &all);
      e != CUDA_SUCCESS)
    return e;
  return give_out(all.size(), count, from, [&](size_t i, bool there) {
    from[i] = there ? node_handle(s, id_of(handle), graph, all[i].from) : nullptr;
    to[i] = there ? node_handle(s, id_of(handle), graph, all[i].to) : nullptr;
    if (data && there) std::memcpy(&data[i], &all[i].data, sizeof data[i]);
  });
}
CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode* from, CUgraphNode* to, size_t* count) {
  return cuGraphGetEdges_v2(graph, from, to, nullptr, count);
}

CUresult cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode* nodes, CUgraphEdgeData* data,
                                       size_t* count) {
  return nodes_around(node, wire::GraphListOf::kDependencies, nodes, data, count);
}
CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode* nodes, size_t* count) {
  return nodes_around(node, wire::GraphListOf::kDependencies, nodes, nullptr, count);
}
CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode node, CUgraphNode* nodes,
                                         CUgraphEdgeData* data, size_t* count) {
  return nodes_around(node, wire::GraphListOf::kDependents, nodes, data, count);
}
CUresult cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode* nodes, size_t* count) {
  return nodes_around(node, wire::GraphListOf::kDependents, nodes, nullptr, count);
}

CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                   const CUgraphEdgeData* data, size_t count) {
  return edit(graph, wire::GraphChange::kAddDependencies, from, to, data, count);
}
CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                size_t count) {
  return cuGraphAddDependencies_v2(graph, from, to, nullptr, count);
}
CUresult cuGraphRemoveDependencies_v2(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                      const CUgraphEdgeData* data, size_t count) {
  return edit(graph, wire::GraphChange::kRemoveDependencies, from, to, data, count);
}
CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                   size_t count) {
  return cuGraphRemoveDependencies_v2(graph, from, to, nullptr, count);
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph, unsigned long long flags) {
  // Uploading needs a stream, which only the other function has.
  if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) return CUDA_ERROR_INVALID_VALUE;
  return instantiate(exec, graph, flags, nullptr, nullptr);
}
CUresult cuGraphInstantiateWithParams(CUgraphExec* exec, CUgraph graph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  if (!params) return CUDA_ERROR_INVALID_VALUE;
  CUresult e = instantiate(exec, graph, params->flags, &params->result_out, &params->hErrNode_out);
  if (e == CUDA_SUCCESS && params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD)
    e = launch(*exec, params->hUploadStream, true);
  return e;
}
CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec* exec, CUgraph graph,
                                           CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  if (!params) return CUDA_ERROR_INVALID_VALUE;
  CUDA_GRAPH_INSTANTIATE_PARAMS own = *params;
  if (!own.hUploadStream) own.hUploadStream = CU_STREAM_PER_THREAD;
  const CUresult e = cuGraphInstantiateWithParams(exec, graph, &own);
  params->hErrNode_out = own.hErrNode_out;
  params->result_out = own.result_out;
  return e;
}
CUresult cuGraphInstantiate_v2(CUgraphExec* exec, CUgraph graph, CUgraphNode* error, char* log,
                               size_t room) {
  if (log && room) *log = 0;
  return instantiate(exec, graph, 0, nullptr, error);
}
CUresult cuGraphInstantiate(CUgraphExec* exec, CUgraph graph, CUgraphNode* error, char* log,
                            size_t room) {
  return cuGraphInstantiate_v2(exec, graph, error, log, room);
}

CUresult cuGraphExecDestroy(CUgraphExec handle) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  GraphExec* exec = s->graph_execs.find(handle);
  if (!exec) return CUDA_ERROR_INVALID_VALUE;
  const uint32_t context = exec->device->context();
  // Runs under way still use what user objects stand for.
  if (!exec->host.objects.empty() && !s->work().idle(*exec->device))
    s->ask(*exec->device, wire::kDeviceIdle, wire::DeviceIdle{exec->device->place.index, 0});
  leave_host_side(exec);
  exec->instance.reset();
  exec->memory.reset();
  if (!s->graph_execs.retire(id_of(handle))) return CUDA_ERROR_INVALID_VALUE;
  const CUresult e =
      s->post(wire::kGraphExecDestroy, wire::GraphExecId{id_of(handle)}, {}, nullptr, context);
  s->graph_execs.recycle(id_of(handle));
  return e;
}

CUresult cuGraphExecGetFlags(CUgraphExec handle, cuuint64_t* flags) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  const GraphExec* exec = s->graph_execs.find(handle);
  if (!exec || !flags) return CUDA_ERROR_INVALID_VALUE;
  *flags = exec->flags;
  return CUDA_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) { return launch(exec, stream, false); }
CUresult cuGraphUpload(CUgraphExec exec, CUstream stream) { return launch(exec, stream, true); }

CUresult cuGraphExecUpdate_v2(CUgraphExec exec_handle, CUgraph handle,
                              CUgraphExecUpdateResultInfo* info) {
  Session* s;
  Graph* graph;
  if (const CUresult e = find_graph(handle, &s, &graph); e != CUDA_SUCCESS) return e;
  GraphExec* exec = s->graph_execs.find(exec_handle);
  if (!exec || !info || s->captures.of_graph(id_of(handle))) return CUDA_ERROR_INVALID_VALUE;
  *info = {};
  if (graph->device->place.node != exec->device->place.node || !memory_fits(*graph, *exec)) {
    info->result = CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED;
    return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  }
  wire::GraphOutcome outcome;
  if (const CUresult e = prepare_host_side(s, id_of(handle), graph, *exec); e != CUDA_SUCCESS)
    return e;
  const CUresult e =
      ask_outcome(s, wire::kGraphExecUpdate,
                  wire::GraphExecUpdate{id_of(exec_handle), id_of(handle)}, graph, &outcome);
  info->result = static_cast<CUgraphExecUpdateResult>(outcome.result);
  info->errorNode = told_node(s, id_of(handle), graph, outcome.node);
  info->errorFromNode = told_node(s, id_of(handle), graph, outcome.from);
  if (e == CUDA_SUCCESS) adopt_host_side(whole_host_side(s, *graph), exec);
  if (e == CUDA_SUCCESS && graph->memory != exec->memory) {
    exec->memory = graph->memory;
    graph->instance = exec->instance = std::make_shared<char>();
  }
  return e;
}
CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode* error,
                           CUgraphExecUpdateResult* result) {
  CUgraphExecUpdateResultInfo info{};
  const CUresult e = cuGraphExecUpdate_v2(exec, graph, &info);
  if (error) *error = info.errorNode;
  if (result) *result = info.result;
  return e;
}

}  // extern "C"
