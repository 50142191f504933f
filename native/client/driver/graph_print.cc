// SPDX-License-Identifier: Apache-2.0
// cuGraphDebugDotPrint: the graph's picture in the DOT language, drawn here from what the worker
// lists, so that the file is the program's own.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "client/driver/graph.h"
#include "client/objects/code.h"

using namespace sluice::client;
namespace wire = sluice::wire;

namespace {

const char* name_of(CUgraphNodeType type) {
  switch (type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return "KERNEL";
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return "MEMCPY";
    case CU_GRAPH_NODE_TYPE_MEMSET:
      return "MEMSET";
    case CU_GRAPH_NODE_TYPE_HOST:
      return "HOST";
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return "GRAPH";
    case CU_GRAPH_NODE_TYPE_EMPTY:
      return "EMPTY";
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return "EVENT_WAIT";
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return "EVENT_RECORD";
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      return "MEM_OPS";
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
      return "MEM_ALLOC";
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      return "MEM_FREE";
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
      return "CONDITIONAL";
    default:
      return "OTHER";
  }
}

// Whether a flag of CUgraphDebugDot_flags is set; CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE is all of them.
bool asked(unsigned flags, unsigned one) {
  return flags & (one | CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE);
}

// "\nNAME: VALUE" by printf's rules.
template <typename... Values>
std::string line(const char* format, Values... values) {
  char text[160];
  std::snprintf(text, sizeof text, format, values...);
  return std::string("\\n") + text;
}

std::string handle_line(const char* name, const void* handle) {
  return line("%s: %p", name, handle);
}

std::string attributes_of(CUgraphNode node) {
  std::string all;
  CUkernelNodeAttrValue value{};
  if (cuGraphKernelNodeGetAttribute(node, CU_KERNEL_NODE_ATTRIBUTE_COOPERATIVE, &value) ==
      CUDA_SUCCESS)
    all += line("cooperative: %d", value.cooperative);
  value = {};
  if (cuGraphKernelNodeGetAttribute(node, CU_KERNEL_NODE_ATTRIBUTE_PRIORITY, &value) ==
      CUDA_SUCCESS)
    all += line("priority: %d", value.priority);
  return all;
}

std::string side(const char* name, CUmemorytype type, const void* host, CUdeviceptr device,
                 size_t pitch, size_t x, size_t y, size_t z) {
  const void* at = type == CU_MEMORYTYPE_HOST ? host : reinterpret_cast<const void*>(device);
  return line("%s: %p pitch %zu (%zu,%zu,%zu)", name, at, pitch, x, y, z);
}

// What the flags ask for besides a node's label.
std::string details_of(CUgraphNode node, CUgraphNodeType type, unsigned flags) {
  std::string all;
  const bool handles = asked(flags, CU_GRAPH_DEBUG_DOT_FLAGS_HANDLES);
  if (handles) all += handle_line("node", node);
  CUDA_KERNEL_NODE_PARAMS k{};
  CUDA_MEMSET_NODE_PARAMS m{};
  CUDA_MEMCPY3D c{};
  CUevent event = nullptr;
  if (type == CU_GRAPH_NODE_TYPE_KERNEL) {
    if (handles && cuGraphKernelNodeGetParams_v2(node, &k) == CUDA_SUCCESS)
      all += handle_line("function", k.func ? static_cast<const void*>(k.func) : k.kern);
    if (asked(flags, CU_GRAPH_DEBUG_DOT_FLAGS_KERNEL_NODE_ATTRIBUTES)) all += attributes_of(node);
  } else if (type == CU_GRAPH_NODE_TYPE_MEMSET &&
             asked(flags, CU_GRAPH_DEBUG_DOT_FLAGS_MEMSET_NODE_PARAMS) &&
             cuGraphMemsetNodeGetParams(node, &m) == CUDA_SUCCESS) {
    all += line("pitch: %zu", m.pitch);
  } else if (type == CU_GRAPH_NODE_TYPE_MEMCPY &&
             asked(flags, CU_GRAPH_DEBUG_DOT_FLAGS_MEMCPY_NODE_PARAMS) &&
             cuGraphMemcpyNodeGetParams(node, &c) == CUDA_SUCCESS) {
    all += side("from", c.srcMemoryType, c.srcHost, c.srcDevice, c.srcPitch, c.srcXInBytes, c.srcY,
                c.srcZ);
    all += side("to", c.dstMemoryType, c.dstHost, c.dstDevice, c.dstPitch, c.dstXInBytes, c.dstY,
                c.dstZ);
  } else if (asked(flags, CU_GRAPH_DEBUG_DOT_FLAGS_EVENT_NODE_PARAMS) &&
             ((type == CU_GRAPH_NODE_TYPE_EVENT_RECORD &&
               cuGraphEventRecordNodeGetEvent(node, &event) == CUDA_SUCCESS) ||
              (type == CU_GRAPH_NODE_TYPE_WAIT_EVENT &&
               cuGraphEventWaitNodeGetEvent(node, &event) == CUDA_SUCCESS))) {
    all += handle_line("event", event);
  }
  return all;
}

// What a node is and, of the kinds that have one, what it works on.
std::string label_of(Session* s, CUgraphNode node, unsigned flags) {
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  cuGraphNodeGetType(node, &type);
  std::string label = name_of(type);
  char text[160] = "";
  CUDA_KERNEL_NODE_PARAMS k{};
  CUDA_MEMSET_NODE_PARAMS m{};
  CUDA_MEMCPY3D c{};
  if (type == CU_GRAPH_NODE_TYPE_KERNEL &&
      cuGraphKernelNodeGetParams_v2(node, &k) == CUDA_SUCCESS) {
    const void* handle = k.func ? static_cast<const void*>(k.func) : k.kern;
    const Function* f = s->functions.find(handle);
    if (!f) f = s->kernels.find(handle);
    if (f) label += "\\n" + f->name;
    std::snprintf(text, sizeof text, "\\n\\<\\<\\<(%u,%u,%u),(%u,%u,%u),%u\\>\\>\\>", k.gridDimX,
                  k.gridDimY, k.gridDimZ, k.blockDimX, k.blockDimY, k.blockDimZ, k.sharedMemBytes);
  } else if (type == CU_GRAPH_NODE_TYPE_MEMSET &&
             cuGraphMemsetNodeGetParams(node, &m) == CUDA_SUCCESS) {
    std::snprintf(text, sizeof text, "\\n%p (%u,%u,%zu,%zu)", reinterpret_cast<void*>(m.dst),
                  m.value, m.elementSize, m.width, m.height);
  } else if (type == CU_GRAPH_NODE_TYPE_MEMCPY &&
             cuGraphMemcpyNodeGetParams(node, &c) == CUDA_SUCCESS) {
    std::snprintf(text, sizeof text, "\\n%s to %s (%zu,%zu,%zu)",
                  c.srcMemoryType == CU_MEMORYTYPE_HOST ? "host" : "device",
                  c.dstMemoryType == CU_MEMORYTYPE_HOST ? "host" : "device", c.WidthInBytes,
                  c.Height, c.Depth);
  }
  return label + text + details_of(node, type, flags);
}

}  // namespace

extern "C" CUresult cuGraphDebugDotPrint(CUgraph handle, const char* path, unsigned int flags) {
  Session* s;
  Graph* graph;
  if (const CUresult e = find_graph(handle, &s, &graph); e != CUDA_SUCCESS) return e;
  if (!path) return CUDA_ERROR_INVALID_VALUE;
  size_t count = 0, edges = 0;
  CUresult e = cuGraphGetNodes(handle, nullptr, &count);
  std::vector<CUgraphNode> nodes(count);
  if (e == CUDA_SUCCESS && count) e = cuGraphGetNodes(handle, nodes.data(), &count);
  if (e == CUDA_SUCCESS) e = cuGraphGetEdges_v2(handle, nullptr, nullptr, nullptr, &edges);
  std::vector<CUgraphNode> from(edges), to(edges);
  if (e == CUDA_SUCCESS && edges)
    e = cuGraphGetEdges_v2(handle, from.data(), to.data(), nullptr, &edges);
  if (e != CUDA_SUCCESS) return e;
  std::FILE* file = std::fopen(path, "w");
  if (!file) return CUDA_ERROR_OPERATING_SYSTEM;
  const auto number = [&](CUgraphNode node) {
    return std::find(nodes.begin(), nodes.end(), node) - nodes.begin();
  };
  std::fprintf(file,
               "digraph dot {\nsubgraph cluster_1 {\nlabel=\"graph_1\" graph[style=\"dashed\"];\n");
  for (CUgraphNode node : nodes)
    std::fprintf(file,
                 "\"graph_1_node_%td\"[style=\"solid\" shape=\"rectangle\" label=\"%td\\n%s\"];\n",
                 number(node), number(node), label_of(s, node, flags).c_str());
  const bool numbered = asked(flags, CU_GRAPH_DEBUG_DOT_FLAGS_EXTRA_TOPO_INFO);
  for (size_t i = 0; i < edges; ++i) {
    std::fprintf(file, "\"graph_1_node_%td\" -> \"graph_1_node_%td\"", number(from[i]),
                 number(to[i]));
    if (numbered) std::fprintf(file, " [headlabel=%zu]", i);
    std::fprintf(file, ";\n");
  }
  std::fprintf(file, "}\n}\n");
  return std::fclose(file) == 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}
