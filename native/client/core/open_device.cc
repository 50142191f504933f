// SPDX-License-Identifier: Apache-2.0
#include "client/core/open_device.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "client/core/session.h"
#include "client/core/stream_order.h"
#include "client/objects/context.h"
#include "client/objects/device.h"
#include "client/objects/pool.h"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

namespace sluice::client {

namespace {

// Nothing of this process may lie where device addresses are: a pointer's value alone says what it
// is.
bool reserve_window(const wire::DeviceRecord& record, std::string* error) {
  void* window = reinterpret_cast<void*>(record.window_begin);
  void* got = mmap(window, record.window_bytes, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
  if (got != window) {
    *error = "the vGPU's address window cannot be reserved in this process: " +
             std::string(std::strerror(errno));
    return false;
  }
  madvise(window, record.window_bytes, MADV_DONTFORK);
  return true;
}

DeviceMemory::Result ask_for_credit(Session* s, const Device& d, uint64_t bytes, uint64_t* left) {
  wire::MemoryCreditReply reply{};
  const CUresult e =
      s->ask(d, wire::kMemoryCredit, wire::MemoryCredit{d.place.index, 0, bytes}, &reply);
  *left = reply.free_bytes;
  return e == CUDA_SUCCESS               ? DeviceMemory::Result::kDone
         : e == CUDA_ERROR_OUT_OF_MEMORY ? DeviceMemory::Result::kOutOfMemory
                                         : DeviceMemory::Result::kSessionLost;
}

}  // namespace

std::unique_ptr<Device> open_device(Session* s, uint32_t index, const wire::DeviceRecord& record,
                                    bool shares_memory, std::string* error) {
  if (!reserve_window(record, error)) return nullptr;
  auto d = std::make_unique<Device>();
  d->index = index;
  d->place = s->channel().place_of(index);
  d->record = record;
  // Ours (managed/memory.h), whatever the node's driver can do.
  d->record.attributes[CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY] = d->place.node == 0;
  for (const CUdevice_attribute a : {CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED,
                                     CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED})
    d->record.attributes[a] = 1;  // the same
  const auto tell = [s, own = d.get()](uint16_t function) {
    return [s, own, function](uint64_t address, uint64_t bytes) {
      return s->tell(*own, function, wire::MemoryMap{own->place.index, 0, address, bytes}) ==
             CUDA_SUCCESS;
    };
  };
  DeviceMemory::Sink sink{tell(wire::kMemoryMap), tell(wire::kMemoryUnmap), {}};
  if (shares_memory)
    sink.credit = [s, own = d.get()](uint64_t bytes, uint64_t* left) {
      return ask_for_credit(s, *own, bytes, left);
    };
  d->memory.open(record.window_begin, record.window_bytes, record.memory_bytes, std::move(sink),
                 shares_memory ? nullptr : s->channel().memory_used(index));
  d->thread_bytes = record.thread_bytes ? record.thread_bytes : ~uint64_t{0};
  d->legacy.device = d->gone.device = d.get();
  d->pools.open(&d->memory, std::make_unique<DeviceOrder>(*s, *d));
  d->graph_memory.open(s, d.get());
  *s->pools.create(&d->standard_pool) = {d.get(), d->pools.standard()};
  d->current_pool = d->standard_pool;
  *s->contexts.create(&d->primary) = {d.get(), 0, true};
  return d;
}

}  // namespace sluice::client
