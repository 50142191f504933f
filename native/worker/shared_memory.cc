// SPDX-License-Identifier: Apache-2.0
// CUDA IPC for memory: a mapping's descriptor goes to the server under a random key; whoever opens
// the key maps the same memory into a window of its own. Allocations of the virtual memory API go
// the same way, without addresses. Opened memory stays charged to the session
// that allocated it; how much a vGPU may open is bounded by its own size.
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "process/log.h"
#include "worker/broker.h"
#include "worker/dispatch.h"
#include "worker/memory.h"
#include "worker/peer.h"

namespace sluice::worker {

namespace {

struct Found {
  Vgpu* v = nullptr;
  uint64_t start = 0, bytes = 0;
  CUmemGenericAllocationHandle handle = 0;
  bool exported = false;
  wire::ShareKey key{};
};

// The slab mapping that contains the address. The virtual memory API's memory and what another
// session shared cannot be shared in this way.
Found find(Session& s, uint64_t address) {
  for (auto& v : s.vgpus) {
    if (address - v->window_begin >= v->window_bytes) continue;
    std::lock_guard lock(v->mutex);
    auto it = v->mappings.upper_bound(address);
    if (it == v->mappings.begin()) return {};
    --it;
    if (address - it->first >= it->second.bytes || it->second.allocation || it->second.shared)
      return {};
    Found f{v.get(), it->first, it->second.bytes, it->second.handle, false, {}};
    const auto key = v->exported.find(it->first);
    if (key != v->exported.end()) f.exported = true, f.key = key->second;
    return f;
  }
  return {};
}

// Puts memory under a new key; false: the reply says why not.
bool offer(Session& s, const Vgpu& v, CUmemGenericAllocationHandle handle, uint64_t bytes,
           wire::ShareKey* key, Reply& reply) {
  SharedThing thing{"memory", uuid_text(v.gpu->uuid), bytes, -1};
  reply.status = s.driver.cuMemExportToShareableHandle(&thing.fd, handle,
                                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  if (reply.status != CUDA_SUCCESS) return false;
  *key = random_key();
  std::string why;
  const bool done = s.broker->share(*key, thing, &why);
  ::close(thing.fd);
  if (done) return true;
  process::log_error("memory cannot be shared with other processes: " + why);
  reply.status = CUDA_ERROR_OPERATING_SYSTEM;
  return false;
}

// Under the vGPU's mutex: the key that it goes by, ours or that of a thread which was first.
wire::ShareKey keep(Session& s, Vgpu& v, uint64_t name, const wire::ShareKey& key) {
  const auto [mine, first] = v.exported.emplace(name, key);
  if (!first) s.broker->unshare(key);
  return mine->second;
}

// Under the vGPU's mutex: whether it may open so much more; the reply says if not.
bool may_open(const Vgpu& v, uint64_t bytes, Reply& reply) {
  if (bytes <= v.memory.left(MemoryUse::kOpened)) return true;
  process::log_error(
      "memory of other processes is open up to this vGPU's own size: no more is opened");
  reply.status = CUDA_ERROR_OUT_OF_MEMORY;
  return false;
}

// The vGPU on the GPU that the memory lies on; nullptr, logged, if the session has none.
Vgpu* holder_of(Session& s, const SharedThing& thing) {
  for (auto& v : s.vgpus)
    if (uuid_text(v->gpu->uuid) == thing.gpu) return v.get();
  process::log_error("memory of another process cannot be opened: it lies on " + thing.gpu +
                     ", of which this session has no vGPU");
  return nullptr;
}

void share(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::ShareMemory>();
  if (!d.ok()) return s.reject("ShareMemory is cut short");
  Found f = find(s, m.address);
  if (!f.v) return void(reply.status = CUDA_ERROR_INVALID_VALUE);
  if (!f.exported) {
    if (!s.broker) return void(reply.status = CUDA_ERROR_NOT_SUPPORTED);
    s.use(f.v->index);
    if (!offer(s, *f.v, f.handle, f.bytes, &f.key, reply)) return;
    std::lock_guard lock(f.v->mutex);
    const auto it = f.v->mappings.find(f.start);
    // Meanwhile another thread may have freed it, or shared it.
    if (it == f.v->mappings.end() || it->second.handle != f.handle) {
      s.broker->unshare(f.key);
      return void(reply.status = CUDA_ERROR_INVALID_VALUE);
    }
    f.key = keep(s, *f.v, f.start, f.key);
  }
  reply.put(wire::SharedMemory{f.key, f.start, f.bytes});
}

// Whether the session itself shared it; if so and it is slabs, `thing` has another descriptor of
// it.
bool is_own(Session& s, const wire::ShareKey& key, SharedThing* thing) {
  for (auto& v : s.vgpus) {
    std::lock_guard lock(v->mutex);
    for (const auto& [address, own] : v->exported) {
      if (own != key) continue;
      const auto it = v->mappings.find(address);
      if (it == v->mappings.end()) return true;  // an allocation of the virtual memory API
      *thing = {"memory", uuid_text(v->gpu->uuid), it->second.bytes, -1};
      s.use(v->index);
      if (s.driver.cuMemExportToShareableHandle(&thing->fd, it->second.handle,
                                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                                0) != CUDA_SUCCESS)
        thing->fd = -1;
      return true;
    }
  }
  return false;
}

CUresult import(Session& s, Vgpu& v, const wire::OpenShared& m, int fd) {
  s.ties.tie(Tie::kOpenedMemory);
  CUmemGenericAllocationHandle handle;
  CUresult e = s.driver.cuMemImportFromShareableHandle(
      &handle, reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (e != CUDA_SUCCESS) return e;
  e = s.driver.cuMemMap(m.address, m.bytes, 0, handle, 0);
  if (e == CUDA_SUCCESS) {
    e = set_usual_access(s, v, m.address, m.bytes);
    if (e != CUDA_SUCCESS) s.driver.cuMemUnmap(m.address, m.bytes);
  }
  if (e != CUDA_SUCCESS) {
    s.driver.cuMemRelease(handle);
    return e;
  }
  v.mappings.emplace(m.address, Vgpu::Mapping{m.bytes, handle, 0, true});
  v.memory.take(MemoryUse::kOpened, m.bytes);
  return CUDA_SUCCESS;
}

void open(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::OpenShared>();
  if (!d.ok()) return s.reject("OpenShared is cut short");
  Vgpu* v = s.use(m.device);
  if (!v) return;
  if (!in_window(*v, m.address, m.bytes))
    return s.reject("OpenShared names a range outside its window");
  if (m.flags & ~wire::kOwnToo) return s.reject("OpenShared has a flag that there is not");
  if (!s.broker) return void(reply.status = CUDA_ERROR_NOT_SUPPORTED);
  SharedThing thing;
  std::string why;
  if (is_own(s, m.key, &thing)) {
    if (!m.flags || thing.fd < 0) {
      if (thing.fd >= 0) ::close(thing.fd);
      return void(reply.status = CUDA_ERROR_INVALID_CONTEXT);
    }
    s.use(m.device);
  } else if (!s.broker->fetch(m.key, "memory", &thing, &why)) {
    process::log_error("memory of another process cannot be opened: " + why);
    return void(reply.status = CUDA_ERROR_INVALID_VALUE);
  }
  reply.status = CUDA_ERROR_INVALID_VALUE;
  if (holder_of(s, thing) && thing.bytes == m.bytes) {
    std::lock_guard lock(v->mutex);
    if (may_open(*v, m.bytes, reply)) {
      if (free_for_mapping(*v, m.address, m.bytes))
        reply.status = import(s, *v, m, thing.fd);
      else
        s.reject("OpenShared names addresses that are already backed");
    }
  }
  ::close(thing.fd);
}

// ---- allocations of the virtual memory API

// Offers it under a key, once.
void share_allocation(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::AllocationId>();
  AllocationObject o;
  if (!d.ok() || !s.objects.allocations.get(m.id, &o))
    return s.reject("ShareAllocation names memory that there is not");
  Vgpu* v = s.use(o.device);
  if (!v) return;
  if (!s.broker) return void(reply.status = CUDA_ERROR_NOT_SUPPORTED);
  {
    std::lock_guard lock(v->mutex);
    if (const auto known = v->exported.find(m.id); known != v->exported.end())
      return reply.put(wire::SharedMemory{known->second, 0, o.bytes});
  }
  wire::ShareKey key;
  if (!offer(s, *v, o.handle, o.bytes, &key, reply)) return;
  std::lock_guard lock(v->mutex);
  // Meanwhile another thread may have released it, or shared it.
  AllocationObject now;
  if (!s.objects.allocations.get(m.id, &now) || now.handle != o.handle) {
    s.broker->unshare(key);
    return void(reply.status = CUDA_ERROR_INVALID_VALUE);
  }
  reply.put(wire::SharedMemory{keep(s, *v, m.id, key), 0, o.bytes});
}

// The descriptor behind a key: of this session's own memory without a way around.
bool fetch(Session& s, const wire::ShareKey& key, SharedThing* thing) {
  for (auto& v : s.vgpus) {
    std::lock_guard lock(v->mutex);
    for (const auto& [id, own] : v->exported) {
      AllocationObject o;
      if (own != key || !s.objects.allocations.get(id, &o)) continue;
      *thing = {"memory", uuid_text(v->gpu->uuid), o.bytes, -1};
      s.use(v->index);
      return s.driver.cuMemExportToShareableHandle(
                 &thing->fd, o.handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) == CUDA_SUCCESS;
    }
  }
  std::string why;
  if (s.broker && s.broker->fetch(key, "memory", thing, &why)) return true;
  process::log_error("memory of another process cannot be opened: " + why);
  return false;
}

void open_allocation(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::OpenAllocation>();
  if (!d.ok() || m.bytes == 0 || m.bytes % kGranularity || !s.objects.allocations.has_room(m.id))
    return s.reject("OpenAllocation mints no id that is free, or no whole slabs");
  SharedThing thing;
  reply.status = CUDA_ERROR_INVALID_VALUE;
  if (!fetch(s, m.key, &thing)) return;
  Vgpu* v = holder_of(s, thing);
  if (v && thing.bytes == m.bytes && s.use(v->index)) {
    std::lock_guard lock(v->mutex);
    AllocationObject o;
    o.device = v->index;
    o.bytes = m.bytes;
    o.shared = true;
    if (may_open(*v, m.bytes, reply)) {
      s.ties.tie(Tie::kOpenedMemory);
      reply.status = s.driver.cuMemImportFromShareableHandle(
          &o.handle, reinterpret_cast<void*>(static_cast<intptr_t>(thing.fd)),
          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    }
    if (reply.status == CUDA_SUCCESS && !s.objects.allocations.add(m.id, o)) {
      s.driver.cuMemRelease(o.handle);
      s.reject("OpenAllocation mints no id that is free");
    } else if (reply.status == CUDA_SUCCESS) {
      v->memory.take(MemoryUse::kOpened, m.bytes);
      reply.put(wire::AllocationReply{v->index, compression_of(s, o.handle)});
    }
  }
  ::close(thing.fd);
}

void close_shared(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::CloseShared>();
  if (!d.ok()) return s.reject("CloseShared is cut short");
  Vgpu* v = s.use(m.device);
  if (!v) return;
  std::lock_guard lock(v->mutex);
  const auto it = v->mappings.find(m.address);
  if (it == v->mappings.end() || it->second.bytes != m.bytes || !it->second.shared)
    return s.reject("CloseShared names memory that was not opened");
  reply.status = s.driver.cuMemUnmap(m.address, m.bytes);
  if (reply.status == CUDA_SUCCESS) reply.status = s.driver.cuMemRelease(it->second.handle);
  v->memory.give(MemoryUse::kOpened, m.bytes);
  v->mappings.erase(it);
}

}  // namespace

std::string key_text(const wire::ShareKey& key) {
  char text[40];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(key.words[0]),
                static_cast<unsigned long long>(key.words[1]));
  return text;
}

wire::ShareKey random_key() {
  wire::ShareKey key{};
  // Without randomness a key would be no protection.
  if (getrandom(key.words, sizeof key.words, 0) != sizeof key.words) std::abort();
  return key;
}

void end_share(Session& s, Vgpu& v, uint64_t address) {
  const auto it = v.exported.find(address);
  if (it == v.exported.end()) return;
  s.broker->unshare(it->second);
  v.exported.erase(it);
}

void add_shared_memory_handlers(DispatchTable& t) {
  t[wire::kShareMemory].run = share;
  t[wire::kOpenShared].run = open;
  t[wire::kShareAllocation].run = share_allocation;
  t[wire::kOpenAllocation].run = open_allocation;
  t[wire::kCloseShared].run = close_shared;
}

}  // namespace sluice::worker
