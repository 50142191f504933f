// SPDX-License-Identifier: Apache-2.0
// Streams: minted here, created on the node without waiting. The default streams are names, not
// objects of the application.
#include "client/objects/stream.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "client/core/enter.h"
#include "client/core/session.h"
#include "client/driver/across_nodes.h"
#include "client/driver/transfer.h"
#include "client/driver/wait.h"
#include "client/objects/context.h"
#include "client/objects/device.h"
#include "client/objects/event.h"

using namespace sluice::client;
namespace wire = sluice::wire;

namespace sluice::client {

namespace {

// Each thread's own blocking streams, by device index; given back when the thread ends.
struct PerThread {
  uint64_t ids[wire::kMaxDevices] = {};
};
pthread_key_t g_key;

CUresult destroy(Session* s, uint64_t id) {
  Stream* stream = s->streams.find(id);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->orphan) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (stream->capture)
    if (const CUresult e = s->captures.leave(stream); e != CUDA_SUCCESS) return e;
  Device& device = *stream->device;
  if (!s->streams.retire(id)) return CUDA_ERROR_INVALID_HANDLE;
  device.graph_memory.forget_stream(stream);
  device.pools.forget_stream(stream);
  s->host_pools.forget_stream(stream);
  s->marks().give_back(stream->probe);
  s->fences.forget(stream);
  s->event_progress.forget(stream);
  s->work().forget(device, stream);
  if (!stream->green) --s->plain_streams;
  const CUresult e =
      s->post(wire::kStreamDestroy, wire::StreamId{id}, {}, nullptr, device.context());
  s->streams.recycle(id);
  return e;
}

void end_of_thread(void* p) {
  auto* mine = static_cast<PerThread*>(p);
  if (Session* s = Session::get())
    for (uint64_t id : mine->ids)
      if (id) destroy(s, id);
  delete mine;
}

}  // namespace

CUresult mint_stream(Session* s, Device* d, unsigned flags, int priority, uint64_t* id,
                     Stream** stream) {
  Stream* made = s->streams.create(id);
  if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
  made->device = d;
  made->wire_id = *id;
  made->flags = flags;
  made->priority = priority;
  *stream = made;
  const wire::StreamCreate m{*id, flags, priority};
  if (++s->plain_streams <= wire::kUnansweredStreams)
    return s->post(wire::kStreamCreate, m, {}, nullptr, d->context());
  // Streams take memory, and further ones may be refused.
  const CUresult e = s->exchange(wire::kStreamCreate, m, {}, {}, nullptr, nullptr, d->context());
  if (e == CUDA_SUCCESS) return e;
  --s->plain_streams;
  s->streams.destroy(*id);
  return e;
}

CUresult per_thread_stream(Session* s, Device* d, Stream** stream) {
  static const int made = pthread_key_create(&g_key, end_of_thread);
  if (made != 0) return CUDA_ERROR_OUT_OF_MEMORY;
  auto* mine = static_cast<PerThread*>(pthread_getspecific(g_key));
  if (!mine) pthread_setspecific(g_key, mine = new PerThread());
  uint64_t& id = mine->ids[d->index];
  if (id && (*stream = s->streams.find(id))) return CUDA_SUCCESS;
  return mint_stream(s, d, CU_STREAM_DEFAULT, 0, &id, stream);
}

}  // namespace sluice::client

extern "C" {

CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned int flags, int priority) {
  Session* s;
  Device* d;
  if (const CUresult e = enter(&s, &d); e != CUDA_SUCCESS) return e;
  if (!stream || flags & ~unsigned{CU_STREAM_NON_BLOCKING}) return CUDA_ERROR_INVALID_VALUE;
  // Out of range is not an error: CUDA takes the nearest.
  priority = std::min(std::max(priority, d->record.stream_priority_greatest),
                      d->record.stream_priority_least);
  uint64_t id;
  Stream* made;
  const uint64_t green = current_green(s);
  const CUresult e = green ? mint_green_stream(s, green, flags, priority, &id)
                           : mint_stream(s, d, flags, priority, &id, &made);
  if (e == CUDA_SUCCESS) *stream = reinterpret_cast<CUstream>(id);
  return e;
}

CUresult cuStreamCreate(CUstream* stream, unsigned int flags) {
  return cuStreamCreateWithPriority(stream, flags, 0);
}

CUresult cuStreamDestroy_v2(CUstream handle) {
  Session* s;
  Device* d;
  if (const CUresult e = enter(&s, &d); e != CUDA_SUCCESS) return e;
  const auto id = reinterpret_cast<uint64_t>(handle);
  return id <= 2 ? CUDA_ERROR_INVALID_HANDLE : destroy(s, id);
}

CUresult cuStreamSynchronize(CUstream handle) {
  Session* s;
  Stream* stream;
  if (const CUresult e = with_stream(handle, &s, &stream); e != CUDA_SUCCESS) return e;
  if (const CUresult e = s->captures.wait(stream); e != CUDA_SUCCESS) return e;
  // What waited last may have been the last there was: a copy to the host, most often.
  if (!needs_no_wait(s, stream)) return synchronize_stream(s, stream);
  s->after_synchronisation(*stream->device);
  return CUDA_SUCCESS;
}

CUresult cuStreamQuery(CUstream handle) {
  Session* s;
  Stream* stream;
  if (const CUresult e = with_stream(handle, &s, &stream); e != CUDA_SUCCESS) return e;
  if (const CUresult e = s->captures.wait(stream); e != CUDA_SUCCESS) return e;
  if (needs_no_wait(s, stream)) return CUDA_SUCCESS;
  const uint64_t upto = s->work().issued(*stream->device);
  const CUresult e = s->exchange(wire::kStreamQuery, wire::StreamId{stream->wire_id}, {}, {},
                                 nullptr, nullptr, stream->device->context());
  if (e == CUDA_SUCCESS) s->work().note_done(*stream->device, stream, upto);
  return e;
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned int flags) {
  Session* s;
  Stream* stream;
  if (const CUresult e = with_stream(handle, &s, &stream); e != CUDA_SUCCESS) return e;
  Event* ev = s->events.find(event);
  if (!ev) return CUDA_ERROR_INVALID_HANDLE;
  if (ev->device->place.node != stream->device->place.node)
    return flags ? CUDA_ERROR_INVALID_VALUE : wait_for_other_node(s, stream, event, ev);
  // Another process may have recorded it; and until it comes, the stream has something to do.
  if (ev->shared) {
    if (stream->capture) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    return s->post(wire::kSharedEventWait,
                   wire::SharedEventUse{reinterpret_cast<uint64_t>(event), stream->wire_id}, {},
                   stream, stream->device->context());
  }
  if (flags & ~unsigned{CU_EVENT_WAIT_EXTERNAL}) return CUDA_ERROR_INVALID_VALUE;
  if (flags) {
    // The wait becomes a node of the graph.
    if (const CUresult e = s->captures.work(stream); e != CUDA_SUCCESS) return e;
    if (!stream->capture) return CUDA_ERROR_INVALID_VALUE;
  } else {
    Captures::Join how;
    if (const CUresult e = s->captures.join(stream, ev->captured, ev->value != 0, &how);
        e != CUDA_SUCCESS)
      return e;
    if (how == Captures::Join::kNothing) return CUDA_SUCCESS;
  }
  const uint64_t upto = ev->work;
  // It counts as work: what the stream waits for is not its own, and not done before it comes here.
  const CUresult e =
      s->post(wire::kStreamWaitEvent,
              wire::StreamWaitEvent{stream->wire_id, reinterpret_cast<uint64_t>(event), flags, 0},
              {}, stream, stream->device->context());
  if (!stream->capture) {
    if (ev->device == stream->device) stream->device->pools.note_wait(stream, ev->stream, upto);
    // Numbers of another device's work mean nothing, as where an old event's stream had its place.
    if (s->host_pools.any() && ev->stream && ev->stream->device == ev->device)
      s->host_pools.all().note_wait(stream, ev->stream, upto);
  }
  return e;
}

CUresult cuStreamGetPriority(CUstream handle, int* priority) {
  Session* s;
  Stream* stream;
  if (const CUresult e = ask_stream(handle, &s, &stream); e != CUDA_SUCCESS) return e;
  if (!priority) return CUDA_ERROR_INVALID_VALUE;
  *priority = stream->priority;
  return CUDA_SUCCESS;
}

CUresult cuStreamGetFlags(CUstream handle, unsigned int* flags) {
  Session* s;
  Stream* stream;
  if (const CUresult e = ask_stream(handle, &s, &stream); e != CUDA_SUCCESS) return e;
  if (!flags) return CUDA_ERROR_INVALID_VALUE;
  *flags = stream->flags;
  return CUDA_SUCCESS;
}

CUresult cuStreamGetId(CUstream handle, unsigned long long* id) {
  Session* s;
  Stream* stream;
  if (const CUresult e = ask_stream(handle, &s, &stream); e != CUDA_SUCCESS) return e;
  if (!id) return CUDA_ERROR_INVALID_VALUE;
  *id = stream->wire_id ? stream->wire_id & 0xffffffffff : 1;
  return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream handle, CUcontext* context) {
  Session* s;
  Stream* stream;
  if (const CUresult e = ask_stream(handle, &s, &stream); e != CUDA_SUCCESS) return e;
  if (!context) return CUDA_ERROR_INVALID_VALUE;
  const GreenContext* green = s->green_contexts.find(stream->green);
  *context = reinterpret_cast<CUcontext>(green ? green->context : stream->device->primary);
  return CUDA_SUCCESS;
}

CUresult cuStreamGetDevice(CUstream handle, CUdevice* device) {
  Session* s;
  Stream* stream;
  if (const CUresult e = ask_stream(handle, &s, &stream); e != CUDA_SUCCESS) return e;
  if (!device) return CUDA_ERROR_INVALID_VALUE;
  *device = static_cast<CUdevice>(stream->device->index);
  return CUDA_SUCCESS;
}

}  // extern "C"
