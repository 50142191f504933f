// SPDX-License-Identifier: Apache-2.0
// Graphs: nodes of work with dependencies, built by hand or by capture (capture.h), and what
// instantiating makes of them. Owns every live graph, node and executable graph by handle.
// An executable graph runs its nodes one after the other on the thread of the stream that it is
// launched in, in an order that its edges allow.
#pragma once

#include <memory>
#include <mutex>
#include <unordered_map>
#include <variant>
#include <vector>

#include "abi/cuda_driver.h"
#include "softgpu/runtime/copy.h"
#include "softgpu/runtime/launch.h"

namespace sluice::softgpu {

class Graph;

struct CopyWork {
  CopyBox box;
};
struct HostWork {
  CUhostFn function = nullptr;
  void* data = nullptr;
};
struct MemOpsWork {
  std::vector<CUstreamBatchMemOpParams> operations;
};
struct RecordWork {
  std::shared_ptr<Event> event;
};
struct WaitWork {
  std::shared_ptr<Event> event;
};
struct ChildWork {
  std::shared_ptr<Graph> graph;
};
using Work = std::variant<std::monostate, KernelWork, CopyWork, Fill, HostWork, MemOpsWork,
                          RecordWork, WaitWork, ChildWork>;

CUgraphNodeType type_of(const Work& work);

struct GraphNode {
  struct Edge {
    GraphNode* from;
    CUgraphEdgeData data;
  };
  Graph* graph = nullptr;
  Work work;
  std::vector<Edge> after;
  const GraphNode* original = nullptr;  // of a clone's node
  bool enabled = true;
  std::vector<void*> params;  // for those who ask: pointers into the kernel's parameters
};

class Graph {
 public:
  explicit Graph(Context& context) : context_(context) {}
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  Context& context() const { return context_; }
  GraphNode* add(Work work, std::vector<GraphNode::Edge> after);
  void remove(GraphNode* node);
  std::shared_ptr<Graph> clone() const;
  // The node of this clone that stands for `original`.
  GraphNode* node_of(const GraphNode* original) const;
  // In an order that the edges allow; empty with `cyclic` when there is none.
  std::vector<GraphNode*> sorted(bool* cyclic) const;

  std::vector<std::unique_ptr<GraphNode>> nodes;  // in the order in which they were added

 private:
  Context& context_;
};

class GraphExec {
 public:
  GraphExec(std::shared_ptr<Graph> graph, unsigned long long flags)
      : flags(flags), graph_(std::move(graph)) {}
  // Queues one run. What is changed afterwards is for later runs.
  void launch(Context& context, Stream& stream);
  // The node that stands for one of the graph that this was made of.
  GraphNode* node_of(const GraphNode* original) const { return graph_->node_of(original); }
  Graph& graph() const { return *graph_; }
  std::shared_ptr<Graph> shared_graph() const { return graph_; }
  void changed() { plan_.reset(); }
  CUgraphExecUpdateResult update(const Graph& from, const GraphNode** error);

  const unsigned long long flags;

 private:
  using Plan = std::vector<Work>;
  static void flatten(const Graph& graph, Plan& plan);
  std::shared_ptr<Graph> graph_;  // a clone of its own
  std::shared_ptr<const Plan> plan_;
};

// By handle.
std::shared_ptr<Graph> graph_from(CUgraph handle);
GraphNode* node_from(CUgraphNode handle);
std::shared_ptr<GraphExec> exec_from(CUgraphExec handle);
CUgraph publish_graph(std::shared_ptr<Graph> graph);
std::shared_ptr<Graph> retract_graph(CUgraph handle);
CUgraphExec publish_exec(std::shared_ptr<GraphExec> exec);
bool retract_exec(CUgraphExec handle);

inline CUgraphNode handle_of(const GraphNode* node) {
  return reinterpret_cast<CUgraphNode>(const_cast<GraphNode*>(node));
}

}  // namespace sluice::softgpu
