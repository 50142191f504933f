// SPDX-License-Identifier: Apache-2.0
#include "client/core/addresses.h"

#include "client/core/session.h"
#include "client/objects/device.h"

namespace sluice::client {

Device* device_of_address(Session* s, uint64_t address) {
  for (auto& d : s->devices())
    if (d->memory.in_window(address)) return d.get();
  return nullptr;
}

bool is_device_address(Session* s, uint64_t address) {
  ModuleGlobal global;
  return device_of_address(s, address) || s->module_globals.find(address, 1, &global);
}

bool find_range(Session* s, uint64_t address, AddressRange* range) {
  Device* d = device_of_address(s, address);
  if (!d) return false;
  range->device = d;
  if (ManagedMemory::Found found; s->managed.any() && s->managed.find(address, &found)) {
    range->start = found.start;
    range->bytes = found.bytes;
    return range->managed = true;
  }
  range->plain = d->memory.find(address, &range->start, &range->bytes);
  if (range->plain) return true;
  range->pooled = d->pools.find(address, &range->start, &range->bytes);
  if (range->pooled) return true;
  range->graphs = d->graph_memory.find(address, &range->start, &range->bytes);
  if (range->graphs || s->shared_memory.find(address, &range->start, &range->bytes)) return true;
  range->imported = s->imported_pools.find(address, &range->start, &range->bytes);
  if (range->imported) return true;
  VirtualMemory::Mapping mapping;
  if (!s->virtual_memory.find(address, &range->start, &mapping)) return false;
  range->device = mapping.device;
  range->bytes = mapping.bytes;
  return true;
}

bool is_backed(Session* s, uint64_t address, uint64_t bytes, const Device* user) {
  if (Device* d = device_of_address(s, address))
    return d->memory.covers(address, bytes) && (!user || d->place.node == user->place.node);
  if (s->host_memory().in_arena(reinterpret_cast<void*>(address), bytes)) return true;
  ModuleGlobal global;
  return user ? s->module_globals.find(address, bytes, user->place.node, &global)
              : s->module_globals.find(address, bytes, &global);
}

}  // namespace sluice::client
