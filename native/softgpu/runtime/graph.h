// SPDX-License-Identifier: Apache-2.0
// Graphs: nodes of work with dependencies, built by hand or by capture (capture.h), and what
// instantiating makes of them. Owns every live graph, node and executable graph by handle.
// An executable graph runs its nodes one after the other on the thread of the stream that it is
// launched in, in an order that its edges allow.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <variant>
#include <vector>

#include "abi/cuda_driver.h"
#include "softgpu/interp/conditions.h"
#include "softgpu/runtime/copy.h"
#include "softgpu/runtime/launch.h"

namespace sluice::softgpu {

class Graph;
class GraphExec;
struct Plan;

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
struct ConditionalWork {
  CUgraphConditionalNodeType type = CU_GRAPH_COND_TYPE_IF;
  std::shared_ptr<Condition> condition;
  std::vector<std::shared_ptr<Graph>> bodies;
  std::vector<std::shared_ptr<const Plan>> plans;  // of the bodies, in a plan
};
using Work = std::variant<std::monostate, KernelWork, CopyWork, Fill, HostWork, MemOpsWork,
                          RecordWork, WaitWork, ChildWork, ConditionalWork>;
// What one run does, one after the other.
struct Plan {
  std::vector<Work> works;
};

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
  std::map<int, CUlaunchAttributeValue> attributes;
  std::vector<void*> params;    // for those who ask: pointers into the kernel's parameters
  std::vector<CUgraph> bodies;  // likewise: the graphs inside
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

  // The condition of this handle that nodes of this graph may look at.
  std::shared_ptr<Condition> condition(CUgraphConditionalHandle handle) const;
  // Whether it has conditional nodes, or nodes that have.
  bool conditional() const;
  // Whether nodes look at all the conditions that were made for it.
  bool uses_its_conditions() const;
  void assign_conditions() const;

  std::vector<std::unique_ptr<GraphNode>> nodes;       // in the order in which they were added
  std::vector<std::shared_ptr<Condition>> conditions;  // made for it
  const Graph* parent = nullptr;                       // it is the body of one of its nodes
  std::weak_ptr<GraphExec> instance;                   // where there may be one at a time

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
