// SPDX-License-Identifier: Apache-2.0
#include "worker/attribute.h"

#include <cstring>

#include "process/log.h"
#include "worker/dispatch.h"

namespace sluice::worker {

namespace {

// Attributes whose value is plain data. The others carry handles or addresses.
bool is_plain(uint32_t id) {
  switch (id) {
    case CU_LAUNCH_ATTRIBUTE_IGNORE:
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
    case CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING:
      return true;
    default:
      return false;
  }
}

bool sane(Session& s, const CUaccessPolicyWindow& w) {
  return w.num_bytes == 0 || (w.hitRatio >= 0.0f && w.hitRatio <= 1.0f &&
                              static_cast<uint32_t>(w.hitProp) <= CU_ACCESS_PROPERTY_PERSISTING &&
                              static_cast<uint32_t>(w.missProp) <= CU_ACCESS_PROPERTY_STREAMING &&
                              s.device_range(reinterpret_cast<uint64_t>(w.base_ptr), w.num_bytes));
}

void of_stream(Session& s, const Command& c, Reply&) {
  Decoder d(c.body);
  const auto m = d.fixed<wire::StreamAttribute>();
  CUlaunchAttribute a;
  if (!d.ok()) return s.reject("StreamAttribute is cut short");
  CUstream stream;
  if (!take_attribute(s, m.attribute, "StreamAttribute", &a) ||
      !s.stream(m.stream, c.header.context, &stream) || !s.driver.cuStreamSetAttribute)
    return;
  const CUresult e = s.driver.cuStreamSetAttribute(stream, a.id, &a.value);
  if (e != CUDA_SUCCESS)
    process::log_error("attribute " + std::to_string(m.attribute.id) +
                       " of a stream: " + s.driver.error_text(e));
}

void of_node(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto m = d.fixed<wire::GraphNodeAttribute>();
  CUlaunchAttribute a;
  if (!d.ok() || m.set > 1) return s.reject("GraphNodeAttribute makes no sense");
  const GraphRef graph = find_graph(s, m.graph, "GraphNodeAttribute");
  if (!graph) return;
  const CUgraphNode node = graph->node_at(m.node);
  if (!node) return s.reject("GraphNodeAttribute names a node that there is not");
  if (!take_attribute(s, m.attribute, "GraphNodeAttribute", &a) || !s.use_context(c.header.context))
    return;
  if (!s.driver.cuGraphKernelNodeSetAttribute || !s.driver.cuGraphKernelNodeGetAttribute) {
    reply.status = CUDA_ERROR_NOT_SUPPORTED;
  } else if (m.set) {
    reply.status = s.driver.cuGraphKernelNodeSetAttribute(node, a.id, &a.value);
  } else {
    a.value = {};
    reply.status = s.driver.cuGraphKernelNodeGetAttribute(node, a.id, &a.value);
    if (reply.status == CUDA_SUCCESS) reply.put(a.value);
  }
}

}  // namespace

bool take_attribute(Session& s, const wire::LaunchAttribute& from, const char* what,
                    CUlaunchAttribute* to) {
  *to = {};
  to->id = static_cast<CUlaunchAttributeID>(from.id);
  std::memcpy(&to->value, from.value, sizeof to->value);
  const bool window = from.id == CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW;
  if (window ? sane(s, to->value.accessPolicyWindow) : is_plain(from.id)) return true;
  s.reject(std::string(what) +
           (window
                ? " has a window that makes no sense, or in memory that the session does not have"
                : " carries an attribute that is not plain data"));
  return false;
}

void add_attribute_handlers(DispatchTable& t) {
  t[wire::kStreamAttribute].run = of_stream;
  t[wire::kGraphNodeAttribute].run = of_node;
}

}  // namespace sluice::worker
