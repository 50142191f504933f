// SPDX-License-Identifier: Apache-2.0
#include "worker/arena_view.h"

#include <sys/mman.h>

#include <algorithm>

#include "process/log.h"
#include "worker/session.h"

namespace sluice::worker {

uint64_t ArenaViews::whole(Session& s, uint64_t address, uint64_t bytes) {
  const auto arena = s.endpoint().arena();
  const auto base = reinterpret_cast<uint64_t>(arena.data());
  const uint64_t first = (address - base) / wire::kArenaChunk;
  const uint64_t last = (address + bytes - 1 - base) / wire::kArenaChunk;
  if (first == last) return address;
  const uint64_t begin = base + first * wire::kArenaChunk;
  const uint64_t end = std::min(base + (last + 1) * wire::kArenaChunk, base + arena.size());
  std::lock_guard lock(mutex_);
  for (const View& view : all_)
    if (view.begin <= begin && end <= view.begin + view.bytes)
      return view.at + (address - view.begin);
  if (all_.size() == kMost) return address;
  // An old size of nothing: the same pages again (mremap(2)).
  void* at = mremap(reinterpret_cast<void*>(begin), 0, end - begin, MREMAP_MAYMOVE);
  if (at == MAP_FAILED) return address;
  const CUresult e = s.driver.cuMemHostRegister_v2(
      at, end - begin, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
  if (e != CUDA_SUCCESS) {
    process::log_error("a second view of the arena: " + s.driver.error_text(e));
    munmap(at, end - begin);
    return address;
  }
  all_.push_back({begin, end - begin, reinterpret_cast<uint64_t>(at)});
  return all_.back().at + (address - begin);
}

uint64_t ArenaViews::original(uint64_t address) const {
  std::lock_guard lock(mutex_);
  for (const View& view : all_)
    if (address - view.at < view.bytes) return view.begin + (address - view.at);
  return address;
}

}  // namespace sluice::worker
