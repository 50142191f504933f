// SPDX-License-Identifier: Apache-2.0
#include "worker/memory_allowance.h"

#include "channel/futex.h"

namespace sluice::worker {

namespace {
constexpr auto kOrdered = std::memory_order_seq_cst;
constexpr uint64_t kWaitNs = 100'000'000;  // an arbiter that was started anew may have said nothing
}  // namespace

void MemoryAllowance::ask(uint32_t vgpu, uint64_t bytes) {
  words_.asked_of.store(vgpu, kOrdered);
  words_.asked.store(bytes, kOrdered);
}

bool MemoryAllowance::bounded(uint32_t vgpu) const {
  return vgpu < arbiter::kMemoryPlaces && words_.bounded.load(kOrdered) & 1u << vgpu;
}

bool MemoryAllowance::over(uint32_t vgpu) const {
  return bounded(vgpu) && words_.taken[vgpu].load(kOrdered) > words_.room[vgpu].load(kOrdered);
}

bool MemoryAllowance::may_take() const {
  const uint32_t vgpu = words_.asked_of.load(kOrdered);
  if (!bounded(vgpu)) return true;
  return words_.taken[vgpu].load(kOrdered) + words_.asked.load(kOrdered) <=
         words_.room[vgpu].load(kOrdered);
}

void MemoryAllowance::wait(uint32_t changes) const {
  channel::futex_wait(words_.changes, changes, kWaitNs);
}

}  // namespace sluice::worker
