// SPDX-License-Identifier: Apache-2.0
// Green contexts: parts of a GPU's multiprocessors as contexts of their own, with streams that run
// there. Resources and descriptions are the worker's, by number (bodies/green_contexts.yaml). With
// a green context current, the null stream is that context's own and new streams are made in it;
// the thread's own stream (CU_STREAM_PER_THREAD) stays one of the whole GPU.
#include <algorithm>
#include <cstring>

#include "client/driver/graph.h"
#include "client/driver/wait.h"
#include "client/objects/context.h"
#include "client/objects/event.h"
#include "wire/bodies/green_contexts.h"
#include "wire/generated.h"

using namespace sluice::client;
namespace wire = sluice::wire;

namespace {

uint64_t id_of(const void* handle) { return reinterpret_cast<uint64_t>(handle); }

CUresult find(CUgreenCtx handle, Session** s, GreenContext** green) {
  if (const CUresult e = enter(s); e != CUDA_SUCCESS) return e;
  *green = (*s)->green_contexts.find(handle);
  return *green ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

// Where a program's copy of a resource carries the worker's number.
struct Number {
  uint64_t tag;
  uint32_t number;
};
constexpr uint64_t kTag = kHandleTag | uint64_t{34} << 40;

CUdevResource resource_of(const wire::DevResource& r) {
  CUdevResource out;
  std::memset(&out, 0, sizeof out);
  out.type = static_cast<CUdevResourceType>(r.type);
  std::memcpy(out._oversize, r.shown, sizeof out._oversize);
  const Number n{kTag, r.number};
  if (r.type) std::memcpy(out._internal_padding, &n, sizeof n);
  return out;
}

// CUDA_ERROR_INVALID_RESOURCE_TYPE: none that CUDA gave out.
CUresult number_of(const CUdevResource& r, uint32_t* number) {
  Number n;
  std::memcpy(&n, r._internal_padding, sizeof n);
  *number = n.number;
  return r.type == CU_DEV_RESOURCE_TYPE_SM && n.tag == kTag ? CUDA_SUCCESS
                                                            : CUDA_ERROR_INVALID_RESOURCE_TYPE;
}

template <class Request, class Answer>
CUresult ask(Session* s, uint16_t function, const Request& request, Answer* answer,
             uint32_t context) {
  size_t got = 0;
  const CUresult e =
      s->exchange(function, request, {}, {reinterpret_cast<std::byte*>(answer), sizeof *answer},
                  &got, nullptr, context);
  return e == CUDA_SUCCESS && got < sizeof *answer ? CUDA_ERROR_UNKNOWN : e;
}

CUresult get_resource(Session* s, const Device* d, uint64_t green, bool of_context,
                      CUdevResource* resource, CUdevResourceType type) {
  if (!resource) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  wire::SluiceDevResource r{};
  r.green = green;
  r.of = of_context;
  r.type = type;
  wire::DevResource answer{};
  const CUresult e = ask(s, wire::kSluiceDevResource, r, &answer, d->context());
  if (e == CUDA_SUCCESS) *resource = resource_of(answer);
  return e;
}

// The converted context's handle, made with the green one.
CUresult make_handles(Session* s, Device* d, uint64_t* id, uint64_t* context, uint64_t* standard) {
  GreenContext* green = s->green_contexts.create(id);
  if (!green) return CUDA_ERROR_OUT_OF_MEMORY;
  Context* converted = s->contexts.create(context);
  Stream* stream = converted ? s->streams.create(standard) : nullptr;
  if (!stream) {
    if (converted) s->contexts.destroy(*context);
    s->green_contexts.destroy(*id);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  converted->device = stream->device = green->device = d;
  converted->green = stream->green = *id;
  green->context = *context;
  green->standard = stream->wire_id = *standard;
  stream->flags = CU_STREAM_NON_BLOCKING;
  return CUDA_SUCCESS;
}

// Nobody finds them any more. Streams that the program has not destroyed say so from now on.
void end_streams(Session* s, Device* d, uint64_t green, uint64_t standard) {
  std::vector<std::pair<uint64_t, Stream*>> all;
  s->streams.for_each([&](uint64_t id, Stream& stream) {
    if (stream.green == green) all.emplace_back(id, &stream);
  });
  for (const auto& [id, stream] : all) {
    if (id == standard)
      s->streams.retire(id);
    else
      stream->orphan = true;
    d->pools.forget_stream(stream);
    s->host_pools.forget_stream(stream);
    s->marks().give_back(stream->probe);
    stream->probe = wire::kNoMark;
    s->fences.forget(stream);
    s->event_progress.forget(stream);
    s->work().forget(*d, stream);
  }
}

CUresult context_event(Session* s, Device* d, uint64_t green, CUevent handle, bool wait) {
  Event* event = s->events.find(handle);
  if (!event || (!wait && event->device != d)) return CUDA_ERROR_INVALID_HANDLE;
  if (event->shared) return CUDA_ERROR_NOT_SUPPORTED;  // no event of the driver's
  if (event->captured || s->captures.wait(d) != CUDA_SUCCESS)
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (wait && event->value == 0) return CUDA_SUCCESS;
  // No stream of ours writes a mark when all of a context has got there.
  if (!wait) leave_to_driver(s, handle, event);
  wire::SluiceContextEvent r{};
  r.green = green;
  r.event = id_of(handle);
  r.wait = wait;
  return s->exchange(wire::kSluiceContextEvent, r, {}, {}, nullptr, nullptr, d->context());
}

CUresult of_context(CUcontext handle, CUevent event, bool wait) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  const Context* c = s->contexts.find(handle);
  return c ? context_event(s, c->device, c->green, event, wait) : CUDA_ERROR_INVALID_CONTEXT;
}

}  // namespace

CUresult sluice::client::mint_green_stream(Session* s, uint64_t green, unsigned flags, int priority,
                                           uint64_t* id) {
  const GreenContext* g = s->green_contexts.find(green);
  if (!g) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  Stream* made = s->streams.create(id);
  if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
  made->device = g->device;
  made->wire_id = *id;
  made->flags = flags;
  made->priority = priority;
  made->green = green;
  wire::SluiceGreenStreamCreate r{};
  r.id = *id;
  r.green = green;
  r.flags = flags;
  r.priority = priority;
  const CUresult e = s->exchange(wire::kSluiceGreenStreamCreate, r, {}, {}, nullptr, nullptr,
                                 g->device->context());
  if (e != CUDA_SUCCESS) s->streams.destroy(*id);
  return e;
}

uint64_t sluice::client::current_green(Session* s) {
  if (!s->green_in_use.load(std::memory_order_relaxed)) return 0;
  const ThreadState& t = thread_state();
  const Context* c = t.depth ? s->contexts.find(t.contexts[t.depth - 1]) : nullptr;
  return c ? c->green : 0;
}

extern "C" {

CUresult cuDeviceGetDevResource(CUdevice dev, CUdevResource* resource, CUdevResourceType type) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  if (dev < 0 || static_cast<size_t>(dev) >= s->devices().size()) return CUDA_ERROR_INVALID_DEVICE;
  return get_resource(s, s->devices()[static_cast<size_t>(dev)].get(), 0, false, resource, type);
}

CUresult cuCtxGetDevResource(CUcontext handle, CUdevResource* resource, CUdevResourceType type) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  const Context* c = s->contexts.find(handle);
  return c ? get_resource(s, c->device, c->green, true, resource, type)
           : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuGreenCtxGetDevResource(CUgreenCtx handle, CUdevResource* resource,
                                  CUdevResourceType type) {
  Session* s;
  GreenContext* green;
  if (const CUresult e = find(handle, &s, &green); e != CUDA_SUCCESS) return e;
  return get_resource(s, green->device, id_of(handle), true, resource, type);
}

CUresult cuDevSmResourceSplitByCount(CUdevResource* result, unsigned int* groups,
                                     const CUdevResource* input, CUdevResource* remaining,
                                     unsigned int flags, unsigned int least) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  if (!groups || !input) return CUDA_ERROR_INVALID_VALUE;
  wire::SluiceDevResourceSplit r{};
  if (const CUresult e = number_of(*input, &r.input); e != CUDA_SUCCESS) return e;
  r.groups = std::min(*groups, wire::kMaxResourceGroups);
  r.query = result == nullptr;
  r.flags = flags;
  r.least = least;
  struct Answer {
    wire::DevResourceGroups head;
    wire::DevResource given[wire::kMaxResourceGroups];
  } answer{};
  size_t got = 0;
  const CUresult e = s->exchange(wire::kSluiceDevResourceSplit, r, {},
                                 {reinterpret_cast<std::byte*>(&answer), sizeof answer}, &got,
                                 nullptr, s->devices()[0]->context());
  if (e != CUDA_SUCCESS) return e;
  const size_t given = result ? std::min(answer.head.given, r.groups) : 0;
  if (got < sizeof answer.head + given * sizeof answer.given[0]) return CUDA_ERROR_UNKNOWN;
  for (size_t i = 0; i < given; ++i) result[i] = resource_of(answer.given[i]);
  *groups = answer.head.groups;
  if (remaining && result) *remaining = resource_of(answer.head.remaining);
  return CUDA_SUCCESS;
}

CUresult cuDevResourceGenerateDesc(CUdevResourceDesc* description, CUdevResource* resources,
                                   unsigned int count) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  if (!description || !resources || count == 0 || count > wire::kMaxDescribedResources)
    return CUDA_ERROR_INVALID_VALUE;
  std::vector<uint32_t> numbers(count + count % 2);
  for (unsigned i = 0; i < count; ++i)
    if (const CUresult e = number_of(resources[i], &numbers[i]); e != CUDA_SUCCESS) return e;
  wire::SluiceDevResourceDescribe r{};
  r.count = count;
  wire::DevResourceDescription answer{};
  size_t got = 0;
  const CUresult e =
      s->exchange(wire::kSluiceDevResourceDescribe, r, std::as_bytes(std::span(numbers)),
                  {reinterpret_cast<std::byte*>(&answer), sizeof answer}, &got, nullptr,
                  s->devices()[0]->context());
  if (e != CUDA_SUCCESS) return e;
  if (got < sizeof answer || answer.number > 0xffffff) return CUDA_ERROR_UNKNOWN;
  *description = reinterpret_cast<CUdevResourceDesc>(kTag | answer.number);
  return CUDA_SUCCESS;
}

CUresult cuGreenCtxCreate(CUgreenCtx* handle, CUdevResourceDesc description, CUdevice dev,
                          unsigned int flags) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  if (dev < 0 || static_cast<size_t>(dev) >= s->devices().size()) return CUDA_ERROR_INVALID_DEVICE;
  const uint64_t described = id_of(description);
  if (!handle || flags != CU_GREEN_CTX_DEFAULT_STREAM || described >> 24 != kTag >> 24)
    return CUDA_ERROR_INVALID_VALUE;
  Device* d = s->devices()[static_cast<size_t>(dev)].get();
  uint64_t id, context, standard;
  if (const CUresult e = make_handles(s, d, &id, &context, &standard); e != CUDA_SUCCESS) return e;
  wire::SluiceGreenCreate r{};
  r.id = id;
  r.standard = standard;
  r.description = described & 0xffffff;
  r.flags = flags;
  const CUresult e =
      s->exchange(wire::kSluiceGreenCreate, r, {}, {}, nullptr, nullptr, d->context());
  if (e != CUDA_SUCCESS) {
    s->streams.destroy(standard);
    s->contexts.destroy(context);
    s->green_contexts.destroy(id);
    return e;
  }
  s->green_in_use = true;
  *handle = reinterpret_cast<CUgreenCtx>(id);
  return CUDA_SUCCESS;
}

CUresult cuGreenCtxDestroy(CUgreenCtx handle) {
  Session* s;
  GreenContext* green;
  if (const CUresult e = find(handle, &s, &green); e != CUDA_SUCCESS) return e;
  if (const CUresult e = s->captures.unsafe(); e != CUDA_SUCCESS) return e;
  Device* d = green->device;
  const uint64_t id = id_of(handle), context = green->context, standard = green->standard;
  if (const CUresult e = wait_idle(s, d); e != CUDA_SUCCESS) return e;
  if (!s->green_contexts.retire(id)) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  s->contexts.retire(context);
  end_streams(s, d, id, standard);
  wire::SluiceGreenDestroy r{};
  r.id = id;
  const CUresult e =
      s->exchange(wire::kSluiceGreenDestroy, r, {}, {}, nullptr, nullptr, d->context());
  s->streams.recycle(standard);
  s->contexts.recycle(context);
  s->green_contexts.recycle(id);
  return e;
}

CUresult cuCtxFromGreenCtx(CUcontext* context, CUgreenCtx handle) {
  Session* s;
  GreenContext* green;
  if (const CUresult e = find(handle, &s, &green); e != CUDA_SUCCESS) return e;
  if (!context) return CUDA_ERROR_INVALID_VALUE;
  *context = reinterpret_cast<CUcontext>(green->context);
  return CUDA_SUCCESS;
}

CUresult cuGreenCtxStreamCreate(CUstream* stream, CUgreenCtx handle, unsigned int flags,
                                int priority) {
  Session* s;
  GreenContext* green;
  if (const CUresult e = find(handle, &s, &green); e != CUDA_SUCCESS) return e;
  if (!stream || flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  const auto& record = green->device->record;
  priority = std::clamp(priority, record.stream_priority_greatest, record.stream_priority_least);
  uint64_t id;
  const CUresult e = mint_green_stream(s, id_of(handle), flags, priority, &id);
  if (e == CUDA_SUCCESS) *stream = reinterpret_cast<CUstream>(id);
  return e;
}

CUresult cuGreenCtxGetId(CUgreenCtx handle, unsigned long long* id) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  const uint64_t wanted = handle ? id_of(handle) : current_green(s);
  if (!s->green_contexts.find(wanted)) return CUDA_ERROR_INVALID_CONTEXT;
  if (!id) return CUDA_ERROR_INVALID_VALUE;
  *id = wanted & 0xffffffffffff;
  return CUDA_SUCCESS;
}

CUresult cuGreenCtxRecordEvent(CUgreenCtx handle, CUevent event) {
  Session* s;
  GreenContext* green;
  if (const CUresult e = find(handle, &s, &green); e != CUDA_SUCCESS) return e;
  return context_event(s, green->device, id_of(handle), event, false);
}
CUresult cuGreenCtxWaitEvent(CUgreenCtx handle, CUevent event) {
  Session* s;
  GreenContext* green;
  if (const CUresult e = find(handle, &s, &green); e != CUDA_SUCCESS) return e;
  return context_event(s, green->device, id_of(handle), event, true);
}
CUresult cuCtxRecordEvent(CUcontext context, CUevent event) {
  return of_context(context, event, false);
}
CUresult cuCtxWaitEvent(CUcontext context, CUevent event) {
  return of_context(context, event, true);
}

CUresult cuStreamGetCtx_v2(CUstream handle, CUcontext* context, CUgreenCtx* green) {
  Session* s;
  Stream* stream;
  if (const CUresult e = ask_stream(handle, &s, &stream); e != CUDA_SUCCESS) return e;
  if (!context || !green) return CUDA_ERROR_INVALID_VALUE;
  *context = reinterpret_cast<CUcontext>(stream->device->primary);
  *green = reinterpret_cast<CUgreenCtx>(stream->green);
  return CUDA_SUCCESS;
}

CUresult cuStreamGetGreenCtx(CUstream handle, CUgreenCtx* green) {
  CUcontext context;
  return cuStreamGetCtx_v2(handle, &context, green);
}

}  // extern "C"
