// SPDX-License-Identifier: Apache-2.0
#include "softgpu/memory/allocations.h"

#include <iterator>

namespace sluice::softgpu {

Allocations& Allocations::instance() {
  static Allocations* allocations = new Allocations;
  return *allocations;
}

bool Allocations::add(Allocation allocation) {
  std::lock_guard lock(mutex_);
  auto next = by_base_.lower_bound(allocation.base);
  if (next != by_base_.end() && next->first < allocation.base + allocation.size) return false;
  if (next != by_base_.begin()) {
    auto previous = std::prev(next);
    if (previous->first + previous->second.size > allocation.base) return false;
  }
  allocation.id = next_id_++;
  by_base_.emplace(allocation.base, allocation);
  return true;
}

void Allocations::set_managed(uintptr_t base,
                              std::vector<std::pair<uintptr_t, uintptr_t>> variables) {
  std::lock_guard lock(mutex_);
  if (auto found = by_base_.find(base); found != by_base_.end())
    found->second.managed = std::move(variables);
}

std::optional<Allocation> Allocations::remove(uintptr_t base) {
  std::lock_guard lock(mutex_);
  auto found = by_base_.find(base);
  if (found == by_base_.end()) return std::nullopt;
  Allocation allocation = found->second;
  by_base_.erase(found);
  return allocation;
}

std::optional<Allocation> Allocations::find(uintptr_t address) {
  std::lock_guard lock(mutex_);
  auto after = by_base_.upper_bound(address);
  if (after == by_base_.begin()) return std::nullopt;
  const Allocation& allocation = std::prev(after)->second;
  if (address - allocation.base >= allocation.size) return std::nullopt;
  return allocation;
}

bool Allocations::covers(uintptr_t address, uint64_t size) {
  std::lock_guard lock(mutex_);
  auto it = by_base_.upper_bound(address);
  if (it == by_base_.begin()) return false;
  --it;
  while (it != by_base_.end() && it->first <= address) {
    uint64_t held = it->first + it->second.size;
    if (held <= address) return false;
    if (held - address >= size) return true;
    size -= held - address;
    address = held;
    ++it;
  }
  return false;
}

std::map<uintptr_t, Allocation> Allocations::of(const Context* context) {
  std::lock_guard lock(mutex_);
  std::map<uintptr_t, Allocation> result;
  for (const auto& [base, allocation] : by_base_) {
    if (allocation.context == context) result.emplace(base, allocation);
  }
  return result;
}

}  // namespace sluice::softgpu
