// SPDX-License-Identifier: Apache-2.0
// Nodes: added, read, changed, removed. The functions of one node type each are
// client/driver/graph_node_types.cc's.
#include "client/driver/graph_node_types.h"
#include "softgpu/api/api.h"
#include "softgpu/runtime/mem_op.h"

namespace sluice::softgpu {
namespace {

CUresult kernel_work(const CUDA_KERNEL_NODE_PARAMS_v3& k, Work& work) {
  std::shared_ptr<Context> context = k.ctx ? context_from(k.ctx) : current_context();
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  KernelWork kernel;
  const LaunchShape shape{{k.gridDimX, k.gridDimY, k.gridDimZ},
                          {k.blockDimX, k.blockDimY, k.blockDimZ},
                          k.sharedMemBytes,
                          false};
  const CUfunction function = k.func ? k.func : reinterpret_cast<CUfunction>(k.kern);
  const CUresult result =
      prepare_kernel(*context, function, shape, k.kernelParams, k.extra, kernel);
  if (result == CUDA_SUCCESS) work = std::move(kernel);
  return result;
}

CUresult mem_ops_work(const CUDA_BATCH_MEM_OP_NODE_PARAMS_v2& m, Work& work) {
  if (m.count == 0 || !m.paramArray || m.flags != 0) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < m.count; ++i) {
    if (CUresult wrong = check_mem_op(m.paramArray[i]); wrong != CUDA_SUCCESS) return wrong;
  }
  work = MemOpsWork{{m.paramArray, m.paramArray + m.count}};
  return CUDA_SUCCESS;
}

std::shared_ptr<Event> find_event(CUevent handle) {
  for (const auto& context : all_contexts()) {
    if (std::shared_ptr<Event> event = context->event(handle)) return event;
  }
  return nullptr;
}

CUresult work_of(const CUgraphNodeParams& p, Work& work) {
  switch (p.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return kernel_work(p.kernel, work);
    case CU_GRAPH_NODE_TYPE_MEMCPY: {
      CopyWork copy;
      const CUresult result = copy_box_of(p.memcpy.copyParams, copy.box);
      if (result == CUDA_SUCCESS) work = copy;
      return result;
    }
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      const auto& m = p.memset;
      const Fill fill{m.dst, m.pitch, m.value, m.elementSize, m.width, m.height};
      if (fill.empty()) return CUDA_ERROR_INVALID_VALUE;
      const CUresult result = check_fill(fill);
      if (result == CUDA_SUCCESS) work = fill;
      return result;
    }
    case CU_GRAPH_NODE_TYPE_HOST:
      if (!p.host.fn) return CUDA_ERROR_INVALID_VALUE;
      work = HostWork{p.host.fn, p.host.userData};
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_GRAPH: {
      std::shared_ptr<Graph> child = graph_from(p.graph.graph);
      if (!child) return CUDA_ERROR_INVALID_VALUE;
      if (child->conditional()) return CUDA_ERROR_NOT_SUPPORTED;
      work = ChildWork{child->clone()};
      return CUDA_SUCCESS;
    }
    case CU_GRAPH_NODE_TYPE_EMPTY:
      work = std::monostate{};
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD: {
      std::shared_ptr<Event> event = find_event(p.eventRecord.event);
      if (!event) return CUDA_ERROR_INVALID_HANDLE;
      work = RecordWork{std::move(event)};
      return CUDA_SUCCESS;
    }
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT: {
      std::shared_ptr<Event> event = find_event(p.eventWait.event);
      if (!event) return CUDA_ERROR_INVALID_HANDLE;
      work = WaitWork{std::move(event)};
      return CUDA_SUCCESS;
    }
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      return mem_ops_work(p.memOp, work);
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

// The graphs inside are made with the node, empty.
CUresult conditional_work(Graph& graph, const CUDA_CONDITIONAL_NODE_PARAMS& p, Work& work) {
  std::shared_ptr<Condition> condition = graph.condition(p.handle);
  const unsigned most = p.type == CU_GRAPH_COND_TYPE_IF      ? 2
                        : p.type == CU_GRAPH_COND_TYPE_WHILE ? 1
                                                             : ~0u;
  if (!condition || condition->used || p.type > CU_GRAPH_COND_TYPE_SWITCH || p.size == 0 ||
      p.size > most)
    return CUDA_ERROR_INVALID_VALUE;
  ConditionalWork made{p.type, std::move(condition), {}, {}};
  for (unsigned i = 0; i < p.size; ++i) {
    made.bodies.push_back(std::make_shared<Graph>(graph.context()));
    made.bodies.back()->parent = &graph;
  }
  made.condition->used = true;
  work = std::move(made);
  return CUDA_SUCCESS;
}

// What may be inside a condition.
bool may_be_inside(CUgraphNodeType type) {
  return type <= CU_GRAPH_NODE_TYPE_MEMSET || type == CU_GRAPH_NODE_TYPE_GRAPH ||
         type == CU_GRAPH_NODE_TYPE_EMPTY || type == CU_GRAPH_NODE_TYPE_CONDITIONAL;
}

void describe_side(const CopySide& side, const CopyBox& box, CUmemorytype& type, void** host,
                   CUdeviceptr& device, size_t& pitch, size_t& height) {
  type = side.device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
  if (side.device) {
    device = side.address;
  } else {
    *host = reinterpret_cast<void*>(side.address);
  }
  pitch = side.pitch ? side.pitch : box.width;
  height = side.slice ? side.slice / pitch : box.height;
}

void describe(const CopyBox& box, CUDA_MEMCPY3D& d) {
  d = {};
  void* from = nullptr;
  describe_side(box.from, box, d.srcMemoryType, &from, d.srcDevice, d.srcPitch, d.srcHeight);
  d.srcHost = from;
  describe_side(box.to, box, d.dstMemoryType, &d.dstHost, d.dstDevice, d.dstPitch, d.dstHeight);
  d.WidthInBytes = box.width;
  d.Height = box.height;
  d.Depth = box.depth;
}

void describe(GraphNode& node, CUgraphNodeParams& p) {
  p = {};
  p.type = type_of(node.work);
  if (auto* kernel = std::get_if<KernelWork>(&node.work)) {
    node.params.clear();
    for (const Parameter& parameter : kernel->kernel->function->parameters) {
      node.params.push_back(kernel->params.data() + parameter.offset);
    }
    auto& k = p.kernel;
    k.func = kernel->handle;
    k.gridDimX = kernel->shape.grid[0];
    k.gridDimY = kernel->shape.grid[1];
    k.gridDimZ = kernel->shape.grid[2];
    k.blockDimX = kernel->shape.block[0];
    k.blockDimY = kernel->shape.block[1];
    k.blockDimZ = kernel->shape.block[2];
    k.sharedMemBytes = kernel->shape.dynamic_shared;
    k.kernelParams = node.params.data();
    k.ctx = softgpu::handle_of(&node.graph->context());
  } else if (const auto* copy = std::get_if<CopyWork>(&node.work)) {
    describe(copy->box, p.memcpy.copyParams);
  } else if (const auto* fill = std::get_if<Fill>(&node.work)) {
    p.memset = {fill->address, fill->pitch,  fill->value, fill->element,
                fill->width,   fill->height, nullptr};
  } else if (const auto* host = std::get_if<HostWork>(&node.work)) {
    p.host = {host->function, host->data};
  } else if (const auto* child = std::get_if<ChildWork>(&node.work)) {
    p.graph.graph = publish_graph(child->graph);
  } else if (const auto* record = std::get_if<RecordWork>(&node.work)) {
    p.eventRecord.event = reinterpret_cast<CUevent>(record->event.get());
  } else if (const auto* wait = std::get_if<WaitWork>(&node.work)) {
    p.eventWait.event = reinterpret_cast<CUevent>(wait->event.get());
  } else if (auto* ops = std::get_if<MemOpsWork>(&node.work)) {
    p.memOp.count = static_cast<unsigned>(ops->operations.size());
    p.memOp.paramArray = ops->operations.data();
  }
}

}  // namespace
}  // namespace sluice::softgpu

using namespace sluice::softgpu;

CUresult sluice::graph_nodes::params_of(CUgraphNode handle, CUgraphNodeType type,
                                        CUgraphNodeParams* params) {
  return with_driver([&]() -> CUresult {
    GraphNode* node = node_from(handle);
    if (!node || type_of(node->work) != type) return CUDA_ERROR_INVALID_VALUE;
    describe(*node, *params);
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphAddNode_v2(CUgraphNode* added, CUgraph graph_handle, const CUgraphNode* after,
                           const CUgraphEdgeData* data, size_t count, CUgraphNodeParams* params) {
  return with_driver([&]() -> CUresult {
    std::shared_ptr<Graph> graph = graph_from(graph_handle);
    if (!added || !graph || !params || (count != 0 && !after)) return CUDA_ERROR_INVALID_VALUE;
    std::vector<GraphNode::Edge> edges;
    for (size_t i = 0; i < count; ++i) {
      GraphNode* from = node_from(after[i]);
      if (!from || from->graph != graph.get()) return CUDA_ERROR_INVALID_VALUE;
      edges.push_back({from, data ? data[i] : CUgraphEdgeData{}});
    }
    if (graph->parent && !may_be_inside(params->type)) return CUDA_ERROR_NOT_SUPPORTED;
    Work work;
    const bool conditional = params->type == CU_GRAPH_NODE_TYPE_CONDITIONAL;
    if (CUresult wrong = conditional ? conditional_work(*graph, params->conditional, work)
                                     : work_of(*params, work);
        wrong != CUDA_SUCCESS)
      return wrong;
    GraphNode* node = graph->add(std::move(work), std::move(edges));
    if (conditional) {
      for (const auto& body : std::get<ConditionalWork>(node->work).bodies)
        node->bodies.push_back(publish_graph(body));
      params->conditional.phGraph_out = node->bodies.data();
    }
    *added = handle_of(node);
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphNodeSetParams(CUgraphNode handle, CUgraphNodeParams* params) {
  return with_driver([&]() -> CUresult {
    GraphNode* node = node_from(handle);
    if (!node || !params || type_of(node->work) != params->type) return CUDA_ERROR_INVALID_VALUE;
    return work_of(*params, node->work);
  });
}

CUresult cuGraphExecNodeSetParams(CUgraphExec exec_handle, CUgraphNode handle,
                                  CUgraphNodeParams* params) {
  return with_driver([&]() -> CUresult {
    std::shared_ptr<GraphExec> exec = exec_from(exec_handle);
    GraphNode* node = exec ? exec->node_of(node_from(handle)) : nullptr;
    if (!node || !params || type_of(node->work) != params->type) return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = work_of(*params, node->work);
    exec->changed();
    return result;
  });
}

CUresult cuGraphNodeGetType(CUgraphNode handle, CUgraphNodeType* type) {
  return with_driver([&]() -> CUresult {
    const GraphNode* node = node_from(handle);
    if (!node || !type) return CUDA_ERROR_INVALID_VALUE;
    *type = type_of(node->work);
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphDestroyNode(CUgraphNode handle) {
  return with_driver([&]() -> CUresult {
    GraphNode* node = node_from(handle);
    if (!node) return CUDA_ERROR_INVALID_VALUE;
    node->graph->remove(node);
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphNodeSetEnabled(CUgraphExec exec_handle, CUgraphNode handle, unsigned int enabled) {
  return with_driver([&]() -> CUresult {
    std::shared_ptr<GraphExec> exec = exec_from(exec_handle);
    GraphNode* node = exec ? exec->node_of(node_from(handle)) : nullptr;
    if (!node || type_of(node->work) > CU_GRAPH_NODE_TYPE_MEMSET) return CUDA_ERROR_INVALID_VALUE;
    node->enabled = enabled != 0;
    exec->changed();
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphNodeGetEnabled(CUgraphExec exec_handle, CUgraphNode handle, unsigned int* enabled) {
  return with_driver([&]() -> CUresult {
    std::shared_ptr<GraphExec> exec = exec_from(exec_handle);
    const GraphNode* node = exec ? exec->node_of(node_from(handle)) : nullptr;
    if (!node || !enabled) return CUDA_ERROR_INVALID_VALUE;
    *enabled = node->enabled;
    return CUDA_SUCCESS;
  });
}

// Attributes are about placement and priority, which change nothing here.
CUresult cuGraphKernelNodeCopyAttributes(CUgraphNode to, CUgraphNode from) {
  return with_driver([&]() -> CUresult {
    GraphNode *a = node_from(to), *b = node_from(from);
    if (!a || !b) return CUDA_ERROR_INVALID_VALUE;
    a->attributes = b->attributes;
    return CUDA_SUCCESS;
  });
}
CUresult cuGraphKernelNodeSetAttribute(CUgraphNode handle, CUkernelNodeAttrID id,
                                       const CUkernelNodeAttrValue* value) {
  return with_driver([&]() -> CUresult {
    GraphNode* node = node_from(handle);
    if (!node || !value || type_of(node->work) != CU_GRAPH_NODE_TYPE_KERNEL) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    node->attributes[id] = *value;
    return CUDA_SUCCESS;
  });
}
CUresult cuGraphKernelNodeGetAttribute(CUgraphNode handle, CUkernelNodeAttrID id,
                                       CUkernelNodeAttrValue* value) {
  return with_driver([&]() -> CUresult {
    GraphNode* node = node_from(handle);
    if (!node || !value || type_of(node->work) != CU_GRAPH_NODE_TYPE_KERNEL) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const auto known = node->attributes.find(id);
    *value = known == node->attributes.end() ? CUkernelNodeAttrValue{} : known->second;
    return CUDA_SUCCESS;
  });
}
