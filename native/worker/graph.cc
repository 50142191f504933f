// SPDX-License-Identifier: Apache-2.0
// Graphs as a whole: made, copied, looked at, wired, instantiated, updated, launched, destroyed.
#include "worker/graph.h"

#include <algorithm>
#include <cstring>
#include <unordered_set>

#include "worker/dispatch.h"
#include "worker/graph_node.h"
#include "worker/graph_size.h"

namespace sluice::worker {

namespace {

constexpr size_t kMaxConditionals = 1 << 14;  // of one graph

std::string with(const char* what, const char* rest) { return std::string(what) + rest; }

void create(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::GraphCreate>();
  if (!d.ok() || !s.objects.graphs.has_room(m.id))
    return s.reject("GraphCreate mints no id that is free");
  if (!s.use_context(c.header.context)) return;
  auto graph = std::make_shared<GraphObject>();
  graph->existing = true;
  reply.status = s.driver.cuGraphCreate(&graph->handle, 0);
  if (reply.status == CUDA_SUCCESS) s.objects.graphs.add(m.id, std::move(graph));
}

void copy(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::GraphCopy>();
  if (!d.ok() || !s.objects.graphs.has_room(m.id))
    return s.reject("GraphCopy mints no id that is free");
  const GraphRef from = find_graph(s, m.graph, "GraphCopy");
  if (!from || !s.use_context(c.header.context)) return;
  auto graph = std::make_shared<GraphObject>();
  graph->existing = true;
  if (m.node == wire::kNoNode) {
    if (from->capturing) {
      reply.status = CUDA_ERROR_INVALID_VALUE;
      return;
    }
    graph->size = size_of(s, from);
    graph->own_nodes = from->own_nodes;
    graph->inside = from->inside;
    graph->collectives = from->collectives;
    if (graph->size.nodes > kMaxNodesOfGraph || !take_nodes(s, graph->size.nodes)) {
      reply.status = CUDA_ERROR_OUT_OF_MEMORY;
      return;
    }
    reply.status = s.driver.cuGraphClone(&graph->handle, from->handle);
    if (reply.status != CUDA_SUCCESS) return give_nodes(s, graph->size.nodes);
    // The clone's nodes have the ordinals of those that they are copies of.
    for (CUgraphNode node : from->nodes) {
      CUgraphNode twin = nullptr;
      if (node) s.driver.cuGraphNodeFindInClone(&twin, node, graph->handle);
      if (twin) graph->ordinals[twin] = static_cast<uint32_t>(graph->nodes.size());
      graph->nodes.push_back(twin);
    }
  } else {
    const CUgraphNode node = from->node_at(m.node);
    if (!node) return s.reject("GraphCopy names a node that there is not");
    graph->parent = m.graph;
    graph->node = m.node;
    graph->depth = from->depth + 1;
    reply.status = s.driver.cuGraphChildGraphNodeGetGraph(node, &graph->handle);
  }
  if (reply.status == CUDA_SUCCESS) s.objects.graphs.add(m.id, std::move(graph));
}

// Graphs inside of one that goes, or of one of its nodes, go with it.
void forget_inside(Session& s, uint64_t parent, uint32_t node) {
  std::vector<uint64_t> inside;
  s.objects.graphs.for_each([&](uint64_t id, const GraphRef& g) {
    if (g->parent == parent && (node == wire::kNoNode || g->node == node)) inside.push_back(id);
  });
  for (uint64_t id : inside) {
    forget_inside(s, id, wire::kNoNode);
    GraphRef gone;
    s.objects.graphs.take(id, &gone);
  }
}

void destroy(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::GraphId>();
  if (!d.ok()) return s.reject("GraphDestroy is cut short");
  GraphRef graph = find_graph(s, m.graph, "GraphDestroy");
  if (!graph) return;
  if (graph->capturing) return s.reject("GraphDestroy names a graph that is being captured");
  forget_inside(s, m.graph, wire::kNoNode);
  s.objects.graphs.take(m.graph, &graph);
  if (!graph->parent) give_nodes(s, graph->size.nodes);
  if (!graph->parent) reply.status = s.driver.cuGraphDestroy(graph->handle);
}

CUresult list_nodes(Session& s, GraphObject& g, bool roots, std::vector<wire::GraphEdge>* all) {
  std::vector<CUgraphNode> nodes;
  if (const CUresult e = learn_nodes(s, g, &nodes); e != CUDA_SUCCESS) return e;
  if (roots) {
    size_t count = 0;
    if (const CUresult e = s.driver.cuGraphGetRootNodes(g.handle, nullptr, &count);
        e != CUDA_SUCCESS)
      return e;
    nodes.resize(count);
    if (count)
      if (const CUresult e = s.driver.cuGraphGetRootNodes(g.handle, nodes.data(), &count);
          e != CUDA_SUCCESS)
        return e;
  }
  for (CUgraphNode node : nodes) {
    CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
    if (const CUresult e = s.driver.cuGraphNodeGetType(node, &type); e != CUDA_SUCCESS) return e;
    wire::GraphEdge entry{g.ordinal_of(node), static_cast<uint32_t>(type), 0};
    all->push_back(entry);
  }
  return CUDA_SUCCESS;
}

// The first address of memory operations, as commands name it.
CUresult first_address(Session& s, CUgraphNode node, uint64_t* address) {
  CUDA_BATCH_MEM_OP_NODE_PARAMS p{};
  const CUresult e = s.driver.cuGraphBatchMemOpNodeGetParams(node, &p);
  *address = e == CUDA_SUCCESS && p.count ? s.signals.named(p.paramArray[0].writeValue.address) : 0;
  return e;
}

CUresult list_words(Session& s, GraphObject& g, std::vector<wire::GraphEdge>* all) {
  return for_each_call(s, g.handle, [&](CUgraphNode node) {
    wire::GraphEdge entry{};
    const CUresult e = first_address(s, node, &entry.data);
    all->push_back(entry);
    return e;
  });
}

CUresult list_edges(Session& s, GraphObject& g, std::vector<wire::GraphEdge>* all) {
  size_t count = 0;
  CUresult e = s.driver.cuGraphGetEdges_v2(g.handle, nullptr, nullptr, nullptr, &count);
  std::vector<CUgraphNode> from(count), to(count);
  std::vector<CUgraphEdgeData> data(count);
  if (e == CUDA_SUCCESS && count)
    e = s.driver.cuGraphGetEdges_v2(g.handle, from.data(), to.data(), data.data(), &count);
  if (e != CUDA_SUCCESS) return e;
  for (size_t i = 0; i < count; ++i)
    all->push_back({g.ordinal_of(from[i]), g.ordinal_of(to[i]), edge_bits(data[i])});
  return CUDA_SUCCESS;
}

CUresult list_around(Session& s, GraphObject& g, CUgraphNode node, bool before,
                     std::vector<wire::GraphEdge>* all) {
  const auto ask =
      before ? s.driver.cuGraphNodeGetDependencies_v2 : s.driver.cuGraphNodeGetDependentNodes_v2;
  size_t count = 0;
  CUresult e = ask(node, nullptr, nullptr, &count);
  std::vector<CUgraphNode> nodes(count);
  std::vector<CUgraphEdgeData> data(count);
  if (e == CUDA_SUCCESS && count) e = ask(node, nodes.data(), data.data(), &count);
  if (e != CUDA_SUCCESS) return e;
  for (size_t i = 0; i < count; ++i)
    all->push_back({g.ordinal_of(nodes[i]), 0, edge_bits(data[i])});
  return CUDA_SUCCESS;
}

CUresult list_ancestors(Session& s, GraphObject& g, CUgraphNode node,
                        std::vector<wire::GraphEdge>* all) {
  std::unordered_set<CUgraphNode> seen{node};
  std::vector<CUgraphNode> found{node};
  for (size_t i = 0; i < found.size(); ++i) {
    size_t count = 0;
    CUresult e = s.driver.cuGraphNodeGetDependencies_v2(found[i], nullptr, nullptr, &count);
    std::vector<CUgraphNode> nodes(count);
    std::vector<CUgraphEdgeData> data(count);
    if (e == CUDA_SUCCESS && count)
      e = s.driver.cuGraphNodeGetDependencies_v2(found[i], nodes.data(), data.data(), &count);
    if (e != CUDA_SUCCESS) return e;
    for (CUgraphNode one : nodes) {
      if (found.size() > wire::kMaxAncestors) return CUDA_SUCCESS;
      if (!seen.insert(one).second) continue;
      found.push_back(one);
      all->push_back({g.ordinal_of(one), 0, 0});
    }
  }
  return CUDA_SUCCESS;
}

void list(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::GraphList>();
  if (!d.ok() || m.what > wire::GraphListOf::kWords)
    return s.reject("GraphList asks for something that there is not");
  const GraphRef graph = find_graph(s, m.graph, "GraphList");
  if (!graph || !s.use_context(c.header.context)) return;
  std::vector<wire::GraphEdge> all;
  using enum wire::GraphListOf;
  if (m.what >= kDependencies && m.what != kWords) {
    const CUgraphNode node = graph->node_at(m.node);
    if (!node) return s.reject("GraphList names a node that there is not");
    if (m.what == kAncestors)
      reply.status = list_ancestors(s, *graph, node, &all);
    else
      reply.status = list_around(s, *graph, node, m.what == kDependencies, &all);
  } else if (m.what == kWords) {
    reply.status = list_words(s, *graph, &all);
  } else {
    reply.status = m.what == kEdges ? list_edges(s, *graph, &all)
                                    : list_nodes(s, *graph, m.what == kRoots, &all);
  }
  if (reply.status == CUDA_SUCCESS) put_list(s, all, m.first, reply);
}

void edit(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto m = d.fixed<wire::GraphEdit>();
  using enum wire::GraphChange;
  if (!d.ok() || m.what > kCopyAttributes) return s.reject("GraphEdit makes no sense");
  if (m.edge_count > wire::kMaxGraphEdges) return s.reject("GraphEdit has too many edges");
  const auto raw = d.bytes(uint64_t{m.edge_count} * sizeof(wire::GraphEdge));
  if (!d.ok()) return s.reject("GraphEdit is cut short");
  const GraphRef graph = find_graph(s, m.graph, "GraphEdit");
  std::vector<wire::GraphEdge> list;
  DriverEdges edges;
  if (!graph || !take_edges(s, raw, m.edge_count, "GraphEdit", &list) ||
      !resolve_edges(s, *graph, list, true, "GraphEdit", &edges) ||
      !s.use_context(c.header.context))
    return;
  const size_t n = list.size();
  if (m.what == kAddDependencies || m.what == kRemoveDependencies) {
    const auto change = m.what == kAddDependencies ? s.driver.cuGraphAddDependencies_v2
                                                   : s.driver.cuGraphRemoveDependencies_v2;
    reply.status = change(graph->handle, edges.from.data(), edges.to.data(), edges.edge_data(), n);
    return;
  }
  if (m.what == kCopyAttributes) {
    if (n != 1) return s.reject("GraphEdit copies attributes between two nodes only");
    reply.status = s.driver.cuGraphKernelNodeCopyAttributes(edges.to[0], edges.from[0]);
    return;
  }
  const CUgraphNode node = graph->node_at(m.node);
  if (!node) return s.reject("GraphEdit names a node that there is not");
  if (m.what == kDestroyNode) {
    // Bodies of conditions have grown by themselves.
    uint64_t nodes = 1 + graph->inside[m.node];
    s.objects.graphs.for_each([&](uint64_t, const GraphRef& g) {
      if (g->parent == m.graph && g->node == m.node) nodes += g->size.nodes;
    });
    forget_inside(s, m.graph, m.node);
    reply.status = s.driver.cuGraphDestroyNode(node);
    if (reply.status != CUDA_SUCCESS) return;
    graph->inside.erase(m.node);
    --graph->own_nodes;
    note_shrunk(s, graph, nodes);
    graph->ordinals.erase(node);
    graph->nodes[m.node] = nullptr;
    return;
  }
  GraphExecObject exec;
  if (!s.objects.graph_execs.get(m.exec, &exec))
    return s.reject("GraphEdit names an executable graph that the session does not have");
  reply.status = s.driver.cuGraphNodeSetEnabled(exec.handle, node, m.what == kEnable);
  if (reply.status == CUDA_SUCCESS) s.graph_traffic.switched(m.exec, node, m.what == kEnable);
}

std::shared_ptr<const Collectives::Many> collectives_of(const GraphObject& graph) {
  if (graph.collectives.empty()) return nullptr;
  return std::make_shared<Collectives::Many>(graph.collectives);
}

void instantiate(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::GraphInstantiate>();
  constexpr uint64_t kFlags = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH |
                              CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
  if (!d.ok() || m.flags & ~kFlags) return s.reject("GraphInstantiate makes no sense");
  if (!s.objects.graph_execs.has_room(m.exec))
    return s.reject("GraphInstantiate mints no id that is free");
  const GraphRef graph = find_graph(s, m.graph, "GraphInstantiate");
  if (!graph || !s.use_context(c.header.context)) return;
  if (graph->capturing) {
    reply.status = CUDA_ERROR_INVALID_VALUE;
    return;
  }
  CUDA_GRAPH_INSTANTIATE_PARAMS p{};
  p.flags = m.flags;
  GraphExecObject exec;
  exec.size = size_of(s, graph);
  if (exec.size.height > wire::kMaxGraphDepth || !take_nodes(s, exec.size.nodes)) {
    reply.status = CUDA_ERROR_OUT_OF_MEMORY;
    return;
  }
  reply.status = s.driver.cuGraphInstantiateWithParams(&exec.handle, graph->handle, &p);
  wire::GraphOutcome outcome{static_cast<uint32_t>(p.result_out), wire::kNoNode, wire::kNoNode, 0};
  if (reply.status == CUDA_SUCCESS) {
    size_t count = 0;
    s.driver.cuGraphGetNodes(graph->handle, nullptr, &count);
    exec.nodes = static_cast<uint32_t>(std::clamp<size_t>(count, 1, 1 << 16));
    exec.collectives = collectives_of(*graph);
    s.objects.graph_execs.add(m.exec, exec);
    s.graph_traffic.instantiated(s, m.exec, graph->handle);
    settle_local_memory(s, *s.used_last());
  } else {
    give_nodes(s, exec.size.nodes);
    if (p.hErrNode_out) outcome.node = graph->ordinal_of(p.hErrNode_out);
  }
  reply.put(outcome);
}

void update(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::GraphExecUpdate>();
  GraphExecObject exec;
  if (!d.ok() || !s.objects.graph_execs.get(m.exec, &exec))
    return s.reject("GraphExecUpdate names an executable graph that the session does not have");
  const GraphRef graph = find_graph(s, m.graph, "GraphExecUpdate");
  if (!graph || !s.use_context(c.header.context)) return;
  CUgraphExecUpdateResultInfo info{};
  reply.status = s.driver.cuGraphExecUpdate_v2(exec.handle, graph->handle, &info);
  if (reply.status == CUDA_SUCCESS) {
    s.graph_traffic.updated(s, m.exec, graph->handle);
    exec.collectives = collectives_of(*graph);
    s.objects.graph_execs.set(m.exec, exec);
  }
  wire::GraphOutcome outcome{static_cast<uint32_t>(info.result), wire::kNoNode, wire::kNoNode, 0};
  // Nodes of the executable graph have no ordinals: only those of this one are told.
  if (info.errorNode || info.errorFromNode) learn_nodes(s, *graph);
  if (const auto it = graph->ordinals.find(info.errorNode); it != graph->ordinals.end())
    outcome.node = it->second;
  if (const auto it = graph->ordinals.find(info.errorFromNode); it != graph->ordinals.end())
    outcome.from = it->second;
  reply.put(outcome);
}

void conditional(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::GraphConditional>();
  if (!d.ok() || m.flags & ~uint32_t{CU_GRAPH_COND_ASSIGN_DEFAULT})
    return s.reject("GraphConditional makes no sense");
  const GraphRef graph = find_graph(s, m.graph, "GraphConditional");
  if (!graph) return;
  const Vgpu* v = s.use_context(c.header.context);
  if (!v) return;
  if (!s.driver.cuGraphConditionalHandleCreate || graph->conditionals.size() >= kMaxConditionals) {
    reply.status = CUDA_ERROR_NOT_SUPPORTED;
    return;
  }
  CUgraphConditionalHandle handle = 0;
  reply.status = s.driver.cuGraphConditionalHandleCreate(&handle, graph->handle, v->gpu->context,
                                                         m.value, m.flags);
  if (reply.status != CUDA_SUCCESS) return;
  graph->conditionals.push_back(handle);
  reply.put(wire::GraphConditionalReply{handle});
}

void destroy_exec(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::GraphExecId>();
  GraphExecObject exec;
  if (!d.ok() || !s.objects.graph_execs.take(m.exec, &exec))
    return s.reject("GraphExecDestroy names an executable graph that the session does not have");
  s.graph_traffic.destroyed(m.exec);
  give_nodes(s, exec.size.nodes);
  reply.status = s.driver.cuGraphExecDestroy(exec.handle);
}

void launch(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::GraphLaunch>();
  GraphExecObject exec;
  if (!d.ok() || m.upload > 1 || !s.objects.graph_execs.get(m.exec, &exec))
    return s.reject("GraphLaunch names an executable graph that the session does not have");
  CUstream stream;
  Vgpu* v;
  if (!s.stream(m.stream, c.header.context, &stream, &v)) return;
  if (m.upload) {
    reply.status = s.driver.cuGraphUpload(exec.handle, stream);
    return;
  }
  const bool captured = capturing(s, stream);
  const GraphRef into = captured ? captured_on(s, stream) : nullptr;
  const GraphSize by{exec.size.nodes, exec.size.height + 1};  // it becomes a child
  if (into && !may_grow(s, into, by)) {
    reply.status = CUDA_ERROR_OUT_OF_MEMORY;
    return;
  }
  Gate::Passage passage;
  const Collectives::Many* const collectives = exec.collectives.get();
  if (!captured) passage = v->gate->pass(stream, {m.exec, exec.nodes, collectives != nullptr});
  if (!captured && collectives) s.collectives.issue(*collectives);
  reply.status = s.driver.cuGraphLaunch(exec.handle, stream);
  if (reply.status != CUDA_SUCCESS) {
    if (!captured && collectives) s.collectives.take_back(*collectives);
    return;
  }
  if (into) note_grown(s, into, by);
  if (into && collectives) Collectives::add(&into->collectives, *collectives);
  if (captured) return;
  passage.issued();
  s.graph_traffic.launched(s, m.exec);
}

}  // namespace

GraphRef find_graph(Session& s, uint64_t id, const char* what) {
  GraphRef graph;
  if (!s.objects.graphs.get(id, &graph))
    s.reject(with(what, " names a graph that the session does not have"));
  return graph;
}

CUresult learn_nodes(Session& s, GraphObject& graph, std::vector<CUgraphNode>* now) {
  std::vector<CUgraphNode> nodes;
  size_t count = 0;
  CUresult e = s.driver.cuGraphGetNodes(graph.handle, nullptr, &count);
  nodes.resize(count);
  if (e == CUDA_SUCCESS && count) e = s.driver.cuGraphGetNodes(graph.handle, nodes.data(), &count);
  if (e != CUDA_SUCCESS) return e;
  for (CUgraphNode node : nodes) graph.ordinal_of(node);
  if (now) *now = std::move(nodes);
  return CUDA_SUCCESS;
}

bool take_edges(Session& s, std::span<const std::byte> raw, uint32_t count, const char* what,
                std::vector<wire::GraphEdge>* edges) {
  if (raw.size() < uint64_t{count} * sizeof(wire::GraphEdge)) {
    s.reject(with(what, " is cut short"));
    return false;
  }
  edges->resize(count);
  if (count) std::memcpy(edges->data(), raw.data(), count * sizeof(wire::GraphEdge));
  return true;
}

bool resolve_edges(Session& s, const GraphObject& graph, const std::vector<wire::GraphEdge>& edges,
                   bool both_ends, const char* what, DriverEdges* out) {
  for (const wire::GraphEdge& edge : edges) {
    CUgraphEdgeData data;
    std::memcpy(&data, &edge.data, sizeof data);
    const CUgraphNode from = graph.node_at(edge.from);
    const CUgraphNode to = both_ends ? graph.node_at(edge.to) : from;
    if (!from || !to) {
      s.reject(with(what, " names a node that there is not"));
      return false;
    }
    out->from.push_back(from);
    out->to.push_back(to);
    out->data.push_back(data);
    out->plain &= edge.data == 0;
  }
  return true;
}

uint64_t edge_bits(const CUgraphEdgeData& data) {
  static_assert(sizeof data == sizeof(uint64_t));
  uint64_t bits;
  std::memcpy(&bits, &data, sizeof bits);
  return bits;
}

void put_list(Session& s, const std::vector<wire::GraphEdge>& all, uint32_t first, Reply& reply) {
  const size_t room =
      (s.endpoint().reply_limit() - sizeof(wire::GraphListReply)) / sizeof(wire::GraphEdge);
  const size_t begin = std::min<size_t>(first, all.size());
  const size_t count = std::min(room, all.size() - begin);
  reply.put(wire::GraphListReply{static_cast<uint32_t>(all.size()), static_cast<uint32_t>(count)});
  reply.put_bytes(all.data() + begin, count * sizeof(wire::GraphEdge));
}

void add_graph_handlers(DispatchTable& t) {
  t[wire::kGraphCreate].run = create;
  t[wire::kGraphCopy].run = copy;
  t[wire::kGraphDestroy].run = destroy;
  t[wire::kGraphList].run = list;
  t[wire::kGraphEdit].run = edit;
  t[wire::kGraphInstantiate].run = instantiate;
  t[wire::kGraphExecUpdate].run = update;
  t[wire::kGraphConditional].run = conditional;
  t[wire::kGraphExecDestroy].run = destroy_exec;
  t[wire::kGraphLaunch].run = launch;
}

}  // namespace sluice::worker
