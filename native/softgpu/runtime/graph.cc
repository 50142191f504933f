// SPDX-License-Identifier: Apache-2.0
#include "softgpu/runtime/graph.h"

#include <algorithm>
#include <chrono>
#include <unordered_set>
#include <utility>

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

bool runs(Context& context) { return context.error() == 0 && !context.dead(); }

void perform(Context& context, const Work& work);

void perform_all(Context& context, const Plan& plan) {
  for (const Work& work : plan.works) {
    if (!runs(context)) return;
    perform(context, work);
  }
}

void perform_conditional(Context& context, const ConditionalWork& work) {
  const auto value = [&] { return work.condition->value.load(); };
  switch (work.type) {
    case CU_GRAPH_COND_TYPE_WHILE:
      while (value() != 0 && runs(context)) perform_all(context, *work.plans[0]);
      return;
    case CU_GRAPH_COND_TYPE_IF: {
      const size_t body = value() != 0 ? 0 : 1;
      if (body < work.plans.size()) perform_all(context, *work.plans[body]);
      return;
    }
    case CU_GRAPH_COND_TYPE_SWITCH:
      if (value() < work.plans.size()) perform_all(context, *work.plans[value()]);
      return;
  }
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
  } else if (const auto* conditional = std::get_if<ConditionalWork>(&work)) {
    perform_conditional(context, *conditional);
  }
}

// The handles of graphs inside of a node end with it. Under the tables' lock.
void forget_bodies(GraphNode& node, std::vector<std::shared_ptr<Graph>>& gone) {
  for (CUgraph handle : node.bodies) {
    auto found = tables().graphs.find(handle);
    if (found == tables().graphs.end()) continue;
    gone.push_back(std::move(found->second));
    tables().graphs.erase(found);
  }
}

}  // namespace

CUgraphNodeType type_of(const Work& work) {
  constexpr CUgraphNodeType kTypes[] = {
      CU_GRAPH_NODE_TYPE_EMPTY,        CU_GRAPH_NODE_TYPE_KERNEL,
      CU_GRAPH_NODE_TYPE_MEMCPY,       CU_GRAPH_NODE_TYPE_MEMSET,
      CU_GRAPH_NODE_TYPE_HOST,         CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
      CU_GRAPH_NODE_TYPE_EVENT_RECORD, CU_GRAPH_NODE_TYPE_WAIT_EVENT,
      CU_GRAPH_NODE_TYPE_GRAPH,        CU_GRAPH_NODE_TYPE_CONDITIONAL};
  static_assert(std::size(kTypes) == std::variant_size_v<Work>);
  return kTypes[work.index()];
}

Graph::~Graph() {
  std::vector<std::shared_ptr<Graph>> bodies;  // die outside the lock
  std::lock_guard lock(tables().mutex);
  for (const auto& node : nodes) {
    tables().nodes.erase(node.get());
    forget_bodies(*node, bodies);
  }
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
  std::vector<std::shared_ptr<Graph>> bodies;
  {
    std::lock_guard lock(tables().mutex);
    forget_bodies(*gone, bodies);
  }
  std::erase_if(nodes, [&](const auto& node) { return node.get() == gone; });
}

std::shared_ptr<Graph> Graph::clone() const {
  auto copy = std::make_shared<Graph>(context_);
  copy->conditions = conditions;
  std::unordered_map<const GraphNode*, GraphNode*> twins;
  for (const auto& node : nodes) {
    Work work = node->work;
    if (auto* child = std::get_if<ChildWork>(&work)) child->graph = child->graph->clone();
    if (auto* conditional = std::get_if<ConditionalWork>(&work)) {
      for (auto& body : conditional->bodies) {
        body = body->clone();
        body->parent = copy.get();
      }
    }
    GraphNode* twin = copy->add(std::move(work), {});
    twin->original = node.get();
    twin->enabled = node->enabled;
    twin->attributes = node->attributes;
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
    if (const auto* conditional = std::get_if<ConditionalWork>(&node->work)) {
      for (const auto& body : conditional->bodies) {
        if (GraphNode* inside = body->node_of(original)) return inside;
      }
    }
  }
  return nullptr;
}

std::shared_ptr<Condition> Graph::condition(CUgraphConditionalHandle handle) const {
  for (const auto& one : conditions) {
    if (one->handle == handle) return one;
  }
  return parent ? parent->condition(handle) : nullptr;
}

bool Graph::conditional() const {
  return std::any_of(nodes.begin(), nodes.end(), [](const auto& node) {
    const auto* child = std::get_if<ChildWork>(&node->work);
    return std::get_if<ConditionalWork>(&node->work) || (child && child->graph->conditional());
  });
}

bool Graph::uses_its_conditions() const {
  return std::all_of(conditions.begin(), conditions.end(),
                     [](const auto& condition) { return condition->used; });
}

void Graph::assign_conditions() const {
  for (const auto& condition : conditions) {
    if (condition->assign) condition->value.store(condition->initial);
  }
  for (const auto& node : nodes) {
    if (const auto* conditional = std::get_if<ConditionalWork>(&node->work)) {
      for (const auto& body : conditional->bodies) body->assign_conditions();
    }
  }
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
    } else if (const auto* conditional = std::get_if<ConditionalWork>(&node->work)) {
      ConditionalWork work = *conditional;
      for (auto& body : std::exchange(work.bodies, {})) {
        auto inside = std::make_shared<Plan>();
        flatten(*body, *inside);
        work.plans.push_back(std::move(inside));
      }
      plan.works.push_back(std::move(work));
    } else {
      plan.works.push_back(node->work);
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
  for (const Work& work : plan_->works) {
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
      [&context, graph = graph_, plan = plan_, marks] {
        size_t mark = 0;
        graph->assign_conditions();
        for (const Work& work : plan->works) {
          if (std::get_if<RecordWork>(&work)) {
            const auto now = std::chrono::steady_clock::now().time_since_epoch();
            marks[mark++]->nanoseconds.store(
                std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
          } else if (runs(context)) {
            perform(context, work);
          }
        }
      },
      std::move(after));
  size_t mark = 0;
  for (const Work& work : plan_->works) {
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
    if (auto* conditional = std::get_if<ConditionalWork>(&work)) {
      for (auto& body : conditional->bodies) {
        body = body->clone();
        body->parent = graph_.get();
      }
    }
    now[i]->work = std::move(work);
  }
  *error = nullptr;
  graph_->conditions = from.conditions;
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
