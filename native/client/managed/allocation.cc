// SPDX-License-Identifier: Apache-2.0
#include "client/managed/allocation.h"

#include <sys/mman.h>

#include <algorithm>
#include <string>
#include <utility>

#include "client/core/enter.h"
#include "client/core/log.h"
#include "client/core/session.h"
#include "client/driver/transfer.h"
#include "client/managed/memory.h"
#include "client/objects/stream.h"

namespace sluice::client {

namespace {

// What goes inside of commands and answers over every channel: no staging piece is taken, which
// somebody may hold who waits for this thread.
constexpr uint64_t kSmall = 4096;

// One piece through the ordinary copies, or in small ones where the staging pieces are taken.
template <class F>
CUresult in_pieces(Session& s, uint64_t bytes, F copy) {
  bool free = !ManagedMemory::runs_host_function() && s.host_memory().staging_lock.try_lock();
  if (free) s.host_memory().staging_lock.unlock();
  if (free || !s.marks()) return copy(0, bytes);
  for (uint64_t done = 0; done < bytes; done += kSmall)
    if (const CUresult e = copy(done, std::min(kSmall, bytes - done)); e != CUDA_SUCCESS) return e;
  return CUDA_SUCCESS;
}

// Pages move for Sluice's own sake: to a profiler they are none of the call that they move in.
class OfNoCall {
 public:
  OfNoCall() : kept_(std::exchange(thread_state().call, {})) {}
  ~OfNoCall() { thread_state().call = kept_; }
  OfNoCall(const OfNoCall&) = delete;
  OfNoCall& operator=(const OfNoCall&) = delete;

 private:
  const CallMark kept_;
};

// With the session its memory is gone: the program keeps what it saw last, and every call tells it.
bool lost(Session& s) {
  if (s.sticky() == CUDA_SUCCESS) return false;
  log_once(LogLevel::kError,
           "managed memory is no longer the device's: CUDA has reported an error that ends the "
           "session, and the program reads what it saw last");
  return true;
}

}  // namespace

template <class F>
bool ManagedAllocation::for_bytes(uint64_t at, uint64_t bytes, F f) const {
  if (extents.empty()) return f(at, bytes);
  for (const Extent& e : extents) {
    const uint64_t from = std::max(at, e.start), to = std::min(at + bytes, e.start + e.bytes);
    if (from < to && !f(from, to - from)) return false;
  }
  return true;
}

bool ManagedAllocation::fetch(uint64_t at, uint64_t bytes) {
  const OfNoCall unseen;
  const bool done = for_bytes(at, bytes, [&](uint64_t from, uint64_t count) {
    return in_pieces(session, count, [&](uint64_t offset, uint64_t part) {
             return copy_to_host(&session, mover, mapping.second(from + offset), part,
                                 {from + offset, part}, Rect{part, 1}, true);
           }) == CUDA_SUCCESS;
  });
  return done || lost(session);
}

bool ManagedAllocation::store(uint64_t at, uint64_t bytes) {
  const OfNoCall unseen;
  const bool done = for_bytes(at, bytes, [&](uint64_t from, uint64_t count) {
    return in_pieces(session, count, [&](uint64_t offset, uint64_t part) {
             return copy_to_device(&session, mover, {from + offset, part},
                                   mapping.second(from + offset), part, Rect{part, 1}, false);
           }) == CUDA_SUCCESS;
  });
  return done || lost(session);
}

bool ManagedAllocation::protect(uint64_t at, uint64_t bytes, Access access) {
  const int protection = access == Access::kNone   ? PROT_NONE
                         : access == Access::kRead ? PROT_READ
                                                   : PROT_READ | PROT_WRITE;
  if (mapping.protect(at, bytes, protection)) return true;
  log_once(LogLevel::kError,
           "managed memory cannot be protected: the process has more mappings than the kernel "
           "allows (vm.max_map_count)");
  return false;
}

IntervalMap<Advice>& ManagedAllocation::advised() {
  if (!advice) advice = std::make_unique<IntervalMap<Advice>>(begin, begin + whole, Advice{});
  return *advice;
}

}  // namespace sluice::client
