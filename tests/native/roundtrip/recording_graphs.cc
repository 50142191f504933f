// SPDX-License-Identifier: Apache-2.0
// What the recording driver answers to the graph functions.
#include "tests/native/roundtrip/recording_driver.h"

namespace sluice::test {

CUgraphNode Recording::mint_node(CUgraph graph, CUgraphNodeType type) {
  next_ += 64;
  auto* node = reinterpret_cast<CUgraphNode>(next_);
  graph_nodes[node] = {graph, type, {}};
  return node;
}

// What a node may hold: only what the session was given.
void Recording::check_node(const CUgraphNodeParams& p) {
  const char* f = "cuGraphAddNode_v2";
  const auto copied = [&](CUmemorytype type, const void* at, CUdeviceptr device, size_t pitch,
                          size_t height, const CUDA_MEMCPY3D& c) {
    const uint64_t bytes = (c.Depth - 1) * pitch * height + (c.Height - 1) * pitch + c.WidthInBytes;
    if (type == CU_MEMORYTYPE_HOST ? !host_range(at, bytes) : !device_range(device, bytes))
      violation(f, "foreign memory to copy");
  };
  if (p.type == CU_GRAPH_NODE_TYPE_KERNEL) {
    if (p.kernel.func) check(f, p.kernel.func);
    if (!p.kernel.func) check(f, p.kernel.kern);
    size_t takes = 0;
    for (const auto& [offset, size] : params) takes = std::max(takes, offset + size);
    if (*static_cast<size_t*>(p.kernel.extra[3]) < takes)
      violation(f, "fewer parameters than the function takes");
  } else if (p.type == CU_GRAPH_NODE_TYPE_MEMCPY) {
    const CUDA_MEMCPY3D& c = p.memcpy.copyParams;
    copied(c.dstMemoryType, c.dstHost, c.dstDevice, c.dstPitch, c.dstHeight, c);
    copied(c.srcMemoryType, c.srcHost, c.srcDevice, c.srcPitch, c.srcHeight, c);
  } else if (p.type == CU_GRAPH_NODE_TYPE_MEMSET) {
    const auto& m = p.memset;
    if (!device_range(m.dst,
                      (m.height > 1 ? m.pitch * (m.height - 1) : 0) + m.width * m.elementSize))
      violation(f, "foreign memory to fill");
  } else if (p.type == CU_GRAPH_NODE_TYPE_GRAPH) {
    check(f, p.graph.graph);
  } else if (p.type == CU_GRAPH_NODE_TYPE_EVENT_RECORD) {
    check(f, p.eventRecord.event);
  } else if (p.type == CU_GRAPH_NODE_TYPE_WAIT_EVENT) {
    check(f, p.eventWait.event);
  } else if (p.type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP) {
    for (unsigned i = 0; i < p.memOp.count; ++i)
      if (p.memOp.paramArray[i].operation != CU_STREAM_MEM_OP_BARRIER)
        check(f, p.memOp.paramArray[i].waitValue.address);
  } else if (p.type == CU_GRAPH_NODE_TYPE_CONDITIONAL) {
    if (p.conditional.handle != kCondition) violation(f, "a condition that was not made");
  }
}

void Recording::install_graphs() {
  const auto make = [this](CUgraph* g) { return *g = mint<CUgraph>(graphs), CUDA_SUCCESS; };
  SLUICE_ON(cuStreamIsCapturing) = [](CUstream, CUstreamCaptureStatus* s) {
    return *s = CU_STREAM_CAPTURE_STATUS_NONE, CUDA_SUCCESS;
  };
  SLUICE_ON(cuStreamBeginCapture_v2) = [=, this](CUstream s, CUstreamCaptureMode) {
    return make(&captured[s]);
  };
  SLUICE_ON(cuStreamGetCaptureInfo_v2) = [this](CUstream s, CUstreamCaptureStatus* status,
                                                cuuint64_t*, CUgraph* g, const CUgraphNode**,
                                                size_t*) {
    *status = CU_STREAM_CAPTURE_STATUS_ACTIVE, *g = captured[s];
    return CUDA_SUCCESS;
  };
  SLUICE_ON(cuStreamGetCaptureInfo_v3) = [this](CUstream s, CUstreamCaptureStatus* status,
                                                cuuint64_t*, CUgraph* g, const CUgraphNode** nodes,
                                                const CUgraphEdgeData** data, size_t* n) {
    static CUgraphNode node;
    node = mint_node(captured[s], CU_GRAPH_NODE_TYPE_EMPTY);
    *status = CU_STREAM_CAPTURE_STATUS_ACTIVE, *g = captured[s];
    *nodes = &node, *data = nullptr, *n = 1;
    return CUDA_SUCCESS;
  };
  SLUICE_ON(cuStreamEndCapture) = [this](CUstream s, CUgraph* g) {
    return *g = captured[s], status;
  };
  SLUICE_ON(cuStreamBatchMemOp_v2) = [this](CUstream, unsigned n, CUstreamBatchMemOpParams* ops,
                                            unsigned) {
    for (unsigned i = 0; i < n; ++i)
      if (ops[i].operation != CU_STREAM_MEM_OP_BARRIER)
        check("cuStreamBatchMemOp_v2", ops[i].waitValue.address);
    return status;
  };
  SLUICE_ON(cuGraphCreate) = [=](CUgraph* g, unsigned) { return make(g); };
  SLUICE_ON(cuGraphClone) = [=](CUgraph* g, CUgraph) { return make(g); };
  SLUICE_ON(cuGraphChildGraphNodeGetGraph) = [=, this](CUgraphNode n, CUgraph* g) {
    CUgraph& child = graph_nodes[n].child;
    if (!child) make(&child);
    return *g = child, CUDA_SUCCESS;
  };
  SLUICE_ON(cuGraphDestroy) = [this](CUgraph g) {
    graphs.erase(g);
    std::erase_if(graph_nodes, [&](const auto& n) { return n.second.graph == g; });
    return status;
  };
  SLUICE_ON(cuGraphNodeFindInClone) = [this](CUgraphNode* n, CUgraphNode from, CUgraph g) {
    return *n = mint_node(g, graph_nodes[from].type), CUDA_SUCCESS;
  };
  const auto nodes_of = [this](CUgraph g, CUgraphNode* nodes, size_t* n) {
    size_t have = 0;
    for (const auto& [node, is] : graph_nodes) {
      if (is.graph != g) continue;
      if (nodes && have < *n) nodes[have] = static_cast<CUgraphNode>(const_cast<void*>(node));
      ++have;
    }
    return *n = have, CUDA_SUCCESS;
  };
  SLUICE_ON(cuGraphGetNodes) = nodes_of;
  SLUICE_ON(cuGraphGetRootNodes) = nodes_of;
  SLUICE_ON(cuGraphGetEdges_v2) = [](CUgraph, CUgraphNode*, CUgraphNode*, CUgraphEdgeData*,
                                     size_t* n) { return *n = 0, CUDA_SUCCESS; };
  const auto none = [](CUgraphNode, CUgraphNode*, CUgraphEdgeData*, size_t* n) {
    return *n = 0, CUDA_SUCCESS;
  };
  SLUICE_ON(cuGraphNodeGetDependencies_v2) = none;
  SLUICE_ON(cuGraphNodeGetDependentNodes_v2) = none;
  SLUICE_ON(cuGraphNodeGetType) = [this](CUgraphNode n, CUgraphNodeType* type) {
    return *type = graph_nodes[n].type, CUDA_SUCCESS;
  };
  SLUICE_ON(cuGraphConditionalHandleCreate) = [](CUgraphConditionalHandle* out, CUgraph, CUcontext,
                                                 unsigned, unsigned) {
    return *out = kCondition, CUDA_SUCCESS;
  };
  const auto keep = [this](CUgraphNode n, const CUgraphNodeParams& p) {
    if (p.type == CU_GRAPH_NODE_TYPE_MEMCPY) graph_nodes[n].copy = p.memcpy.copyParams;
    const auto& f = p.memset;
    if (p.type == CU_GRAPH_NODE_TYPE_MEMSET)
      graph_nodes[n].fill = {f.dst, f.pitch, f.value, f.elementSize, f.width, f.height};
  };
  SLUICE_ON(cuGraphAddNode_v2) = [=, this](CUgraphNode* n, CUgraph g, const CUgraphNode* after,
                                           const CUgraphEdgeData*, size_t count,
                                           CUgraphNodeParams* p) {
    for (size_t i = 0; i < count; ++i) check("cuGraphAddNode_v2", after[i]);
    check_node(*p);
    *n = mint_node(g, p->type);
    if (p->type == CU_GRAPH_NODE_TYPE_CONDITIONAL) {
      static std::vector<CUgraph> bodies;
      bodies.resize(p->conditional.size);
      for (CUgraph& body : bodies) make(&body);
      p->conditional.phGraph_out = bodies.data();
    }
    auto& k = graph_nodes[*n].kernel;
    if (p->type == CU_GRAPH_NODE_TYPE_KERNEL) k.func = p->kernel.func, k.kern = p->kernel.kern;
    if (p->type == CU_GRAPH_NODE_TYPE_GRAPH) {
      CUgraph child = nullptr;
      make(&child);
      const auto all = graph_nodes;
      for (const auto& [inside, is] : all)
        if (is.graph == p->graph.graph) {
          CUgraphNode twin = mint_node(child, is.type);
          graph_nodes[twin].copy = is.copy, graph_nodes[twin].fill = is.fill;
        }
      graph_nodes[*n].child = child;
    }
    keep(*n, *p);
    return status;
  };
  SLUICE_ON(cuGraphNodeSetParams) = [=, this](CUgraphNode n, CUgraphNodeParams* p) {
    return check_node(*p), keep(n, *p), status;
  };
  SLUICE_ON(cuGraphMemcpyNodeGetParams) = [this](CUgraphNode n, CUDA_MEMCPY3D* p) {
    return *p = graph_nodes[n].copy, CUDA_SUCCESS;
  };
  SLUICE_ON(cuGraphMemsetNodeGetParams) = [this](CUgraphNode n, CUDA_MEMSET_NODE_PARAMS* p) {
    return *p = graph_nodes[n].fill, CUDA_SUCCESS;
  };
  SLUICE_ON(cuGraphExecNodeSetParams) = [this](CUgraphExec, CUgraphNode, CUgraphNodeParams* p) {
    return check_node(*p), status;
  };
  SLUICE_ON(cuGraphKernelNodeGetParams_v2) = [this](CUgraphNode n, CUDA_KERNEL_NODE_PARAMS* p) {
    return *p = graph_nodes[n].kernel, CUDA_SUCCESS;
  };
  SLUICE_ON(cuGraphDestroyNode) = [this](CUgraphNode n) { return graph_nodes.erase(n), status; };
  SLUICE_ON(cuGraphInstantiateWithParams) = [this](CUgraphExec* e, CUgraph,
                                                   CUDA_GRAPH_INSTANTIATE_PARAMS*) {
    return *e = mint<CUgraphExec>(graph_execs), status;
  };
  SLUICE_ON(cuGraphExecDestroy) = [this](CUgraphExec e) { return graph_execs.erase(e), status; };
}

}  // namespace sluice::test
