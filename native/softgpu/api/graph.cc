// SPDX-License-Identifier: Apache-2.0
// Graphs as a whole: made, cloned, looked at, instantiated, launched, updated, destroyed.
#include <algorithm>
#include <cstdio>

#include "softgpu/api/api.h"

namespace sluice::softgpu {
namespace {

// CUDA's way of giving out lists: the count alone, or as many as there is room for and null beyond.
template <class T, class F>
CUresult list(const std::vector<T>& all, size_t* count, bool wanted, F&& put) {
  if (!count) return CUDA_ERROR_INVALID_VALUE;
  if (!wanted) {
    *count = all.size();
    return CUDA_SUCCESS;
  }
  for (size_t i = 0; i < *count; ++i) put(i, i < all.size() ? &all[i] : nullptr);
  *count = std::min(*count, all.size());
  return CUDA_SUCCESS;
}

CUresult list_nodes(const std::vector<const GraphNode*>& all, CUgraphNode* out, size_t* count) {
  return list(all, count, out != nullptr, [&](size_t i, const GraphNode* const* node) {
    out[i] = node ? handle_of(*node) : nullptr;
  });
}

template <class F>
CUresult with_graph(CUgraph handle, F&& body) noexcept {
  return with_driver([&]() -> CUresult {
    std::shared_ptr<Graph> graph = graph_from(handle);
    return graph ? body(*graph) : CUDA_ERROR_INVALID_VALUE;
  });
}

template <class F>
CUresult with_node(CUgraphNode handle, F&& body) noexcept {
  return with_driver([&]() -> CUresult {
    GraphNode* node = node_from(handle);
    return node ? body(*node) : CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult instantiate(CUgraphExec* exec, CUgraph handle, unsigned long long flags,
                     CUgraphInstantiateResult* why) {
  return with_graph(handle, [&](Graph& graph) -> CUresult {
    if (!exec || flags > 15 || graph.parent) return CUDA_ERROR_INVALID_VALUE;
    if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) return CUDA_ERROR_NOT_SUPPORTED;
    bool cyclic = false;
    graph.sorted(&cyclic);
    if (why)
      *why = cyclic ? CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE : CUDA_GRAPH_INSTANTIATE_SUCCESS;
    if (cyclic) return CUDA_ERROR_INVALID_VALUE;
    if (!graph.uses_its_conditions()) {
      if (why) *why = CUDA_GRAPH_INSTANTIATE_CONDITIONAL_HANDLE_UNUSED;
      return CUDA_ERROR_INVALID_VALUE;
    }
    const bool alone = graph.conditional();
    if (alone && !graph.instance.expired()) return CUDA_ERROR_NOT_SUPPORTED;
    auto made = std::make_shared<GraphExec>(graph.clone(), flags);
    if (alone) graph.instance = made;
    *exec = publish_exec(std::move(made));
    return CUDA_SUCCESS;
  });
}

const char* name_of(CUgraphNodeType type) {
  constexpr const char* kNames[] = {
      "KERNEL",       "MEMCPY", "MEMSET", "HOST",      "GRAPH",    "EMPTY",       "WAIT_EVENT",
      "EVENT_RECORD", "SIGNAL", "WAIT",   "MEM_ALLOC", "MEM_FREE", "BATCH_MEMOP", "CONDITIONAL"};
  return type < std::size(kNames) ? kNames[type] : "?";
}

}  // namespace
}  // namespace sluice::softgpu

using namespace sluice::softgpu;

CUresult cuGraphCreate(CUgraph* graph, unsigned int flags) {
  return with_context([&](Context& context) -> CUresult {
    if (!graph || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    *graph = publish_graph(std::make_shared<Graph>(context));
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphDestroy(CUgraph handle) {
  return with_driver([&]() -> CUresult {
    std::shared_ptr<Graph> graph = graph_from(handle);
    if (!graph || graph->parent) return CUDA_ERROR_INVALID_VALUE;
    return retract_graph(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult cuGraphClone(CUgraph* copy, CUgraph handle) {
  return with_graph(handle, [&](Graph& graph) -> CUresult {
    if (!copy) return CUDA_ERROR_INVALID_VALUE;
    if (graph.conditional()) return CUDA_ERROR_NOT_SUPPORTED;
    *copy = publish_graph(graph.clone());
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphConditionalHandleCreate(CUgraphConditionalHandle* out, CUgraph handle, CUcontext,
                                        unsigned int value, unsigned int flags) {
  return with_graph(handle, [&](Graph& graph) -> CUresult {
    if (!out || flags & ~static_cast<unsigned>(CU_GRAPH_COND_ASSIGN_DEFAULT))
      return CUDA_ERROR_INVALID_VALUE;
    graph.conditions.push_back(make_condition(value, flags != 0));
    *out = graph.conditions.back()->handle;
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphNodeFindInClone(CUgraphNode* found, CUgraphNode original, CUgraph clone) {
  return with_graph(clone, [&](Graph& graph) -> CUresult {
    const GraphNode* node = found ? graph.node_of(node_from(original)) : nullptr;
    if (!node) return CUDA_ERROR_INVALID_VALUE;
    *found = handle_of(node);
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphGetNodes(CUgraph handle, CUgraphNode* nodes, size_t* count) {
  return with_graph(handle, [&](Graph& graph) {
    std::vector<const GraphNode*> all;
    for (const auto& node : graph.nodes) all.push_back(node.get());
    return list_nodes(all, nodes, count);
  });
}

CUresult cuGraphGetRootNodes(CUgraph handle, CUgraphNode* nodes, size_t* count) {
  return with_graph(handle, [&](Graph& graph) {
    std::vector<const GraphNode*> all;
    for (const auto& node : graph.nodes) {
      if (node->after.empty()) all.push_back(node.get());
    }
    return list_nodes(all, nodes, count);
  });
}

CUresult cuGraphGetEdges_v2(CUgraph handle, CUgraphNode* from, CUgraphNode* to,
                            CUgraphEdgeData* data, size_t* count) {
  return with_graph(handle, [&](Graph& graph) -> CUresult {
    struct Whole {
      GraphNode::Edge edge;
      const GraphNode* to;
    };
    std::vector<Whole> all;
    for (const auto& node : graph.nodes) {
      for (const GraphNode::Edge& edge : node->after) all.push_back({edge, node.get()});
    }
    if ((from == nullptr) != (to == nullptr)) return CUDA_ERROR_INVALID_VALUE;
    return list(all, count, from != nullptr, [&](size_t i, const Whole* edge) {
      from[i] = edge ? handle_of(edge->edge.from) : nullptr;
      to[i] = edge ? handle_of(edge->to) : nullptr;
      if (data && edge) data[i] = edge->edge.data;
    });
  });
}
CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode* from, CUgraphNode* to, size_t* count) {
  return cuGraphGetEdges_v2(graph, from, to, nullptr, count);
}

CUresult cuGraphNodeGetDependencies_v2(CUgraphNode handle, CUgraphNode* nodes,
                                       CUgraphEdgeData* data, size_t* count) {
  return with_node(handle, [&](GraphNode& node) {
    return list(node.after, count, nodes != nullptr, [&](size_t i, const GraphNode::Edge* edge) {
      nodes[i] = edge ? handle_of(edge->from) : nullptr;
      if (data && edge) data[i] = edge->data;
    });
  });
}
CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode* nodes, size_t* count) {
  return cuGraphNodeGetDependencies_v2(node, nodes, nullptr, count);
}

CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode handle, CUgraphNode* nodes,
                                         CUgraphEdgeData* data, size_t* count) {
  return with_node(handle, [&](GraphNode& node) {
    std::vector<GraphNode::Edge> all;  // `from` is the follower here
    for (const auto& other : node.graph->nodes) {
      for (const GraphNode::Edge& edge : other->after) {
        if (edge.from == &node) all.push_back({other.get(), edge.data});
      }
    }
    return list(all, count, nodes != nullptr, [&](size_t i, const GraphNode::Edge* edge) {
      nodes[i] = edge ? handle_of(edge->from) : nullptr;
      if (data && edge) data[i] = edge->data;
    });
  });
}
CUresult cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode* nodes, size_t* count) {
  return cuGraphNodeGetDependentNodes_v2(node, nodes, nullptr, count);
}

CUresult cuGraphAddDependencies_v2(CUgraph handle, const CUgraphNode* from, const CUgraphNode* to,
                                   const CUgraphEdgeData* data, size_t count) {
  return with_graph(handle, [&](Graph& graph) -> CUresult {
    for (size_t i = 0; i < count; ++i) {
      GraphNode *a = node_from(from[i]), *b = node_from(to[i]);
      if (!a || !b || a == b || a->graph != &graph || b->graph != &graph) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      for (const GraphNode::Edge& edge : b->after) {
        if (edge.from == a) return CUDA_ERROR_INVALID_VALUE;
      }
    }
    for (size_t i = 0; i < count; ++i) {
      node_from(to[i])->after.push_back({node_from(from[i]), data ? data[i] : CUgraphEdgeData{}});
    }
    return CUDA_SUCCESS;
  });
}
CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                size_t count) {
  return cuGraphAddDependencies_v2(graph, from, to, nullptr, count);
}

CUresult cuGraphRemoveDependencies_v2(CUgraph handle, const CUgraphNode* from,
                                      const CUgraphNode* to, const CUgraphEdgeData*, size_t count) {
  return with_graph(handle, [&](Graph& graph) -> CUresult {
    for (size_t i = 0; i < count; ++i) {
      GraphNode *a = node_from(from[i]), *b = node_from(to[i]);
      if (!a || !b || a->graph != &graph || b->graph != &graph) return CUDA_ERROR_INVALID_VALUE;
      if (std::erase_if(b->after, [&](const GraphNode::Edge& edge) { return edge.from == a; }) ==
          0) {
        return CUDA_ERROR_INVALID_VALUE;
      }
    }
    return CUDA_SUCCESS;
  });
}
CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                   size_t count) {
  return cuGraphRemoveDependencies_v2(graph, from, to, nullptr, count);
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph, unsigned long long flags) {
  return instantiate(exec, graph, flags, nullptr);
}
CUresult cuGraphInstantiate_v2(CUgraphExec* exec, CUgraph graph, CUgraphNode* error, char* log,
                               size_t room) {
  if (error) *error = nullptr;
  if (log && room != 0) *log = 0;
  return instantiate(exec, graph, 0, nullptr);
}
CUresult cuGraphInstantiate(CUgraphExec* exec, CUgraph graph, CUgraphNode* error, char* log,
                            size_t room) {
  return cuGraphInstantiate_v2(exec, graph, error, log, room);
}
CUresult cuGraphInstantiateWithParams(CUgraphExec* exec, CUgraph graph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  if (!params) return CUDA_ERROR_INVALID_VALUE;
  params->hErrNode_out = nullptr;
  return instantiate(exec, graph, params->flags, &params->result_out);
}

CUresult cuGraphExecDestroy(CUgraphExec handle) {
  return with_driver(
      [&]() -> CUresult { return retract_exec(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; });
}

CUresult cuGraphExecGetFlags(CUgraphExec handle, cuuint64_t* flags) {
  return with_driver([&]() -> CUresult {
    std::shared_ptr<GraphExec> exec = exec_from(handle);
    if (!exec || !flags) return CUDA_ERROR_INVALID_VALUE;
    *flags = exec->flags;
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphUpload(CUgraphExec handle, CUstream stream_handle) {
  return with_stream(stream_handle, [&](Context&, Stream&) -> CUresult {
    return exec_from(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;  // nothing to move
  });
}

CUresult cuGraphLaunch(CUgraphExec handle, CUstream stream_handle) {
  return with_stream(stream_handle, [&](Context& context, Stream& stream) -> CUresult {
    std::shared_ptr<GraphExec> exec = exec_from(handle);
    if (!exec) return CUDA_ERROR_INVALID_VALUE;
    if (auto answer = captured(stream, [&] { return Work(ChildWork{exec->graph().clone()}); })) {
      return *answer;
    }
    exec->launch(context, stream);
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphExecUpdate_v2(CUgraphExec handle, CUgraph graph_handle,
                              CUgraphExecUpdateResultInfo* info) {
  return with_graph(graph_handle, [&](Graph& graph) -> CUresult {
    std::shared_ptr<GraphExec> exec = exec_from(handle);
    if (!exec || !info) return CUDA_ERROR_INVALID_VALUE;
    const GraphNode* error = nullptr;
    *info = {};
    info->result = exec->update(graph, &error);
    info->errorNode = handle_of(error);
    return info->result == CU_GRAPH_EXEC_UPDATE_SUCCESS ? CUDA_SUCCESS
                                                        : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  });
}
CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode* error,
                           CUgraphExecUpdateResult* result) {
  CUgraphExecUpdateResultInfo info{};
  const CUresult e = cuGraphExecUpdate_v2(exec, graph, &info);
  if (error) *error = info.errorNode;
  if (result) *result = info.result;
  return e;
}

CUresult cuGraphDebugDotPrint(CUgraph handle, const char* path, unsigned int) {
  return with_graph(handle, [&](Graph& graph) -> CUresult {
    if (!path) return CUDA_ERROR_INVALID_VALUE;
    std::FILE* file = std::fopen(path, "w");
    if (!file) return CUDA_ERROR_OPERATING_SYSTEM;
    std::fprintf(file, "digraph dot {\n");
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      std::fprintf(file, "\"%zu\" [label=\"%zu\\n%s\"];\n", i, i,
                   name_of(type_of(graph.nodes[i]->work)));
    }
    const auto number = [&](const GraphNode* node) {
      size_t i = 0;
      while (graph.nodes[i].get() != node) ++i;
      return i;
    };
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      for (const GraphNode::Edge& edge : graph.nodes[i]->after) {
        std::fprintf(file, "\"%zu\" -> \"%zu\";\n", number(edge.from), i);
      }
    }
    std::fprintf(file, "}\n");
    return std::fclose(file) == 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
  });
}
