// SPDX-License-Identifier: Apache-2.0
// Attributes: checked here; set on the node without waiting for streams and launches, asked for
// kernel nodes, as everything of graphs is. What a stream has been given is kept here and read
// here.
#include "client/driver/attribute.h"

#include <algorithm>
#include <cstring>

#include "client/core/addresses.h"
#include "client/driver/graph.h"
#include "wire/generated.h"

using namespace sluice::client;
namespace wire = sluice::wire;

namespace {

int limit(const Device& d, CUdevice_attribute a) { return d.record.attributes[a]; }

// A window in memory of this session, cut to what is there: beyond there is nothing to keep.
CUresult check_window(Session* s, const Device& d, CUaccessPolicyWindow* w) {
  if (w->num_bytes == 0) {
    w->base_ptr = nullptr;
    return CUDA_SUCCESS;
  }
  const auto base = reinterpret_cast<uint64_t>(w->base_ptr);
  const auto most = limit(d, CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE);
  // The ratio is not compared by its opposite: it may be no number.
  if (w->num_bytes > static_cast<size_t>(std::max(0, most)) ||
      !(w->hitRatio >= 0.0f && w->hitRatio <= 1.0f) ||
      static_cast<uint32_t>(w->hitProp) > CU_ACCESS_PROPERTY_PERSISTING ||
      static_cast<uint32_t>(w->missProp) > CU_ACCESS_PROPERTY_STREAMING ||
      !is_backed(s, base, 1, &d))
    return CUDA_ERROR_INVALID_VALUE;
  if (is_backed(s, base, w->num_bytes)) return CUDA_SUCCESS;
  AddressRange range;
  w->num_bytes = find_range(s, base, &range) ? range.start + range.bytes - base : 1;
  return CUDA_SUCCESS;
}

bool valid_for(AttributeOf what, CUlaunchAttributeID id) {
  switch (id) {
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
    case CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING:
      return true;
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
      return what != AttributeOf::kNode;
    case CU_LAUNCH_ATTRIBUTE_IGNORE:
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
      return what == AttributeOf::kLaunch;
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      return what != AttributeOf::kStream;
    default:
      return false;
  }
}

// What a stream has that was given nothing.
CUlaunchAttributeValue standard(const Stream& stream, CUlaunchAttributeID id) {
  CUlaunchAttributeValue v{};
  if (id == CU_LAUNCH_ATTRIBUTE_PRIORITY) v.priority = stream.priority;
  if (id == CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY) v.syncPolicy = CU_SYNC_POLICY_AUTO;
  if (id == CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP) v.memSyncDomainMap.remote = 1;
  return v;
}

CUresult set(Session* s, Stream* stream, CUlaunchAttributeID id,
             const CUlaunchAttributeValue& value) {
  wire::StreamAttribute m{stream->wire_id, {}};
  if (const CUresult e =
          pack_attribute(s, *stream->device, AttributeOf::kStream, id, value, &m.attribute);
      e != CUDA_SUCCESS)
    return e;
  auto at = std::find_if(stream->attributes.begin(), stream->attributes.end(),
                         [&](const auto& a) { return a.id == id; });
  if (at == stream->attributes.end()) at = stream->attributes.insert(at, {id, {}, {}});
  at->value = value;
  if (id == CU_LAUNCH_ATTRIBUTE_PRIORITY) {
    std::memcpy(&stream->priority, m.attribute.value, sizeof stream->priority);
    at->value.priority = stream->priority;
  }
  // How a thread waits that is not there: it is the client's that waits.
  if (id == CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY) return CUDA_SUCCESS;
  return s->post(wire::kStreamAttribute, m, {}, nullptr, stream->device->context());
}

// Of a kernel's node.
CUresult node_attribute(CUgraphNode handle, CUlaunchAttributeID id,
                        const CUlaunchAttributeValue* given, CUlaunchAttributeValue* answer) {
  Session* s;
  GraphNode* node;
  Graph* graph;
  if (const CUresult e = find_node(handle, &s, &node, &graph); e != CUDA_SUCCESS) return e;
  if (id == CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE) return CUDA_ERROR_NOT_SUPPORTED;
  if ((!given && !answer) || !valid_for(AttributeOf::kNode, id)) return CUDA_ERROR_INVALID_VALUE;
  wire::GraphNodeAttribute m{
      node->graph, node->ordinal, given != nullptr, {static_cast<uint32_t>(id), 0, {}}};
  if (given)
    if (const CUresult e =
            pack_attribute(s, *graph->device, AttributeOf::kNode, id, *given, &m.attribute);
        e != CUDA_SUCCESS)
      return e;
  std::span<std::byte> sink;
  if (answer) sink = {reinterpret_cast<std::byte*>(answer), sizeof *answer};
  return s->exchange(wire::kGraphNodeAttribute, m, {}, sink, nullptr, nullptr,
                     graph->device->context());
}

}  // namespace

CUresult sluice::client::pack_attribute(Session* s, const Device& d, AttributeOf what,
                                        CUlaunchAttributeID id, const CUlaunchAttributeValue& value,
                                        wire::LaunchAttribute* packed) {
  // These name an event, or a node for the device: none of those is spoken yet.
  if (id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT ||
      id == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT ||
      id == CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE)
    return CUDA_ERROR_NOT_SUPPORTED;
  if (!valid_for(what, id)) return CUDA_ERROR_INVALID_VALUE;
  CUlaunchAttributeValue v = value;
  switch (id) {
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
      if (const CUresult e = check_window(s, d, &v.accessPolicyWindow); e != CUDA_SUCCESS) return e;
      break;
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
      if (v.syncPolicy < CU_SYNC_POLICY_AUTO || v.syncPolicy > CU_SYNC_POLICY_BLOCKING_SYNC)
        return CUDA_ERROR_INVALID_VALUE;
      break;
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
      // As at a stream's creation CUDA takes the nearest; of a launch's it is the driver's to
      // judge.
      if (what != AttributeOf::kStream) break;
      v.priority = std::min(std::max(v.priority, d.record.stream_priority_greatest),
                            d.record.stream_priority_least);
      break;
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP: {
      const int domains = std::max(1, limit(d, CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT));
      if (v.memSyncDomainMap.default_ >= domains || v.memSyncDomainMap.remote >= domains)
        return CUDA_ERROR_INVALID_VALUE;
      break;
    }
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
      if (static_cast<uint32_t>(v.memSyncDomain) > CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE)
        return CUDA_ERROR_INVALID_VALUE;
      break;
    default:
      break;
  }
  *packed = {};
  packed->id = static_cast<uint32_t>(id);
  static_assert(sizeof v <= sizeof packed->value);
  std::memcpy(packed->value, &v, sizeof v);
  return CUDA_SUCCESS;
}

extern "C" {

CUresult cuStreamSetAttribute(CUstream handle, CUstreamAttrID id, const CUstreamAttrValue* value) {
  Session* s;
  Stream* stream;
  if (const CUresult e = with_stream(handle, &s, &stream); e != CUDA_SUCCESS) return e;
  return value ? set(s, stream, id, *value) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuStreamGetAttribute(CUstream handle, CUstreamAttrID id, CUstreamAttrValue* value) {
  Session* s;
  Stream* stream;
  if (const CUresult e = with_stream(handle, &s, &stream); e != CUDA_SUCCESS) return e;
  if (!value || !valid_for(AttributeOf::kStream, id)) return CUDA_ERROR_INVALID_VALUE;
  *value = standard(*stream, id);
  for (const auto& a : stream->attributes)
    if (a.id == id) *value = a.value;
  return CUDA_SUCCESS;
}

CUresult cuStreamCopyAttributes(CUstream to_handle, CUstream from_handle) {
  Session* s;
  Stream *to, *from;
  if (const CUresult e = with_stream(to_handle, &s, &to); e != CUDA_SUCCESS) return e;
  if (const CUresult e = with_stream(from_handle, &s, &from); e != CUDA_SUCCESS) return e;
  if (to->device != from->device) return CUDA_ERROR_INVALID_VALUE;
  if (to == from) return CUDA_SUCCESS;
  to->attributes = from->attributes;
  to->priority = from->priority;
  return s->post(wire::kCuStreamCopyAttributes,
                 wire::CuStreamCopyAttributes{to->wire_id, from->wire_id}, {}, nullptr,
                 to->device->context());
}

CUresult cuGraphKernelNodeSetAttribute(CUgraphNode node, CUkernelNodeAttrID id,
                                       const CUkernelNodeAttrValue* value) {
  return value ? node_attribute(node, id, value, nullptr) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuGraphKernelNodeGetAttribute(CUgraphNode node, CUkernelNodeAttrID id,
                                       CUkernelNodeAttrValue* value) {
  return value ? node_attribute(node, id, nullptr, value) : CUDA_ERROR_INVALID_VALUE;
}

}  // extern "C"
