// SPDX-License-Identifier: Apache-2.0
// Events: recorded together with a mark, so that the client sees them complete without asking.
#include "worker/dispatch.h"

namespace sluice::worker {

namespace {

constexpr unsigned kFlags = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING;

void create(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::EventCreate>();
  if (!d.ok() || m.flags & ~kFlags || !s.objects.events.has_room(m.id) ||
      !s.objects.shared_events.has_room(m.id))
    return s.reject("EventCreate mints no id that is free");
  if (!s.use_context(c.header.context)) return;
  CUevent event;
  reply.status = s.driver.cuEventCreate(&event, m.flags);
  if (reply.status == CUDA_SUCCESS) s.objects.events.add(m.id, event);
}

void destroy(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::EventId>();
  CUevent event;
  if (!d.ok() || !s.objects.events.take(m.event, &event))
    return s.reject("EventDestroy names an event that the session does not have");
  reply.status = s.driver.cuEventDestroy_v2(event);
}

void record(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& r = d.fixed<wire::EventRecord>();
  CUevent event;
  CUstream stream;
  if (!d.ok() || !s.objects.events.get(r.event, &event))
    return s.reject("EventRecord names an event that the session does not have");
  if (!s.stream(r.stream, c.header.context, &stream)) return;
  reply.status = s.driver.cuEventRecordWithFlags(event, stream, r.flags & CU_EVENT_RECORD_EXTERNAL);
  if (reply.status == CUDA_SUCCESS) reply.status = s.mark(stream, r.mark, r.value);
}

void synchronize(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::EventId>();
  CUevent event;
  if (!d.ok() || !s.objects.events.get(m.event, &event))
    return s.reject("EventSynchronize names an event that the session does not have");
  reply.status = s.driver.cuEventSynchronize(event);
}

void query(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::EventId>();
  CUevent event;
  if (!d.ok() || !s.objects.events.get(m.event, &event))
    return s.reject("EventQuery names an event that the session does not have");
  reply.status = s.driver.cuEventQuery(event);
}

void elapsed(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::EventElapsed>();
  CUevent start, end;
  if (!d.ok() || !s.objects.events.get(m.start, &start) || !s.objects.events.get(m.end, &end))
    return s.reject("EventElapsed names an event that the session does not have");
  wire::ElapsedReply r{};
  reply.status = s.driver.cuEventElapsedTime_v2(&r.milliseconds, start, end);
  reply.put(r);
}

}  // namespace

void add_event_handlers(DispatchTable& t) {
  t[wire::kEventCreate].run = create;
  t[wire::kEventDestroy].run = destroy;
  t[wire::kEventRecord].run = record;
  t[wire::kEventSynchronize].run = synchronize;
  t[wire::kEventQuery].run = query;
  t[wire::kEventElapsed].run = elapsed;
}

}  // namespace sluice::worker
