// SPDX-License-Identifier: Apache-2.0
// What programs say of managed memory beside touching it: to which stream it is attached, where it
// is wanted, what is advised.
#include <algorithm>

#include "client/core/session.h"
#include "client/managed/allocation.h"
#include "client/managed/memory.h"
#include "client/objects/device.h"
#include "client/objects/stream.h"

namespace sluice::client {

namespace {

// Whether [address, address + bytes) lies in it; 0 bytes: all of it, from its start.
bool lies_in(const ManagedAllocation& a, uint64_t address, uint64_t bytes) {
  return bytes <= a.end() - address && (bytes != 0 || address == a.start());
}

}  // namespace

CUresult ManagedMemory::attach(Stream* stream, uint64_t address, uint64_t bytes, unsigned flags) {
  using enum ManagedAllocation::Attached;
  const Lock lock(*this);
  ManagedAllocation* a = may_contain(address) ? at(address) : nullptr;
  // CUDA attaches whole allocations only.
  if (!a || address != a->start() || (bytes != 0 && bytes != a->asked))
    return CUDA_ERROR_INVALID_VALUE;
  // What has been given until now may touch it as it was attached until now.
  if (a->attached == kGlobal || a->attached == kSingle)
    a->other_work = std::max(a->other_work, works_.load()), a->other_stream = 0;
  if (flags == CU_MEM_ATTACH_SINGLE && !stream->wire_id) return CUDA_ERROR_INVALID_VALUE;
  a->attached = flags == CU_MEM_ATTACH_GLOBAL ? kGlobal
                : flags == CU_MEM_ATTACH_HOST ? kHost
                                              : kSingle;
  a->stream = a->attached == kSingle ? stream->wire_id : 0;
  return CUDA_SUCCESS;
}

CUresult ManagedMemory::prefetch_to_host(uint64_t address, uint64_t bytes) {
  {
    const Lock lock(*this);
    ManagedAllocation* a = may_contain(address) ? at(address) : nullptr;
    if (!a || bytes == 0 || !lies_in(*a, address, bytes)) return CUDA_ERROR_INVALID_VALUE;
    prefetches_.push_back({address, bytes});
    prefetches_wait_ = true;
  }
  after_wait();
  return CUDA_SUCCESS;
}

CUresult ManagedMemory::advise(uint64_t address, uint64_t bytes,
                               const std::function<void(Advice*)>& change) {
  const Lock lock(*this);
  ManagedAllocation* a = may_contain(address) ? at(address) : nullptr;
  if (!a || bytes == 0 || !lies_in(*a, address, bytes)) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t from = address / ManagedPages::kPage * ManagedPages::kPage;
  const uint64_t to = wire::round_up(address + bytes, ManagedPages::kPage);
  std::vector<IntervalMap<Advice>::Run> runs;
  a->advised().for_each(from, to, [&](const auto& run) { runs.push_back(run); });
  for (auto& run : runs) {
    change(&run.value);
    a->advised().set(run.from, run.to, run.value);
  }
  return CUDA_SUCCESS;
}

bool ManagedMemory::advice(uint64_t address, uint64_t bytes,
                           const std::function<void(const Advice&)>& each) {
  const Lock lock(*this);
  ManagedAllocation* a = may_contain(address) ? at(address) : nullptr;
  if (!a || bytes == 0 || !lies_in(*a, address, bytes)) return false;
  const uint64_t from = address / ManagedPages::kPage * ManagedPages::kPage;
  const uint64_t to = wire::round_up(address + bytes, ManagedPages::kPage);
  a->advised().for_each(from, to, [&](const auto& run) { each(run.value); });
  return true;
}

}  // namespace sluice::client
