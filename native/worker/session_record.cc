// SPDX-License-Identifier: Apache-2.0
#include "worker/session_record.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "whole_number.h"
#include "worker/device_attributes.h"
#include "worker/peer.h"

namespace sluice::worker {

namespace {

// A vGPU is a device of its own: the same card in two sessions has two names, and one in all
// sessions of a job.
CUuuid own_uuid(const Session& s, const Vgpu& v) {
  CUuuid uuid = v.gpu->uuid;
  uint64_t h = 0xcbf29ce484222325 ^ (s.ledger ? v.grant_index : v.window_begin);
  for (unsigned char c : s.ledger ? s.plan.grant : s.plan.id) h = (h ^ c) * 0x100000001b3;
  for (int i = 0; i < 8; ++i) uuid.bytes[i] ^= static_cast<char>(h >> (8 * i));
  return uuid;
}

// What every vGPU says of itself.
void fill(Session& s, const Vgpu& v, wire::DeviceRecord* r) {
  r->window_begin = v.window_begin;
  r->window_bytes = v.window_bytes;
  r->memory_bytes = v.memory.bytes();
  r->compute_percent = v.compute_percent;
  std::memcpy(r->physical_uuid, v.gpu->uuid.bytes, 16);
  std::memcpy(r->uuid, v.uuid.bytes, 16);
  std::snprintf(r->name, sizeof r->name, "%s", v.gpu->name.c_str());
  std::snprintf(r->pci_bus_id, sizeof r->pci_bus_id, "%s", v.gpu->pci_bus_id.c_str());
  r->granularity = 2 << 20;
  r->thread_bytes = std::max<uint64_t>(v.limits.base_bytes, 1);
  r->attribute_count = std::min<uint32_t>(wire::kDeviceAttributes, CU_DEVICE_ATTRIBUTE_MAX);
  for (uint32_t a = 1; a < r->attribute_count; ++a) {
    int value = 0;
    if (s.driver.cuDeviceGetAttribute(&value, static_cast<CUdevice_attribute>(a), v.gpu->ordinal) ==
        CUDA_SUCCESS)
      r->attributes[a] = value;
  }
  const auto set = [&](CUdevice_attribute a, int value) { r->attributes[a] = value; };
  tell_the_truth(r->attributes, {!s.endpoint().arena().empty(), s.plan.channel == "shm"});
  // Both by the broker.
  set(CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  set(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1);
  s.driver.cuCtxSetCurrent(v.gpu->context);
  s.driver.cuCtxGetStreamPriorityRange(&r->stream_priority_least, &r->stream_priority_greatest);
  for (int l = 0; l < 8; ++l) {
    size_t value = 0;
    r->limits[l] =
        s.driver.cuCtxGetLimit(&value, static_cast<CUlimit>(l)) == CUDA_SUCCESS ? value : ~0ull;
  }
}

// What it may do with the memory of the others.
void fill_peers(Session& s, const Vgpu& v, wire::DeviceRecord* r) {
  for (size_t i = 0; i < s.vgpus.size(); ++i) {
    if (s.vgpus[i].get() == &v) continue;
    const PeerLink link = peer_link(s.driver, *v.gpu, *s.vgpus[i]->gpu);
    r->peers |= uint64_t{link.access} << i;
    r->peer_atomics |= uint64_t{link.atomics} << i;
    r->peer_rank[i] = link.rank;
  }
}

}  // namespace

std::vector<std::byte> session_record(Session& s) {
  wire::OpenReply reply{};
  wire::SessionRecord head{};
  reply.header = {sizeof reply, wire::kOpenReply, wire::kNoLane, 0, 0};
  read_whole_number(s.plan.id, &reply.session_id, 16);  // as control.yaml has it
  reply.network_grace_seconds = s.plan.network_grace_seconds;
  head.device_bytes = sizeof(wire::DeviceRecord);
  head.device_count = static_cast<uint32_t>(s.vgpus.size());
  head.record_bytes =
      static_cast<uint32_t>(sizeof head + s.vgpus.size() * sizeof(wire::DeviceRecord));
  int version = 0;
  s.driver.cuDriverGetVersion(&version);
  head.driver_version = static_cast<uint32_t>(version);
  head.keeps_code = s.code_cache != nullptr;
  head.shares_memory = s.ledger != nullptr;
  head.software_gpu = s.vgpus[0]->gpu->software();
  if (!head.software_gpu)
    std::snprintf(head.driver_name, sizeof head.driver_name, "%s", s.driver.kernel_driver.c_str());
  std::vector<std::byte> all(sizeof reply + head.record_bytes);
  std::memcpy(all.data(), &reply, sizeof reply);
  std::memcpy(all.data() + sizeof reply, &head, sizeof head);
  for (size_t i = 0; i < s.vgpus.size(); ++i) {
    wire::DeviceRecord r{};
    s.vgpus[i]->uuid = own_uuid(s, *s.vgpus[i]);
    fill(s, *s.vgpus[i], &r);
    fill_peers(s, *s.vgpus[i], &r);
    r.abilities = wire::kAnswersLooks | wire::kTakesLargeCopies | wire::kBuildsAhead |
                  (s.links ? wire::kLinksNodes : 0);
    std::memcpy(all.data() + sizeof reply + sizeof head + i * sizeof r, &r, sizeof r);
  }
  return all;
}

}  // namespace sluice::worker
