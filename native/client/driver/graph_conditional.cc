// SPDX-License-Identifier: Apache-2.0
// Conditional nodes. Kernels set the value that such a node looks at through a handle of the
// driver's own, a plain parameter, so making one is a round trip. The graphs inside are ids minted
// here; they belong to the node, and are filled by the application after that has been added.
#include "client/driver/graph.h"

using namespace sluice::client;
namespace wire = sluice::wire;

namespace {

uint32_t most_bodies(CUgraphConditionalNodeType type) {
  switch (type) {
    case CU_GRAPH_COND_TYPE_IF:
      return 2;
    case CU_GRAPH_COND_TYPE_WHILE:
      return 1;
    case CU_GRAPH_COND_TYPE_SWITCH:
      return wire::kMaxBodies;
  }
  return 0;
}

}  // namespace

CUresult sluice::client::add_conditional_node(Session* s, uint64_t graph_id, Graph* graph,
                                              const std::vector<wire::GraphEdge>& edges,
                                              CUgraphNodeParams* params, CUgraphNode* added) {
  CUDA_CONDITIONAL_NODE_PARAMS& c = params->conditional;
  if (c.size == 0 || c.size > most_bodies(c.type)) return CUDA_ERROR_INVALID_VALUE;
  // Known before the worker is asked, which ends the session of whoever names another's.
  bool known = false;
  for (const Graph* at = graph; at && !known; at = s->graphs.find(at->parent))
    known =
        std::find(at->conditions.begin(), at->conditions.end(), c.handle) != at->conditions.end();
  if (!known) return CUDA_ERROR_INVALID_VALUE;
  Device* device = graph->device;
  if (const CUresult e = device_of_context(s, c.ctx, &device); e != CUDA_SUCCESS) return e;
  std::vector<uint64_t> ids;
  const auto give_up = [&](CUresult e) {
    for (uint64_t id : ids) s->graphs.destroy(id);
    return e;
  };
  for (unsigned i = 0; i < c.size; ++i) {
    uint64_t id;
    Graph* body = s->graphs.create(&id);
    if (!body) return give_up(CUDA_ERROR_OUT_OF_MEMORY);
    body->device = device;
    body->parent = graph_id;
    body->body = true;
    ids.push_back(id);
  }
  const wire::ConditionalNode n{c.handle, static_cast<uint32_t>(c.type), c.size};
  std::vector<std::byte> body(sizeof n + ids.size() * sizeof ids[0]);
  std::memcpy(body.data(), &n, sizeof n);
  std::memcpy(body.data() + sizeof n, ids.data(), ids.size() * sizeof ids[0]);
  if (const CUresult e =
          send_node(s, graph_id, graph, CU_GRAPH_NODE_TYPE_CONDITIONAL, body, edges, device, added);
      e != CUDA_SUCCESS)
    return give_up(e);
  GraphNode* node = s->graph_nodes.find(*added);
  for (uint64_t id : ids) {
    node->bodies.push_back(reinterpret_cast<CUgraph>(id));
    graph->children.emplace_back(node->ordinal, id);
  }
  // Only what stands at the top is instantiated, cloned or made a child.
  for (Graph* at = graph; at; at = s->graphs.find(at->parent)) at->conditional = true;
  c.phGraph_out = node->bodies.data();
  return CUDA_SUCCESS;
}

extern "C" CUresult cuGraphConditionalHandleCreate(CUgraphConditionalHandle* out, CUgraph handle,
                                                   CUcontext context, unsigned int value,
                                                   unsigned int flags) {
  Session* s;
  Graph* graph;
  if (const CUresult e = find_graph(handle, &s, &graph); e != CUDA_SUCCESS) return e;
  if (!out || flags & ~static_cast<unsigned>(CU_GRAPH_COND_ASSIGN_DEFAULT))
    return CUDA_ERROR_INVALID_VALUE;
  Device* device = graph->device;
  if (const CUresult e = device_of_context(s, context, &device); e != CUDA_SUCCESS) return e;
  wire::GraphConditionalReply reply{};
  size_t got = 0;
  const CUresult e = s->exchange(
      wire::kGraphConditional, wire::GraphConditional{id_of(handle), value, flags}, {},
      {reinterpret_cast<std::byte*>(&reply), sizeof reply}, &got, nullptr, device->context());
  if (e != CUDA_SUCCESS) return e;
  if (got < sizeof reply) return CUDA_ERROR_UNKNOWN;
  graph->conditions.push_back(reply.handle);
  *out = reply.handle;
  return CUDA_SUCCESS;
}
