// SPDX-License-Identifier: Apache-2.0
// The graph functions that are for one type of node: adding it, reading and changing what it holds,
// in a graph and in an executable one. All of them are the general functions (cuGraphAddNode_v2,
// cuGraphNodeSetParams, cuGraphExecNodeSetParams) with the parameters in another wrapping. Part
// of libcuda and of the software GPU alike.
#pragma GCC visibility push(default)
#include "abi/cuda_driver.h"
#pragma GCC visibility pop

#include "client/driver/graph_node_types.h"

using sluice::graph_nodes::params_of;

namespace {

template <class F>
CUgraphNodeParams wrap(CUgraphNodeType type, F&& fill) {
  CUgraphNodeParams params{};
  params.type = type;
  fill(params);
  return params;
}

// What a node of that type holds, as one of its getters gives it.
template <class Out, class Take>
CUresult get(CUgraphNode node, CUgraphNodeType type, Out* out, Take&& take) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  CUgraphNodeParams all{};
  const CUresult e = params_of(node, type, &all);
  if (e == CUDA_SUCCESS) *out = take(all);
  return e;
}

// The older structures name no kernel and no context.
template <class Params>
CUgraphNodeParams kernel(const Params& p) {
  return wrap(CU_GRAPH_NODE_TYPE_KERNEL, [&](CUgraphNodeParams& all) {
    auto& k = all.kernel;
    k.func = p.func;
    k.gridDimX = p.gridDimX, k.gridDimY = p.gridDimY, k.gridDimZ = p.gridDimZ;
    k.blockDimX = p.blockDimX, k.blockDimY = p.blockDimY, k.blockDimZ = p.blockDimZ;
    k.sharedMemBytes = p.sharedMemBytes;
    k.kernelParams = p.kernelParams;
    k.extra = p.extra;
    if constexpr (requires { p.kern; }) {
      k.kern = p.kern;
      k.ctx = p.ctx;
    }
  });
}

template <class Params>
CUresult get_kernel(CUgraphNode node, Params* out) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  CUgraphNodeParams all{};
  if (const CUresult e = params_of(node, CU_GRAPH_NODE_TYPE_KERNEL, &all); e != CUDA_SUCCESS)
    return e;
  const auto& k = all.kernel;
  *out = {};
  out->func = k.func;
  out->gridDimX = k.gridDimX, out->gridDimY = k.gridDimY, out->gridDimZ = k.gridDimZ;
  out->blockDimX = k.blockDimX, out->blockDimY = k.blockDimY, out->blockDimZ = k.blockDimZ;
  out->sharedMemBytes = k.sharedMemBytes;
  out->kernelParams = k.kernelParams;
  out->extra = k.extra;
  if constexpr (requires { out->kern; }) {
    out->kern = k.kern;
    out->ctx = k.ctx;
  }
  return CUDA_SUCCESS;
}

CUgraphNodeParams copy(const CUDA_MEMCPY3D& p, CUcontext context) {
  return wrap(CU_GRAPH_NODE_TYPE_MEMCPY, [&](CUgraphNodeParams& all) {
    all.memcpy.copyCtx = context;
    all.memcpy.copyParams = p;
  });
}

CUgraphNodeParams fill(const CUDA_MEMSET_NODE_PARAMS& p, CUcontext context) {
  return wrap(CU_GRAPH_NODE_TYPE_MEMSET, [&](CUgraphNodeParams& all) {
    all.memset.dst = p.dst;
    all.memset.pitch = p.pitch;
    all.memset.value = p.value;
    all.memset.elementSize = p.elementSize;
    all.memset.width = p.width;
    all.memset.height = p.height;
    all.memset.ctx = context;
  });
}

CUgraphNodeParams host(const CUDA_HOST_NODE_PARAMS& p) {
  return wrap(CU_GRAPH_NODE_TYPE_HOST, [&](CUgraphNodeParams& all) {
    all.host.fn = p.fn;
    all.host.userData = p.userData;
  });
}

CUgraphNodeParams child(CUgraph graph) {
  return wrap(CU_GRAPH_NODE_TYPE_GRAPH, [&](CUgraphNodeParams& all) { all.graph.graph = graph; });
}

CUgraphNodeParams record(CUevent event) {
  return wrap(CU_GRAPH_NODE_TYPE_EVENT_RECORD,
              [&](CUgraphNodeParams& all) { all.eventRecord.event = event; });
}

CUgraphNodeParams wait(CUevent event) {
  return wrap(CU_GRAPH_NODE_TYPE_WAIT_EVENT,
              [&](CUgraphNodeParams& all) { all.eventWait.event = event; });
}

CUgraphNodeParams mem_op(const CUDA_BATCH_MEM_OP_NODE_PARAMS& p) {
  return wrap(CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, [&](CUgraphNodeParams& all) {
    all.memOp.ctx = p.ctx;
    all.memOp.count = p.count;
    all.memOp.paramArray = p.paramArray;
    all.memOp.flags = p.flags;
  });
}

CUresult add(CUgraphNode* node, CUgraph graph, const CUgraphNode* after, size_t count,
             CUgraphNodeParams params) {
  return cuGraphAddNode_v2(node, graph, after, nullptr, count, &params);
}

// The node's own type is the one that is changed.
CUresult set(CUgraphNode node, CUgraphNodeParams params) {
  return cuGraphNodeSetParams(node, &params);
}
CUresult set(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams params) {
  return cuGraphExecNodeSetParams(exec, node, &params);
}

}  // namespace

extern "C" {

CUresult cuGraphAddNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after, size_t count,
                        CUgraphNodeParams* params) {
  return cuGraphAddNode_v2(node, graph, after, nullptr, count, params);
}

CUresult cuGraphAddKernelNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after,
                              size_t count, const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  return params ? add(node, graph, after, count, kernel(*params)) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuGraphAddKernelNode_v2(CUgraphNode* node, CUgraph graph, const CUgraphNode* after,
                                 size_t count, const CUDA_KERNEL_NODE_PARAMS* params) {
  return params ? add(node, graph, after, count, kernel(*params)) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1* params) {
  return get_kernel(node, params);
}
CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS* params) {
  return get_kernel(node, params);
}
CUresult cuGraphKernelNodeSetParams(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  return params ? set(node, kernel(*params)) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS* params) {
  return params ? set(node, kernel(*params)) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                        const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  return params ? set(exec, node, kernel(*params)) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
                                           const CUDA_KERNEL_NODE_PARAMS* params) {
  return params ? set(exec, node, kernel(*params)) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphAddMemcpyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after,
                              size_t count, const CUDA_MEMCPY3D* params, CUcontext context) {
  return params ? add(node, graph, after, count, copy(*params, context)) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuGraphMemcpyNodeGetParams(CUgraphNode node, CUDA_MEMCPY3D* params) {
  return get(node, CU_GRAPH_NODE_TYPE_MEMCPY, params,
             [](const CUgraphNodeParams& all) { return all.memcpy.copyParams; });
}
CUresult cuGraphMemcpyNodeSetParams(CUgraphNode node, const CUDA_MEMCPY3D* params) {
  return params ? set(node, copy(*params, nullptr)) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                        const CUDA_MEMCPY3D* params, CUcontext context) {
  return params ? set(exec, node, copy(*params, context)) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphAddMemsetNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after,
                              size_t count, const CUDA_MEMSET_NODE_PARAMS* params,
                              CUcontext context) {
  return params ? add(node, graph, after, count, fill(*params, context)) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuGraphMemsetNodeGetParams(CUgraphNode node, CUDA_MEMSET_NODE_PARAMS* params) {
  return get(node, CU_GRAPH_NODE_TYPE_MEMSET, params, [](const CUgraphNodeParams& all) {
    const auto& m = all.memset;
    return CUDA_MEMSET_NODE_PARAMS{m.dst, m.pitch, m.value, m.elementSize, m.width, m.height};
  });
}
CUresult cuGraphMemsetNodeSetParams(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS* params) {
  return params ? set(node, fill(*params, nullptr)) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                        const CUDA_MEMSET_NODE_PARAMS* params, CUcontext context) {
  return params ? set(exec, node, fill(*params, context)) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphAddHostNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after,
                            size_t count, const CUDA_HOST_NODE_PARAMS* params) {
  return params ? add(node, graph, after, count, host(*params)) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuGraphHostNodeGetParams(CUgraphNode node, CUDA_HOST_NODE_PARAMS* params) {
  return get(node, CU_GRAPH_NODE_TYPE_HOST, params, [](const CUgraphNodeParams& all) {
    return CUDA_HOST_NODE_PARAMS{all.host.fn, all.host.userData};
  });
}
CUresult cuGraphHostNodeSetParams(CUgraphNode node, const CUDA_HOST_NODE_PARAMS* params) {
  return params ? set(node, host(*params)) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuGraphExecHostNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                      const CUDA_HOST_NODE_PARAMS* params) {
  return params ? set(exec, node, host(*params)) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphAddChildGraphNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after,
                                  size_t count, CUgraph child_graph) {
  return add(node, graph, after, count, child(child_graph));
}
CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph* graph) {
  return get(node, CU_GRAPH_NODE_TYPE_GRAPH, graph,
             [](const CUgraphNodeParams& all) { return all.graph.graph; });
}
CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                            CUgraph child_graph) {
  return set(exec, node, child(child_graph));
}

CUresult cuGraphAddEmptyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after,
                             size_t count) {
  return add(node, graph, after, count, wrap(CU_GRAPH_NODE_TYPE_EMPTY, [](CUgraphNodeParams&) {}));
}

CUresult cuGraphAddEventRecordNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after,
                                   size_t count, CUevent event) {
  return add(node, graph, after, count, record(event));
}
CUresult cuGraphEventRecordNodeGetEvent(CUgraphNode node, CUevent* event) {
  return get(node, CU_GRAPH_NODE_TYPE_EVENT_RECORD, event,
             [](const CUgraphNodeParams& all) { return all.eventRecord.event; });
}
CUresult cuGraphEventRecordNodeSetEvent(CUgraphNode node, CUevent event) {
  return set(node, record(event));
}
CUresult cuGraphExecEventRecordNodeSetEvent(CUgraphExec exec, CUgraphNode node, CUevent event) {
  return set(exec, node, record(event));
}

CUresult cuGraphAddEventWaitNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after,
                                 size_t count, CUevent event) {
  return add(node, graph, after, count, wait(event));
}
CUresult cuGraphEventWaitNodeGetEvent(CUgraphNode node, CUevent* event) {
  return get(node, CU_GRAPH_NODE_TYPE_WAIT_EVENT, event,
             [](const CUgraphNodeParams& all) { return all.eventWait.event; });
}
CUresult cuGraphEventWaitNodeSetEvent(CUgraphNode node, CUevent event) {
  return set(node, wait(event));
}
CUresult cuGraphExecEventWaitNodeSetEvent(CUgraphExec exec, CUgraphNode node, CUevent event) {
  return set(exec, node, wait(event));
}

CUresult cuGraphAddBatchMemOpNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after,
                                  size_t count, const CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
  return params ? add(node, graph, after, count, mem_op(*params)) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuGraphBatchMemOpNodeGetParams(CUgraphNode node, CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
  return get(node, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, params, [](const CUgraphNodeParams& all) {
    CUDA_BATCH_MEM_OP_NODE_PARAMS out{};
    out.ctx = all.memOp.ctx;
    out.count = all.memOp.count;
    out.paramArray = all.memOp.paramArray;
    out.flags = all.memOp.flags;
    return out;
  });
}
CUresult cuGraphBatchMemOpNodeSetParams(CUgraphNode node,
                                        const CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
  return params ? set(node, mem_op(*params)) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuGraphExecBatchMemOpNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                            const CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
  return params ? set(exec, node, mem_op(*params)) : CUDA_ERROR_INVALID_VALUE;
}

}  // extern "C"
