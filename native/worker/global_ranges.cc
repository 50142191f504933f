// SPDX-License-Identifier: Apache-2.0
#include "worker/global_ranges.h"

namespace sluice::worker {

void GlobalRanges::add(uint64_t address, uint64_t bytes, uint64_t code) {
  std::lock_guard lock(mutex_);
  ranges_[address] = {bytes, code};
}

void GlobalRanges::drop_of(uint64_t code) {
  std::lock_guard lock(mutex_);
  std::erase_if(ranges_, [&](const auto& range) { return range.second.code == code; });
}

bool GlobalRanges::holds(uint64_t address, uint64_t bytes) const {
  std::lock_guard lock(mutex_);
  auto it = ranges_.upper_bound(address);
  if (it == ranges_.begin()) return false;
  --it;
  const uint64_t at = address - it->first;
  return at < it->second.bytes && bytes <= it->second.bytes - at;
}

}  // namespace sluice::worker
