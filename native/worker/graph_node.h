// SPDX-License-Identifier: Apache-2.0
// Nodes as commands bring them (graph_node.cc), and how the driver gets them where one node to the
// application is not one to the driver (graph_copy.cc).
#pragma once

#include "worker/session.h"

namespace sluice::worker {

// Parameters with what they point to.
struct NodeParams {
  CUgraphNodeParams all{};
  std::vector<std::byte> kernel_params;
  size_t kernel_bytes = 0;
  void* extra[5] = {};
  std::vector<CUstreamBatchMemOpParams> operations;
  std::vector<uint64_t> bodies;    // ids of the graphs inside a conditional node
  GraphSize inside;                // of the graph that it copies
  Collectives::Many collectives;   // likewise
  CUresult status = CUDA_SUCCESS;  // why the driver is not asked
  // A staged copy: `all` is a child graph of these two.
  bool staged = false, call_first = false;
  CUgraphNodeParams copy{}, call{};
};

// What a command says of a node of that type. False: rejected.
bool take_node(Session& s, Vgpu& v, uint32_t type, std::span<const std::byte> body, NodeParams* p);

CUresult add_node(Session& s, CUgraph graph, const DriverEdges& after, NodeParams* p,
                  CUgraphNode* node);
// Another node may come to stand in the place of this one, under its ordinal.
CUresult set_node(Session& s, GraphObject& graph, uint32_t ordinal, NodeParams* p);
CUresult set_exec_node(Session& s, CUgraphExec exec, CUgraphNode node, NodeParams* p);
CUresult nodes_of(Session& s, CUgraph graph, std::vector<CUgraphNode>* nodes);
// The host function in a child graph that may be a staged copy; nullptr: it is none.
CUgraphNode call_inside(Session& s, CUgraphNode child);
// Calls f(node) for all memory operations in a graph and in those inside of it, while it succeeds.
CUresult for_each_call(Session& s, CUgraph graph, const std::function<CUresult(CUgraphNode)>& f);

}  // namespace sluice::worker
