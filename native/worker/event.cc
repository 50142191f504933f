// SPDX-License-Identifier: Apache-2.0
// Events: recorded behind a mark, so that the client sees them complete without asking.
#include <cstring>

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

// The mark first: whoever hears that a stream which waited for the event went on may ask for it.
void record(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& r = d.fixed<wire::EventRecord>();
  CUevent event;
  CUstream stream;
  if (!d.ok() || !s.objects.events.get(r.event, &event))
    return s.reject("EventRecord names an event that the session does not have");
  if (!s.stream(r.stream, c.header.context, &stream)) return;
  reply.status = s.mark(stream, r.mark, r.value);
  if (reply.status != CUDA_SUCCESS || s.rejected()) return;
  reply.status = s.driver.cuEventRecordWithFlags(event, stream, r.flags & CU_EVENT_RECORD_EXTERNAL);
}

void synchronize(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::EventId>();
  CUevent event;
  if (!d.ok() || !s.objects.events.get(m.event, &event))
    return s.reject("EventSynchronize names an event that the session does not have");
  reply.status = s.driver.cuEventSynchronize(event);
}

// Of those that follow nothing depends on what they are: one that is none is not done.
void query(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::EventQuery>();
  const auto others = d.rest();
  CUevent event;
  if (!d.ok() || !s.objects.events.get(m.event, &event))
    return s.reject("EventQuery names an event that the session does not have");
  if (others.size() > wire::kMostEventsAsked * sizeof(uint64_t))
    return s.reject("EventQuery names more events than it may");
  reply.status = s.driver.cuEventQuery(event);
  if (reply.status != CUDA_SUCCESS || others.empty()) return;
  wire::EventQueryReply r{};
  for (uint64_t id; r.done < others.size() / sizeof id; ++r.done) {
    std::memcpy(&id, others.data() + r.done * sizeof id, sizeof id);
    if (!s.objects.events.get(id, &event) || s.driver.cuEventQuery(event) != CUDA_SUCCESS) break;
  }
  reply.put(r);
}

void elapsed(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::EventElapsed>();
  CUevent start, end;
  if (!d.ok() || !s.objects.events.get(m.start, &start) || !s.objects.events.get(m.end, &end))
    return s.reject("EventElapsed names an event that the session does not have");
  wire::ElapsedReply r{};
  const auto ask = [&] { return s.driver.cuEventElapsedTime_v2(&r.milliseconds, start, end); };
  reply.status = ask();
  // By their marks the client knows both to be done, a moment before the driver does.
  if (reply.status == CUDA_ERROR_NOT_READY && s.driver.cuEventSynchronize(start) == CUDA_SUCCESS &&
      s.driver.cuEventSynchronize(end) == CUDA_SUCCESS)
    reply.status = ask();
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
