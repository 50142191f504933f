// SPDX-License-Identifier: Apache-2.0
// Peer access between the vGPUs of one session. As the client's memory is mapped by the virtual
// memory API, enabling a peer is access for its GPU on every mapping of the window, present and
// future; what the virtual memory API's own calls mapped keeps the access that those gave it. The
// driver is told too: code's globals and what libraries allocate are its own.
#include "worker/peer.h"

#include "worker/dispatch.h"
#include "worker/memory.h"

namespace sluice::worker {

namespace {

bool same_gpu(const Vgpu& a, const Vgpu& b) { return a.gpu == b.gpu; }

// Whether some vGPU on the GPU of `who` keeps its access to the memory of `owner`.
bool still_used(const Session& s, const Vgpu& owner, const Vgpu& who) {
  if (same_gpu(owner, who)) return true;
  for (size_t i = 0; i < s.vgpus.size(); ++i)
    if (owner.users >> i & 1 && same_gpu(*s.vgpus[i], who)) return true;
  return false;
}

CUresult set_access(Session& s, const Vgpu& owner, const Vgpu& who, CUmemAccess_flags flags) {
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = who.gpu->ordinal;
  access.flags = flags;
  for (const auto& [address, mapping] : owner.mappings) {
    if (mapping.allocation) continue;
    const CUresult e = s.driver.cuMemSetAccess(address, mapping.bytes, &access, 1);
    if (e != CUDA_SUCCESS) return e;
  }
  return CUDA_SUCCESS;
}

CUresult enable(Session& s, Vgpu& owner, const Vgpu& who, uint64_t bit) {
  if (!still_used(s, owner, who)) {
    CUresult e = s.driver.cuCtxEnablePeerAccess(owner.gpu->context, 0);
    if (e == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) e = CUDA_SUCCESS;
    if (e == CUDA_SUCCESS) e = set_access(s, owner, who, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    if (e != CUDA_SUCCESS) return e;
  }
  owner.users |= bit;
  return CUDA_SUCCESS;
}

CUresult disable(Session& s, Vgpu& owner, const Vgpu& who, uint64_t bit) {
  owner.users &= ~bit;
  if (still_used(s, owner, who)) return CUDA_SUCCESS;
  const CUresult e = s.driver.cuCtxDisablePeerAccess(owner.gpu->context);
  if (e != CUDA_SUCCESS && e != CUDA_ERROR_PEER_ACCESS_NOT_ENABLED) return e;
  return set_access(s, owner, who, CU_MEM_ACCESS_FLAGS_PROT_NONE);
}

void peer_access(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::PeerAccess>();
  if (!d.ok() || m.enable > 1 || m.peer >= s.vgpus.size() || m.peer == m.device)
    return s.reject("PeerAccess names no two vGPUs of the session");
  const Vgpu* who = s.use(m.device);
  if (!who) return;
  Vgpu& owner = *s.vgpus[m.peer];
  const uint64_t bit = 1ull << m.device;
  std::lock_guard lock(owner.mutex);
  if (m.enable == (owner.users >> m.device & 1)) return;
  reply.status = m.enable ? enable(s, owner, *who, bit) : disable(s, owner, *who, bit);
}

}  // namespace

PeerLink peer_link(const Driver& driver, const Gpu& from, const Gpu& to) {
  if (&from == &to) return {true, true, 0};
  PeerLink link;
  int value = 0;
  link.access =
      driver.cuDeviceCanAccessPeer(&value, from.ordinal, to.ordinal) == CUDA_SUCCESS && value != 0;
  const auto attribute = [&](CUdevice_P2PAttribute a) {
    int got = 0;
    return driver.cuDeviceGetP2PAttribute(&got, a, from.ordinal, to.ordinal) == CUDA_SUCCESS ? got
                                                                                             : 0;
  };
  link.atomics = attribute(CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED) != 0;
  link.rank = static_cast<uint8_t>(attribute(CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK));
  return link;
}

CUresult set_usual_access(Session& s, const Vgpu& owner, uint64_t address, uint64_t bytes) {
  std::vector<CUmemAccessDesc> all;
  const auto add = [&](const Vgpu& v) {
    for (const auto& known : all)
      if (known.location.id == v.gpu->ordinal) return;
    all.push_back(full_access_of(*v.gpu));
  };
  add(owner);
  for (size_t i = 0; i < s.vgpus.size(); ++i)
    if (owner.users >> i & 1) add(*s.vgpus[i]);
  return s.driver.cuMemSetAccess(address, bytes, all.data(), all.size());
}

void add_peer_handlers(DispatchTable& t) { t[wire::kPeerAccess].run = peer_access; }

}  // namespace sluice::worker
