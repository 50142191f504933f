// SPDX-License-Identifier: Apache-2.0
// CUDA IPC: handles that another process of the same user, VM or job can open while its session is
// on the same GPU. A handle is a ticket with a random key; who may open it the server decides.
#include <cstring>

#include "client/core/addresses.h"
#include "client/core/device_memory.h"
#include "client/core/enter.h"
#include "client/core/session.h"
#include "client/driver/across_nodes.h"
#include "client/driver/transfer.h"
#include "client/driver/wait.h"
#include "client/objects/device.h"
#include "client/objects/event.h"

using namespace sluice::client;
namespace wire = sluice::wire;

namespace {

// What a CUipcEventHandle holds.
struct EventTicket {
  static constexpr uint64_t kMagic = 0x3174766563697073;  // "spicevt1"
  uint64_t magic = kMagic;
  wire::SharedEvent event{};
};
static_assert(sizeof(EventTicket) <= sizeof(CUipcEventHandle));

template <class Ticket, class Handle>
void seal(const Ticket& ticket, Handle* handle) {
  std::memset(handle, 0, sizeof *handle);
  std::memcpy(handle, &ticket, sizeof ticket);
}

template <class Ticket, class Handle>
Ticket unseal(const Handle& handle) {
  Ticket ticket;
  std::memcpy(static_cast<void*>(&ticket), &handle, sizeof ticket);
  return ticket;
}

template <class T>
std::span<std::byte> sink(T* answer) {
  return {reinterpret_cast<std::byte*>(answer), sizeof *answer};
}

bool makes_sense(const MemoryTicket& t, const Device& d) {
  return t.magic == MemoryTicket::kMagic && t.mapped_bytes != 0 &&
         t.mapped_bytes % DeviceMemory::kSlab == 0 && t.mapped_bytes <= d.record.window_bytes &&
         t.offset < t.mapped_bytes && t.bytes <= t.mapped_bytes - t.offset;
}

// Handles are good among the processes of one node: a session of several has no one place for them.
CUresult enter_sharing(Session** s, Device** d) {
  if (const CUresult e = enter(s, d); e != CUDA_SUCCESS) return e;
  return can_share(*s) ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace

extern "C" {

CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr pointer) {
  Session* s;
  Device* d;
  if (const CUresult e = enter_sharing(&s, &d); e != CUDA_SUCCESS) return e;
  AddressRange range;
  if (!handle || !find_range(s, pointer, &range) || !range.plain) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult e = s->fences.show_memory(); e != CUDA_SUCCESS) return e;
  wire::SharedMemory shared{};
  const CUresult e =
      s->ask(*range.device, wire::kShareMemory, wire::ShareMemory{range.start}, &shared);
  if (e != CUDA_SUCCESS) return e;
  MemoryTicket ticket;
  ticket.key = shared.key;
  ticket.mapped_bytes = shared.bytes;
  ticket.offset = range.start - shared.start;
  ticket.bytes = range.bytes;
  seal(ticket, handle);
  return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* pointer, CUipcMemHandle handle, unsigned int flags) {
  Session* s;
  Device* d;
  if (const CUresult e = enter_sharing(&s, &d); e != CUDA_SUCCESS) return e;
  const auto ticket = unseal<MemoryTicket>(handle);
  if (!pointer || flags & ~unsigned{CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS} || !makes_sense(ticket, *d))
    return CUDA_ERROR_INVALID_VALUE;
  uint64_t address = 0;
  const CUresult e = s->shared_memory.open(*d, ticket, &address);
  if (e == CUDA_SUCCESS) *pointer = address;
  return e;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr pointer) {
  Session* s;
  Device* d;
  if (const CUresult e = enter_sharing(&s, &d); e != CUDA_SUCCESS) return e;
  Device* owner = s->shared_memory.device_of(pointer);
  if (!owner) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult e = wait_unused(s, owner); e != CUDA_SUCCESS) return e;
  return s->shared_memory.close(pointer);
}

CUresult cuIpcGetEventHandle(CUipcEventHandle* handle, CUevent event) {
  Session* s;
  Device* d;
  if (const CUresult e = enter_sharing(&s, &d); e != CUDA_SUCCESS) return e;
  const Event* found = s->events.find(event);
  if (!found || !found->shared) return CUDA_ERROR_INVALID_HANDLE;
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  EventTicket ticket;
  const CUresult e = s->ask(*found->device, wire::kShareEvent,
                            wire::EventId{reinterpret_cast<uint64_t>(event)}, &ticket.event);
  if (e == CUDA_SUCCESS) seal(ticket, handle);
  return e;
}

CUresult cuIpcOpenEventHandle(CUevent* event, CUipcEventHandle handle) {
  Session* s;
  Device* d;
  if (const CUresult e = enter_sharing(&s, &d); e != CUDA_SUCCESS) return e;
  const auto ticket = unseal<EventTicket>(handle);
  if (!event || ticket.magic != EventTicket::kMagic) return CUDA_ERROR_INVALID_VALUE;
  uint64_t id;
  Event* made = s->events.create(&id);
  if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
  made->device = d;
  made->flags = CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
  made->shared = true;
  const CUresult e = s->exchange(wire::kOpenSharedEvent, wire::OpenSharedEvent{ticket.event, id},
                                 {}, {}, nullptr, nullptr, d->context());
  if (e != CUDA_SUCCESS)
    s->events.destroy(id);
  else
    *event = reinterpret_cast<CUevent>(id);
  return e;
}

}  // extern "C"
