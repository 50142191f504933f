// SPDX-License-Identifier: Apache-2.0
// The commands of a client that profiles (docs/decisions/0014-profiling.md).
#include "worker/dispatch.h"
#include "worker/profile/node_cupti.h"

namespace sluice::worker {

namespace {

void profile_set(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::ProfileSet>();
  if (!d.ok()) return s.reject("ProfileSet is too short");
  reply.put(NodeCupti::get().set(s.driver, m.activities));
}

void profile_mark(Session& s, const Command& c, Reply&) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::ProfileMark>();
  if (!d.ok()) return s.reject("ProfileMark is too short");
  s.marked_call = m.correlation;
}

// Records name devices by CUDA's ordinals here; those that the session does not have are not its.
bool to_vgpu(const Session& s, uint32_t* device) {
  for (const auto& vgpu : s.vgpus)
    if (static_cast<uint32_t>(vgpu->gpu->ordinal) == *device) {
      *device = vgpu->index;
      return true;
    }
  return false;
}

void profile_fetch(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::ProfileFetch>();
  if (!d.ok()) return s.reject("ProfileFetch is too short");
  NodeCupti& node = NodeCupti::get();
  NodeCupti::Fetched found = node.fetch(m.forced);
  std::erase_if(found.records, [&](wire::ProfileRecord& r) {
    return !to_vgpu(s, &r.device) ||
           (r.kind == cupti::kMemcpyPeer && !(to_vgpu(s, &r.grid[0]) && to_vgpu(s, &r.grid[1])));
  });
  found.head.count = static_cast<uint32_t>(found.records.size());
  found.head.now = node.now();
  reply.put(found.head);
  reply.put_bytes(found.records.data(), found.records.size() * sizeof(wire::ProfileRecord));
  reply.put_bytes(found.names.data(), found.names.size());
}

void profile_stream(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::ProfileStream>();
  if (!d.ok()) return s.reject("ProfileStream is too short");
  CUstream stream = nullptr;
  Vgpu* vgpu = nullptr;
  if (!s.stream(m.stream, c.header.context, &stream, &vgpu)) return;
  wire::ProfileStreamId answer{};
  if (!NodeCupti::get().stream_id(vgpu->gpu->context, stream, &answer.id))
    reply.status = CUDA_ERROR_NOT_SUPPORTED;
  reply.put(answer);
}

}  // namespace

void add_profile_handlers(DispatchTable& t) {
  t[wire::kProfileSet].run = profile_set;
  t[wire::kProfileMark].run = profile_mark;
  t[wire::kProfileFetch].run = profile_fetch;
  t[wire::kProfileStream].run = profile_stream;
}

}  // namespace sluice::worker
