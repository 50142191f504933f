// SPDX-License-Identifier: Apache-2.0
// Events. A record marks the completion page too, so that asking and waiting need no round trip
// where the page is shared.
#include "client/objects/event.h"

#include <algorithm>
#include <utility>

#include "channel/futex.h"
#include "client/driver/graph.h"
#include "client/driver/wait.h"

using namespace sluice::client;
namespace wire = sluice::wire;

namespace {

CUresult find(CUevent handle, Session** s, Event** event) {
  if (const CUresult e = enter(s); e != CUDA_SUCCESS) return e;
  *event = (*s)->events.find(handle);
  return *event ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

uint64_t as_id(CUevent e) { return reinterpret_cast<uint64_t>(e); }

// A program that only asks makes no call in which a dead worker would be noticed: now and then the
// answer "not yet" looks whether anybody is left to give another.
CUresult not_ready(Session* s) {
  constexpr uint64_t kLookEveryNs = 50'000'000;
  static thread_local uint64_t looked_at = 0;
  const uint64_t now = sluice::channel::now_ns();
  if (now - looked_at < kLookEveryNs) return CUDA_ERROR_NOT_READY;
  looked_at = now;
  if (s->channel().alive()) return CUDA_ERROR_NOT_READY;
  const CUresult e = s->exchange(wire::kPing, uint64_t{0});  // fails, and marks the session as lost
  return e == CUDA_SUCCESS ? CUDA_ERROR_NOT_READY : e;
}

void learn_done(Session* s, const Event& e) { s->work().note_done(*e.device, e.stream, e.work); }

}  // namespace

void sluice::client::leave_to_driver(Session* s, CUevent handle, Event* event) {
  if (event->mark != wire::kNoMark) s->marks().give_back(std::exchange(event->mark, wire::kNoMark));
  s->event_progress.forget(as_id(handle), event);
  event->in_graph = true;
  event->value = std::max<uint64_t>(event->value, 1);
  event->captured = 0;
}

extern "C" {

CUresult cuEventCreate(CUevent* event, unsigned int flags) {
  Session* s;
  Device* d;
  if (const CUresult e = enter(&s, &d); e != CUDA_SUCCESS) return e;
  constexpr unsigned kKnown =
      CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
  if (!event || flags & ~kKnown) return CUDA_ERROR_INVALID_VALUE;
  if (flags & CU_EVENT_INTERPROCESS && !(flags & CU_EVENT_DISABLE_TIMING))
    return CUDA_ERROR_INVALID_VALUE;
  uint64_t id;
  Event* made = s->events.create(&id);
  if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
  made->device = d;
  made->flags = flags;
  if (flags & CU_EVENT_INTERPROCESS) {
    made->shared = true;
    const CUresult e = s->exchange(wire::kSharedEventCreate, wire::EventId{id}, {}, {}, nullptr,
                                   nullptr, d->context());
    if (e != CUDA_SUCCESS)
      s->events.destroy(id);
    else
      *event = reinterpret_cast<CUevent>(id);
    return e;
  }
  made->mark = s->marks() ? s->marks().take(true) : wire::kNoMark;
  *event = reinterpret_cast<CUevent>(id);
  return s->post(wire::kEventCreate, wire::EventCreate{id, flags, 0}, {}, nullptr, d->context());
}

CUresult cuEventDestroy_v2(CUevent handle) {
  Session* s;
  Event* event;
  if (const CUresult e = find(handle, &s, &event); e != CUDA_SUCCESS) return e;
  const uint32_t mark = event->mark, context = event->device->context();
  const uint16_t destroy = event->shared ? wire::kSharedEventDestroy : wire::kEventDestroy;
  s->event_progress.forget(as_id(handle), event);
  if (!s->events.retire(as_id(handle))) return CUDA_ERROR_INVALID_HANDLE;
  s->marks().give_back(mark);
  const CUresult e = s->post(destroy, wire::EventId{as_id(handle)}, {}, nullptr, context);
  s->events.recycle(as_id(handle));
  return e;
}

CUresult cuEventRecordWithFlags(CUevent handle, CUstream stream_handle, unsigned int flags) {
  Session* s;
  Device* d;
  Stream* stream;
  if (const CUresult e = enter(&s, &d); e != CUDA_SUCCESS) return e;
  Event* event = s->events.find(handle);
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult e = resolve_stream(s, d, stream_handle, &stream); e != CUDA_SUCCESS) return e;
  if (event->device != stream->device) return CUDA_ERROR_INVALID_HANDLE;
  const uint32_t context = event->device->context();  // which need not be current
  if (event->shared) {
    if (stream->capture) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    return s->post(wire::kSharedEventRecord, wire::SharedEventUse{as_id(handle), stream->wire_id},
                   {}, stream, context);
  }
  if (flags & ~unsigned{CU_EVENT_RECORD_EXTERNAL}) return CUDA_ERROR_INVALID_VALUE;
  uint64_t captured;
  if (const CUresult e = s->captures.record(stream, &captured); e != CUDA_SUCCESS) return e;
  if (flags && !captured) return CUDA_ERROR_ILLEGAL_STATE;
  const bool asks = event->mark == wire::kNoMark && !event->in_graph && !s->marks();
  if (asks) s->event_progress.forget(as_id(handle), event);
  if (captured) {
    // Nothing happens now. The stream's place in the graph is what the event stands for, or, with
    // the flag, a node that records it.
    if (flags)
      leave_to_driver(s, handle, event);
    else
      event->captured = captured;
    return s->post(wire::kEventRecord,
                   wire::EventRecord{as_id(handle), stream->wire_id, wire::kNoMark, flags, 0}, {},
                   nullptr, context);
  }
  event->captured = 0;
  if (event->stream != stream && event->mark != wire::kNoMark && event->value != 0 &&
      !s->marks().reached(event->mark, event->value)) {
    // Two streams must not write the same word in an order that nobody knows.
    s->marks().give_back(event->mark);
    event->mark = s->marks().take(true);
  }
  event->value = event->mark == wire::kNoMark ? event->value + 1 : s->marks().next(event->mark);
  event->stream = stream;
  event->work = s->work().add_event(*stream);
  const wire::EventRecord record{as_id(handle), stream->wire_id, event->mark, flags, event->value};
  const CUresult e = s->post(wire::kEventRecord, record, {}, nullptr, context);
  if (e == CUDA_SUCCESS && asks) s->event_progress.recorded(as_id(handle), event);
  return e;
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  return cuEventRecordWithFlags(event, stream, 0);
}

CUresult cuEventQuery(CUevent handle) {
  Session* s;
  Event* event;
  if (const CUresult e = find(handle, &s, &event); e != CUDA_SUCCESS) return e;
  if (const CUresult e = s->captures.ask(event->captured); e != CUDA_SUCCESS) return e;
  if (event->shared)
    return s->ask(*event->device, wire::kSharedEventQuery, wire::EventId{as_id(handle)});
  if (event->value == 0) return CUDA_SUCCESS;
  if (event->mark != wire::kNoMark) {
    if (!s->marks().reached(event->mark, event->value)) return not_ready(s);
    learn_done(s, *event);
    return CUDA_SUCCESS;
  }
  if (event->in_graph || s->marks())
    return s->ask(*event->device, wire::kEventQuery, wire::EventQuery{as_id(handle)});
  return s->event_progress.query(as_id(handle), event);
}

CUresult cuEventSynchronize(CUevent handle) {
  Session* s;
  Event* event;
  if (const CUresult e = find(handle, &s, &event); e != CUDA_SUCCESS) return e;
  if (const CUresult e = s->captures.ask(event->captured); e != CUDA_SUCCESS) return e;
  if (event->shared)
    return s->exchange(wire::kSharedEventSynchronize, wire::EventId{as_id(handle)}, {}, {}, nullptr,
                       nullptr, event->device->context());
  if (event->value == 0) return CUDA_SUCCESS;
  const auto wait = [&] {
    if (event->mark != wire::kNoMark) return wait_mark(s, event->mark, event->value);
    if (!event->in_graph && s->event_progress.knows_done(event))
      return s->told_before(event->device->context());
    return s->ask(*event->device, wire::kEventSynchronize, wire::EventId{as_id(handle)});
  };
  const CUresult e = wait();
  if (e != CUDA_SUCCESS) return e;
  if (!event->in_graph) learn_done(s, *event);
  s->after_synchronisation(*event->device);
  return e;
}

CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
  Session* s;
  Event *a, *b;
  if (const CUresult e = find(start, &s, &a); e != CUDA_SUCCESS) return e;
  if (const CUresult e = find(end, &s, &b); e != CUDA_SUCCESS) return e;
  if (!milliseconds) return CUDA_ERROR_INVALID_VALUE;
  if (a->captured || b->captured) return CUDA_ERROR_CAPTURED_EVENT;
  if (a->value == 0 || b->value == 0 || (a->flags | b->flags) & CU_EVENT_DISABLE_TIMING)
    return CUDA_ERROR_INVALID_HANDLE;
  if (a->device->place.node != b->device->place.node) return CUDA_ERROR_INVALID_HANDLE;
  if (cuEventQuery(start) == CUDA_ERROR_NOT_READY || cuEventQuery(end) == CUDA_ERROR_NOT_READY)
    return CUDA_ERROR_NOT_READY;
  wire::ElapsedReply reply{};
  const CUresult e =
      s->ask(*a->device, wire::kEventElapsed, wire::EventElapsed{as_id(start), as_id(end)}, &reply);
  if (e == CUDA_SUCCESS) *milliseconds = reply.milliseconds;
  return e;
}

}  // extern "C"
