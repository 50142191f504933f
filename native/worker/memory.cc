// SPDX-License-Identifier: Apache-2.0
// Device memory: backs the addresses that the client chose, in the session's accounts (rule 6).
// Every mapping is one the client will unmap as a whole.
#include "worker/memory.h"

#include <algorithm>

#include "process/log.h"
#include "worker/broker.h"
#include "worker/dispatch.h"
#include "worker/peer.h"

namespace sluice::worker {

bool in_window(const Vgpu& v, uint64_t address, uint64_t bytes) {
  const uint64_t at = address - v.window_begin;
  return bytes != 0 && bytes % kGranularity == 0 && address % kGranularity == 0 &&
         at < v.window_bytes && bytes <= v.window_bytes - at;
}

bool free_for_mapping(const Vgpu& v, uint64_t address, uint64_t bytes) {
  const auto next = v.mappings.lower_bound(address);
  const bool overlaps = (next != v.mappings.end() && next->first < address + bytes) ||
                        (next != v.mappings.begin() &&
                         std::prev(next)->first + std::prev(next)->second.bytes > address);
  return !overlaps && v.mappings.size() < kMaxMappings;
}

CUmemAllocationProp physical_memory_on(const Gpu& gpu) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = gpu.ordinal;
  return prop;
}

CUmemAccessDesc full_access_of(const Gpu& gpu) {
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = gpu.ordinal;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return access;
}

void uncharge(Session& s, Vgpu& v, uint64_t bytes) {
  const uint64_t given = v.memory.give(MemoryUse::kClient, bytes);
  if (!s.ledger) return;
  v.memory.drop_credit(given);
  s.ledger->give(GrantLedger::Kind::kMemory, v.grant_index, given);
}

bool may_take(Session& s, const Vgpu& v, uint64_t bytes, const char* what, Reply& reply) {
  // A well-behaved client cannot get here: it counts the same, and asks for credit in a job.
  const VgpuMemory& memory = v.memory;
  const uint64_t room = memory.room();
  if (bytes > (s.ledger ? room : memory.bytes() - memory.taken(MemoryUse::kClient))) {
    s.reject(std::string(what) + " asks for more than the vGPU's memory");
    return false;
  }
  if (bytes <= room) return true;
  process::log_error(std::string(what) + ": libraries have taken " +
                     std::to_string(memory.taken(MemoryUse::kLibrary)) +
                     " bytes of the vGPU's memory, so " + std::to_string(bytes) +
                     " more are not there");
  reply.status = CUDA_ERROR_OUT_OF_MEMORY;
  return false;
}

namespace {

bool check_range(Session& s, const Vgpu& v, const wire::MemoryMap& m) {
  if (in_window(v, m.address, m.bytes)) return true;
  s.reject("a memory command names a range outside its window");
  return false;
}

void map(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::MemoryMap>();
  if (!d.ok()) return s.reject("MemoryMap is cut short");
  Vgpu* v = s.use(m.device);
  if (!v || !check_range(s, *v, m)) return;
  std::lock_guard lock(v->mutex);
  if (!may_take(s, *v, m.bytes, "MemoryMap", reply)) return;
  if (!free_for_mapping(*v, m.address, m.bytes))
    return s.reject("MemoryMap names addresses that are already backed");

  CUmemGenericAllocationHandle handle;
  reply.status = map_new(s.driver, *v->gpu, m.address, m.bytes, &handle,
                         [&] { return set_usual_access(s, *v, m.address, m.bytes); });
  if (reply.status != CUDA_SUCCESS) return;
  v->mappings.emplace(m.address, Vgpu::Mapping{m.bytes, handle, 0, false});
  v->memory.take(MemoryUse::kClient, m.bytes);
}

uint64_t mapped(Session&, const Command& c, uint32_t* device) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::MemoryMap>();
  *device = m.device;
  return d.ok() ? m.bytes : 0;
}

void unmap(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::MemoryUnmap>();
  if (!d.ok()) return s.reject("MemoryUnmap is cut short");
  Vgpu* v = s.use(m.device);
  if (!v || !check_range(s, *v, m)) return;
  // The client waited until the device was idle before it gave the memory up; a hostile one that
  // did not harms its own context only.
  std::lock_guard lock(v->mutex);
  const auto it = v->mappings.find(m.address);
  if (it == v->mappings.end() || it->second.bytes != m.bytes || it->second.allocation ||
      it->second.shared)
    return s.reject("MemoryUnmap names addresses that are not backed so");
  end_share(s, *v, m.address);
  reply.status = s.driver.cuMemUnmap(m.address, m.bytes);
  if (reply.status == CUDA_SUCCESS) reply.status = s.driver.cuMemRelease(it->second.handle);
  uncharge(s, *v, m.bytes);
  v->mappings.erase(it);
}

void credit(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::MemoryCredit>();
  if (!d.ok()) return s.reject("MemoryCredit is cut short");
  Vgpu* v = s.use(m.device);
  if (!v) return;
  std::lock_guard lock(v->mutex);
  using Kind = GrantLedger::Kind;
  if (m.bytes != 0) {
    if (!s.ledger || !s.ledger->take(Kind::kMemory, v->grant_index, m.bytes, v->memory.bytes()))
      reply.status = CUDA_ERROR_OUT_OF_MEMORY;
    else
      v->memory.add_credit(m.bytes);
  }
  const uint64_t all = v->memory.bytes();
  const uint64_t used =
      s.ledger ? s.ledger->used(Kind::kMemory, v->grant_index) : v->memory.credit();
  reply.put(wire::MemoryCreditReply{all - std::min(all, used)});
}

void arena_register(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& a = d.fixed<wire::ArenaRegister>();
  const auto arena = s.endpoint().arena();
  const uint64_t offset = a.address - reinterpret_cast<uint64_t>(arena.data());
  if (!d.ok() || offset >= arena.size() || offset % wire::kArenaChunk ||
      a.bytes != std::min<uint64_t>(wire::kArenaChunk, arena.size() - offset))
    return s.reject("ArenaRegister names no piece of the arena");
  if (!s.use_context(c.header.context ? c.header.context : 1)) return;
  reply.status =
      s.driver.cuMemHostRegister_v2(reinterpret_cast<void*>(a.address), a.bytes,
                                    CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
}

void device_idle(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& i = d.fixed<wire::DeviceIdle>();
  if (!d.ok()) return s.reject("DeviceIdle is cut short");
  if (Vgpu* v = s.use(i.device)) reply.status = wait_idle(s, v);
}

}  // namespace

void add_memory_handlers(DispatchTable& t) {
  t[wire::kMemoryMap].run = map;
  t[wire::kMemoryMap].takes = mapped;
  t[wire::kMemoryUnmap].run = unmap;
  t[wire::kMemoryCredit].run = credit;
  t[wire::kArenaRegister].run = arena_register;
  t[wire::kDeviceIdle].run = device_idle;
}

}  // namespace sluice::worker
