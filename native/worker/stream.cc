// SPDX-License-Identifier: Apache-2.0
// Streams, marks in them, and the two ends of a host function.
#include "worker/stream.h"

#include "worker/dispatch.h"
#include "worker/library/charge.h"

namespace sluice::worker {

CUresult end_stream(Session& s, Vgpu& v, const StreamObject& o) {
  if (!capturing(s, o.handle)) v.gate->leave(o.handle);
  const CUresult e = s.driver.cuStreamDestroy_v2(o.handle);
  give_stream(v);
  return e;
}

namespace {

void create(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::StreamCreate>();
  if (!d.ok() || m.flags > CU_STREAM_NON_BLOCKING || !s.objects.streams.has_room(m.id))
    return s.reject("StreamCreate mints no id that is free");
  if (!s.use_context(c.header.context)) return;
  StreamObject o;
  o.device = c.header.context - 1;
  Vgpu& v = *s.vgpus[o.device];
  if (!(c.answered() ? take_stream(s, v) : take_promised_stream(s, v)))
    return void(reply.status = CUDA_ERROR_OUT_OF_MEMORY);
  reply.status = s.driver.cuStreamCreateWithPriority(&o.handle, m.flags, m.priority);
  if (reply.status == CUDA_SUCCESS)
    s.objects.streams.add(m.id, o);
  else
    give_stream(v);
}

void destroy(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::StreamId>();
  StreamObject o;
  std::lock_guard lock(s.captures.mutex);
  if (d.ok() && s.captures.graph_of(m.stream))
    return s.reject("StreamDestroy names a stream that captures");
  if (!d.ok() || !s.objects.streams.take(m.stream, &o))
    return s.reject("StreamDestroy names a stream that the session does not have");
  Vgpu* v = s.use(o.device);
  if (!v) return;
  reply.status = end_stream(s, *v, o);
}

void synchronize(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::StreamId>();
  CUstream stream;
  if (!d.ok()) return s.reject("StreamSynchronize is cut short");
  if (s.stream(m.stream, c.header.context, &stream))
    reply.status = s.driver.cuStreamSynchronize(stream);
}

bool is_done(Session& s, const Command& c) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::StreamId>();
  CUstream stream;
  return d.ok() && s.stream(m.stream, c.header.context, &stream) &&
         s.driver.cuStreamQuery(stream) == CUDA_SUCCESS;
}

void query(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::StreamId>();
  CUstream stream;
  if (!d.ok()) return s.reject("StreamQuery is cut short");
  if (s.stream(m.stream, c.header.context, &stream)) reply.status = s.driver.cuStreamQuery(stream);
}

void wait_event(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::StreamWaitEvent>();
  CUevent event;
  CUstream stream;
  if (!d.ok() || !s.objects.events.get(m.event, &event))
    return s.reject("StreamWaitEvent names an event that the session does not have");
  Vgpu* v;
  if (!s.stream(m.stream, c.header.context, &stream, &v)) return;
  std::unique_lock<std::mutex> lock;
  if (s.captures.any() && !capturing(s, stream)) {
    // The stream may join a capture by this.
    lock = std::unique_lock(s.captures.mutex);
    keep_out(s, stream, v);
  }
  if (!capturing(s, stream)) v->gate->followed(stream);
  reply.status = s.driver.cuStreamWaitEvent(stream, event, m.flags & CU_EVENT_WAIT_EXTERNAL);
}

void mark(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::Mark>();
  CUstream stream;
  if (!d.ok() || !s.marks.valid(m.mark)) return s.reject("Mark names a word that there is not");
  // The stream may have begun to capture meanwhile, and a mark must not get into a graph.
  if (s.stream(m.stream, c.header.context, &stream) && !capturing(s, stream))
    reply.status = s.mark(stream, m.mark, m.value);
}

// The driver's own thread is never blocked: the stream tells, waits, and the client's answer lets
// it go on.
void host_function(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& h = d.fixed<wire::HostFunction>();
  CUstream stream;
  if (!d.ok() || !s.marks.valid(h.ready_mark) || !s.marks.valid(h.done_mark))
    return s.reject("HostFunction names a mark that there is not");
  Vgpu* v;
  if (!s.stream(h.stream, c.header.context, &stream, &v)) return;
  if (!capturing(s, stream)) v->gate->followed(stream);
  reply.status = s.mark(stream, h.ready_mark, h.value);
  if (reply.status == CUDA_SUCCESS)
    reply.status = s.driver.cuStreamWaitValue64_v2(stream, s.marks.address(h.done_mark), h.value,
                                                   CU_STREAM_WAIT_VALUE_GEQ);
}

}  // namespace

void add_stream_handlers(DispatchTable& t) {
  t[wire::kStreamCreate].run = create;
  t[wire::kStreamDestroy].run = destroy;
  t[wire::kStreamSynchronize].run = synchronize;
  t[wire::kStreamSynchronize].done = is_done;
  t[wire::kStreamQuery].run = query;
  t[wire::kStreamWaitEvent].run = wait_event;
  t[wire::kMark].run = mark;
  t[wire::kHostFunction].run = host_function;
}

}  // namespace sluice::worker
