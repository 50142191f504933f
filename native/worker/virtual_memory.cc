// SPDX-License-Identifier: Apache-2.0
// The virtual memory API: allocations that the client minted an id for, mapped at addresses that it
// chose. Every allocation is charged to its vGPU from creation to destruction, as whole slabs
// are. All of it is fire and forget but for unusual access, so the leader runs it.
#include "worker/broker.h"
#include "worker/dispatch.h"
#include "worker/memory.h"

namespace sluice::worker {

uint32_t compression_of(Session& s, CUmemGenericAllocationHandle handle) {
  CUmemAllocationProp granted{};
  if (!s.driver.cuMemGetAllocationPropertiesFromHandle ||
      s.driver.cuMemGetAllocationPropertiesFromHandle(&granted, handle) != CUDA_SUCCESS)
    return CU_MEM_ALLOCATION_COMP_NONE;
  return granted.allocFlags.compressionType;
}

namespace {

void create(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::AllocationCreate>();
  if (!d.ok() || m.bytes == 0 || m.bytes % kGranularity || !s.objects.allocations.has_room(m.id))
    return s.reject("AllocationCreate mints no id that is free, or no whole slabs");
  if (m.flags > wire::kCompressible || (m.flags == wire::kCompressible) != c.answered())
    return s.reject("AllocationCreate has flags that there are not, or no need of an answer");
  Vgpu* v = s.use(m.device);
  if (!v) return;
  std::lock_guard lock(v->mutex);
  if (!may_take(s, *v, m.bytes, "AllocationCreate", reply)) return;
  CUmemAllocationProp prop = physical_memory_on(*v->gpu);
  if (m.flags) prop.allocFlags.compressionType = CU_MEM_ALLOCATION_COMP_GENERIC;
  AllocationObject o;
  o.device = m.device;
  o.bytes = m.bytes;
  reply.status = s.driver.cuMemCreate(&o.handle, m.bytes, &prop, 0);
  if (reply.status != CUDA_SUCCESS) return;
  v->memory.take(MemoryUse::kClient, m.bytes);
  s.objects.allocations.add(m.id, o);
  if (m.flags) reply.put(wire::AllocationReply{m.device, compression_of(s, o.handle)});
}

uint64_t created(Session&, const Command& c, uint32_t* device) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::AllocationCreate>();
  *device = m.device;
  return d.ok() ? m.bytes : 0;
}

void destroy(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::AllocationId>();
  AllocationObject o;
  if (!d.ok() || s.objects.times_mapped.contains(m.id) || !s.objects.allocations.take(m.id, &o))
    return s.reject("AllocationDestroy names memory that is mapped or that there is not");
  Vgpu* v = s.use(o.device);
  std::lock_guard lock(v->mutex);
  end_share(s, *v, m.id);
  reply.status = s.driver.cuMemRelease(o.handle);
  if (o.shared)
    v->memory.give(MemoryUse::kOpened, o.bytes);
  else
    uncharge(s, *v, o.bytes);
}

// The vGPU whose window holds the range, with its context current; nullptr after a rejection.
Vgpu* window_of(Session& s, uint64_t address, uint64_t bytes) {
  for (size_t i = 0; i < s.vgpus.size(); ++i)
    if (in_window(*s.vgpus[i], address, bytes)) return s.use(static_cast<uint32_t>(i));
  s.reject("a memory command names a range outside the windows");
  return nullptr;
}

void map(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::AllocationMap>();
  AllocationObject o;
  if (!d.ok() || !s.objects.allocations.get(m.id, &o) || o.bytes != m.bytes)
    return s.reject("AllocationMap names memory that there is not");
  Vgpu* v = window_of(s, m.address, m.bytes);
  if (!v) return;
  std::lock_guard lock(v->mutex);
  if (!free_for_mapping(*v, m.address, m.bytes))
    return s.reject("AllocationMap names addresses that are already backed");
  reply.status = s.driver.cuMemMap(m.address, m.bytes, 0, o.handle, 0);
  if (reply.status != CUDA_SUCCESS) return;
  v->mappings.emplace(m.address, Vgpu::Mapping{m.bytes, o.handle, m.id, false});
  ++s.objects.times_mapped[m.id];
}

// The mapping that a command names by its exact range; the end of the list after a rejection.
std::map<uint64_t, Vgpu::Mapping>::iterator find_mapping(Session& s, Vgpu& v, uint64_t address,
                                                         uint64_t bytes) {
  const auto it = v.mappings.find(address);
  if (it != v.mappings.end() && it->second.bytes == bytes && it->second.allocation) return it;
  s.reject("a memory command names a mapping that there is not");
  return v.mappings.end();
}

void unmap(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::AllocationUnmap>();
  if (!d.ok()) return s.reject("AllocationUnmap is cut short");
  Vgpu* v = window_of(s, m.address, m.bytes);
  if (!v) return;
  std::lock_guard lock(v->mutex);
  const auto it = find_mapping(s, *v, m.address, m.bytes);
  if (it == v->mappings.end()) return;
  reply.status = s.driver.cuMemUnmap(m.address, m.bytes);
  const auto times = s.objects.times_mapped.find(it->second.allocation);
  if (--times->second == 0) s.objects.times_mapped.erase(times);
  v->mappings.erase(it);
}

void access(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::AllocationAccess>();
  if (!d.ok() || m.device >= s.vgpus.size() || m.flags > CU_MEM_ACCESS_FLAGS_PROT_READWRITE ||
      m.flags == 2)
    return s.reject("AllocationAccess names a vGPU or an access that there is not");
  Vgpu* v = window_of(s, m.address, m.bytes);
  if (!v) return;
  std::lock_guard lock(v->mutex);
  if (find_mapping(s, *v, m.address, m.bytes) == v->mappings.end()) return;
  CUmemAccessDesc desc{};
  desc.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  desc.location.id = s.vgpus[m.device]->gpu->ordinal;
  desc.flags = static_cast<CUmemAccess_flags>(m.flags);
  reply.status = s.driver.cuMemSetAccess(m.address, m.bytes, &desc, 1);
}

}  // namespace

void add_virtual_memory_handlers(DispatchTable& t) {
  t[wire::kAllocationCreate].run = create;
  t[wire::kAllocationCreate].takes = created;
  t[wire::kAllocationDestroy].run = destroy;
  t[wire::kAllocationMap].run = map;
  t[wire::kAllocationUnmap].run = unmap;
  t[wire::kAllocationAccess].run = access;
}

}  // namespace sluice::worker
