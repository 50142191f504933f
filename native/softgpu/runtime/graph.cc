// SPDX-License-Identifier: Apache-2.0
#include "softgpu/runtime/graph.h"

#include <algorithm>
#include <chrono>
#include <unordered_set>

#include "softgpu/runtime/capture.h"
#include "softgpu/runtime/mem_op.h"

namespace sluice::softgpu {
namespace {

struct Tables {
  std::mutex mutex;
  std::unordered_map<const void*, std::shared_ptr<Graph>> graphs;
  std::unordered_map<const void*, std::shared_ptr<GraphExec>> execs;
  std::unordered_set<const void*> nodes;
};

Tables& tables() {
  static auto* all = new Tables;
  return *all;
}

void perform(Context& context, const Work& work) {
  if (const auto* kernel = std::get_if<KernelWork>(&work)) {
    run_kernel(context, *kernel);
  } else if (const auto* copy = std::get_if<CopyWork>(&work)) {
    run_copy(context, copy->box);
  } else if (const auto* fill = std::get_if<Fill>(&work)) {
    run_fill(context, *fill);
  } else if (const auto* host = std::get_if<HostWork>(&work)) {
    set_in_host_callback(true);
    host->function(host->data);
    set_in_host_callback(false);
  } else if (const auto* ops = std::get_if<MemOpsWork>(&work)) {
    for (const CUstreamBatchMemOpParams& op : ops->operations) run_mem_op(context, op);
  }
}

}  // namespace

CUgraphNodeType type_of(const Work& work) {
  constexpr CUgraphNodeType kTypes[] = {
      CU_GRAPH_NODE_TYPE_EMPTY,        CU_GRAPH_NODE_TYPE_KERNEL,
      CU_GRAPH_NODE_TYPE_MEMCPY,       CU_GRAPH_NODE_TYPE_MEMSET,
      CU_GRAPH_NODE_TYPE_HOST,         CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
      CU_GRAPH_NODE_TYPE_EVENT_RECORD, CU_GRAPH_NODE_TYPE_WAIT_EVENT,
      CU_GRAPH_NODE_TYPE_GRAPH};
  static_assert(std::size(kTypes) == std::variant_size_v<Work>);
  return kTypes[work.index()];
}

Graph::~Graph() {
  std::lock_guard lock(tables().mutex);
  for (const auto& node : nodes) tables().nodes.erase(node.get());
}

GraphNode* Graph::add(Work work, std::vector<GraphNode::Edge> after) {
  nodes.push_back(std::make_unique<GraphNode>());
  GraphNode* node = nodes.back().get();
  node->graph = this;
  node->work = std::move(work);
  node->after = std::move(after);
  std::lock_guard lock(tables().mutex);
  tables().nodes.insert(node);
  return node;
}

void Graph::remove(GraphNode* gone) {
  for (const auto& node : nodes) {
    std::erase_if(node->after, [&](const GraphNode::Edge& edge) { return edge.from == gone; });
  }
  {
    std::lock_guard lock(tables().mutex);
    tables().nodes.erase(gone);
  }
  std::erase_if(nodes, [&](const auto& node) { return node.get() == gone; });
}

std::shared_ptr<Graph> Graph::clone() const {
  auto copy = std::make_shared<Graph>(context_);
  std::unordered_map<const GraphNode*, GraphNode*> twins;
  for (const auto& node : nodes) {
    Work work = node->work;
    if (auto* child = std::get_if<ChildWork>(&work)) child->graph = child->graph->clone();
    GraphNode* twin = copy->add(std::move(work), {});
    twin->original = node.get();
    twin->enabled = node->enabled;
    twins[node.get()] = twin;
  }
  for (const auto& node : nodes) {
    for (const GraphNode::Edge& edge : node->after) {
      twins[node.get()]->after.push_back({twins[edge.from], edge.data});
    }
  }
  return copy;
}

GraphNode* Graph::node_of(const GraphNode* original) const {
  for (const auto& node : nodes) {
    if (node->original == original) return node.get();
  }
  return nullptr;
}

std::vector<GraphNode*> Graph::sorted(bool* cyclic) const {
  std::unordered_map<const GraphNode*, size_t> missing;
  std::unordered_map<const GraphNode*, std::vector<GraphNode*>> followers;
  std::vector<GraphNode*> order;
  for (const auto& node : nodes) {
    missing[node.get()] = node->after.size();
    for (const GraphNode::Edge& edge : node->after) followers[edge.from].push_back(node.get());
    if (node->after.empty()) order.push_back(node.get());
  }
  for (size_t i = 0; i < order.size(); ++i) {
    for (GraphNode* next : followers[order[i]]) {
      if (--missing[next] == 0) order.push_back(next);
    }
  }
  *cyclic = order.size() != nodes.size();
  if (*cyclic) order.clear();
  return order;
}

void GraphExec::flatten(const Graph& graph, Plan& plan) {
  bool cyclic = false;
  for (const GraphNode* node : graph.sorted(&cyclic)) {
    if (!node->enabled) continue;
    if (const auto* child = std::get_if<ChildWork>(&node->work)) {
      flatten(*child->graph, plan);
    } else {
      plan.push_back(node->work);
    }
  }
}

void GraphExec::launch(Context& context, Stream& stream) {
  if (!plan_) {
    auto made = std::make_shared<Plan>();
    flatten(*graph_, *made);
    plan_ = std::move(made);
  }
  std::vector<Point> after;
  std::vector<std::shared_ptr<EventMark>> marks;
  for (const Work& work : *plan_) {
    if (const auto* wait = std::get_if<WaitWork>(&work)) {
      if (auto mark = wait->event->mark(); mark && !mark->point.done()) {
        after.push_back(mark->point);
      }
    } else if (std::get_if<RecordWork>(&work)) {
      marks.push_back(std::make_shared<EventMark>());
    }
  }
  const Point point = context.submit_always(
      stream,
      [&context, plan = plan_, marks] {
        size_t mark = 0;
        for (const Work& work : *plan) {
          if (std::get_if<RecordWork>(&work)) {
            const auto now = std::chrono::steady_clock::now().time_since_epoch();
            marks[mark++]->nanoseconds.store(
                std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
          } else if (context.error() == 0 && !context.dead()) {
            perform(context, work);
          }
        }
      },
      std::move(after));
  size_t mark = 0;
  for (const Work& work : *plan_) {
    if (const auto* record = std::get_if<RecordWork>(&work)) {
      marks[mark]->point = point;
      record->event->set_mark(marks[mark++]);
    }
  }
}

CUgraphExecUpdateResult GraphExec::update(const Graph& from, const GraphNode** error) {
  const auto& now = graph_->nodes;
  *error = nullptr;
  if (now.size() != from.nodes.size()) return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
  std::unordered_map<const GraphNode*, const GraphNode*> twins;
  for (size_t i = 0; i < now.size(); ++i) twins[from.nodes[i].get()] = now[i].get();
  for (size_t i = 0; i < now.size(); ++i) {
    const GraphNode& wanted = *from.nodes[i];
    *error = &wanted;
    if (wanted.after.size() != now[i]->after.size()) {
      return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    }
    for (const GraphNode::Edge& edge : wanted.after) {
      const GraphNode* twin = twins[edge.from];
      if (std::none_of(now[i]->after.begin(), now[i]->after.end(),
                       [&](const GraphNode::Edge& other) { return other.from == twin; })) {
        return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
      }
    }
    if (type_of(wanted.work) != type_of(now[i]->work)) {
      return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
    }
  }
  for (size_t i = 0; i < now.size(); ++i) {
    Work work = from.nodes[i]->work;
    if (auto* child = std::get_if<ChildWork>(&work)) child->graph = child->graph->clone();
    now[i]->work = std::move(work);
  }
  *error = nullptr;
  changed();
  return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

std::shared_ptr<Graph> graph_from(CUgraph handle) {
  std::lock_guard lock(tables().mutex);
  auto found = tables().graphs.find(handle);
  return found == tables().graphs.end() ? nullptr : found->second;
}

GraphNode* node_from(CUgraphNode handle) {
  std::lock_guard lock(tables().mutex);
  return tables().nodes.contains(handle) ? reinterpret_cast<GraphNode*>(handle) : nullptr;
}

std::shared_ptr<GraphExec> exec_from(CUgraphExec handle) {
  std::lock_guard lock(tables().mutex);
  auto found = tables().execs.find(handle);
  return found == tables().execs.end() ? nullptr : found->second;
}

CUgraph publish_graph(std::shared_ptr<Graph> graph) {
  std::lock_guard lock(tables().mutex);
  Graph* handle = graph.get();
  tables().graphs[handle] = std::move(graph);
  return reinterpret_cast<CUgraph>(handle);
}

std::shared_ptr<Graph> retract_graph(CUgraph handle) {
  std::lock_guard lock(tables().mutex);
  auto found = tables().graphs.find(handle);
  if (found == tables().graphs.end()) return nullptr;
  std::shared_ptr<Graph> held = std::move(found->second);
  tables().graphs.erase(found);
  return held;  // dies outside the lock
}

CUgraphExec publish_exec(std::shared_ptr<GraphExec> exec) {
  std::lock_guard lock(tables().mutex);
  GraphExec* handle = exec.get();
  tables().execs[handle] = std::move(exec);
  return reinterpret_cast<CUgraphExec>(handle);
}

bool retract_exec(CUgraphExec handle) {
  std::shared_ptr<GraphExec> held;  // dies outside the lock
  {
    std::lock_guard lock(tables().mutex);
    auto found = tables().execs.find(handle);
    if (found == tables().execs.end()) return false;
    held = std::move(found->second);
    tables().execs.erase(found);
  }
  return true;
}

}  // namespace sluice::softgpu
