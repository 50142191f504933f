// SPDX-License-Identifier: Apache-2.0
#include "client/driver/wait.h"

#include <algorithm>

#include "channel/futex.h"
#include "client/core/session.h"
#include "client/objects/device.h"
#include "client/objects/stream.h"
#include "wire/bodies/commands.h"

namespace sluice::client {

CUresult wait_mark(Session* s, uint32_t mark, uint64_t value) {
  const Marks& marks = s->marks();
  const uint64_t start = channel::now_ns();
  uint64_t pause = 5'000, alive_at = start;
  for (;;) {
    for (int i = 0; i < 100; ++i) {
      if (marks.reached(mark, value)) return CUDA_SUCCESS;
      channel::cpu_relax();
    }
    if (const CUresult e = s->sticky(); e != CUDA_SUCCESS) return e;
    channel::spin_round();
    const uint64_t now = channel::now_ns();
    if (now - start < 100'000) continue;
    if (now - alive_at > 100'000'000) {
      alive_at = now;
      if (!s->channel().alive() && !marks.reached(mark, value))
        return s->exchange(wire::kPing, uint64_t{0});  // fails, and marks the session as lost
    }
    channel::sleep_ns(pause);
    pause = std::min<uint64_t>(pause * 2, 500'000);
  }
}

CUresult synchronize_stream(Session* s, Stream* stream) {
  const uint64_t upto = s->work().issued(*stream->device);
  const CUresult e = s->exchange(wire::kStreamSynchronize, wire::StreamId{stream->wire_id}, {}, {},
                                 nullptr, nullptr, stream->device->context());
  if (e != CUDA_SUCCESS) return e;
  s->work().note_done(*stream->device, stream, upto);
  s->after_synchronisation(*stream->device);
  return e;
}

CUresult end_unseen(Session* s, Stream* stream) {
  const CUresult e = s->fences.set(stream, !s->work().unseen(*stream));
  // In this order, as show_memory() waits for what was set before.
  return e == CUDA_SUCCESS && s->fences.memory_is_shown() ? synchronize_stream(s, stream) : e;
}

bool needs_no_wait(Session* s, Stream* stream) {
  if (s->work().finished(*stream)) return true;
  return !s->sync_memops.any() && s->sticky() == CUDA_SUCCESS && s->work().unseen(*stream) &&
         s->fences.set(stream, false) == CUDA_SUCCESS && !s->fences.memory_is_shown();
}

CUresult wait_idle(Session* s, Device* d) {
  if (s->work().idle(*d)) return CUDA_SUCCESS;
  const uint64_t upto = s->work().issued(*d);
  const CUresult e = s->ask(*d, wire::kDeviceIdle, wire::DeviceIdle{d->place.index, 0});
  if (e == CUDA_SUCCESS) s->work().note_done(*d, nullptr, upto);
  return e;
}

CUresult wait_unused(Session* s, Device* owner) {
  if (const CUresult e = wait_idle(s, owner); e != CUDA_SUCCESS) return e;
  const uint64_t users = owner->users.load();
  for (auto& d : s->devices())
    if (users >> d->index & 1)
      if (const CUresult e = wait_idle(s, d.get()); e != CUDA_SUCCESS) return e;
  return CUDA_SUCCESS;
}

}  // namespace sluice::client
