// SPDX-License-Identifier: Apache-2.0
// Peer access between the vGPUs of the session. Who can be whose peer came with the session; what
// is enabled is this process's own knowledge, told to the worker. Two vGPUs on one GPU are peers.
#include "client/driver/peer.h"

#include <utility>

#include "client/core/enter.h"
#include "client/core/session.h"
#include "client/driver/transfer.h"
#include "client/driver/wait.h"
#include "client/objects/context.h"
#include "client/objects/device.h"

using namespace sluice::client;
namespace wire = sluice::wire;

namespace {

CUresult find(CUdevice ordinal, Session** s, Device** device) {
  if (const CUresult e = enter_query(s); e != CUDA_SUCCESS) return e;
  auto& all = (*s)->devices();
  if (ordinal < 0 || static_cast<size_t>(ordinal) >= all.size()) return CUDA_ERROR_INVALID_DEVICE;
  *device = all[static_cast<size_t>(ordinal)].get();
  return CUDA_SUCCESS;
}

// The devices of the current context and of another one.
CUresult pair(CUcontext peer, Session** s, Device** d, Device** p) {
  if (const CUresult e = enter(s, d); e != CUDA_SUCCESS) return e;
  const Context* c = (*s)->contexts.find(peer);
  if (!c || c->device == *d) return CUDA_ERROR_INVALID_CONTEXT;
  *p = c->device;
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuDeviceCanAccessPeer(int* can, CUdevice dev, CUdevice peer) {
  Session* s;
  Device *d, *p;
  if (const CUresult e = find(dev, &s, &d); e != CUDA_SUCCESS) return e;
  if (const CUresult e = find(peer, &s, &p); e != CUDA_SUCCESS) return e;
  if (!can) return CUDA_ERROR_INVALID_VALUE;
  *can = d->record.peers >> p->index & 1;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attribute, CUdevice dev,
                                 CUdevice peer) {
  Session* s;
  Device *d, *p;
  if (const CUresult e = find(dev, &s, &d); e != CUDA_SUCCESS) return e;
  if (const CUresult e = find(peer, &s, &p); e != CUDA_SUCCESS) return e;
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  if (d == p) return CUDA_ERROR_INVALID_DEVICE;
  switch (attribute) {
    case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK:
      *value = d->record.peer_rank[p->index];
      return CUDA_SUCCESS;
    case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
      *value = d->record.peers >> p->index & 1;
      return CUDA_SUCCESS;
    case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
      *value = d->record.peer_atomics >> p->index & 1;
      return CUDA_SUCCESS;
    default:
      *value = 0;  // arrays of a peer, and atomics in part only
      return attribute <= CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED
                 ? CUDA_SUCCESS
                 : CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags) {
  Session* s;
  Device *d, *p;
  if (const CUresult e = pair(peer, &s, &d, &p); e != CUDA_SUCCESS) return e;
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (!(d->record.peers >> p->index & 1)) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  const uint64_t bit = 1ull << p->index;
  if (d->peers_enabled.fetch_or(bit) & bit) return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
  const CUresult e = use_memory_of(s, d, p);
  if (e != CUDA_SUCCESS) d->peers_enabled.fetch_and(~bit);
  return e;
}

CUresult cuCtxDisablePeerAccess(CUcontext peer) {
  Session* s;
  Device *d, *p;
  if (const CUresult e = pair(peer, &s, &d, &p); e != CUDA_SUCCESS) return e;
  const uint64_t bit = 1ull << p->index;
  if (!(d->peers_enabled.fetch_and(~bit) & bit)) return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
  // A pool of the peer's may have been opened to this device, and its memory lies in that window.
  if (p->pool_users.load() >> d->index & 1) return CUDA_SUCCESS;
  // What still runs here was given its work while it had access.
  if (const CUresult e = wait_idle(s, d); e != CUDA_SUCCESS) return e;
  return s->ask(*d, wire::kPeerAccess, wire::PeerAccess{d->place.index, p->place.index, 0, 0});
}

}  // extern "C"

namespace sluice::client {

CUresult use_memory_of(Session* s, Device* user, Device* owner) {
  owner->users.fetch_or(1ull << user->index);
  return s->ask(*user, wire::kPeerAccess,
                wire::PeerAccess{user->place.index, owner->place.index, 1, 0});
}

}  // namespace sluice::client
