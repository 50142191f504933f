// SPDX-License-Identifier: Apache-2.0
// Green contexts: parts of a GPU's multiprocessors, and streams that run there. Everything else of
// the session stays in the primary context, whose memory and code they share. Resources and their
// descriptions have no end in CUDA; both are kept by number, equal ones once.
#include <cstring>

#include "wire/bodies/green_contexts.h"
#include "wire/generated.h"
#include "worker/dispatch.h"
#include "worker/library/charge.h"
#include "worker/stream.h"

namespace sluice::worker {

namespace {

constexpr size_t kMaxResources = 4096, kMaxDescriptions = 1024;

// False: there is no room for another.
bool keep(Session& s, uint32_t device, const CUdevResource& r, wire::DevResource* out) {
  static_assert(sizeof r._oversize == sizeof out->shown);
  *out = {};
  out->type = static_cast<uint32_t>(r.type);
  if (r.type == CU_DEV_RESOURCE_TYPE_INVALID) return true;
  std::memcpy(out->shown, r._oversize, sizeof out->shown);
  auto& all = s.objects.dev_resources;
  size_t i = 0;
  while (i < all.size() &&
         (all[i].device != device || std::memcmp(&all[i].resource, &r, sizeof r) != 0))
    ++i;
  if (i == kMaxResources) return false;
  if (i == all.size()) all.push_back({r, device});
  out->number = static_cast<uint32_t>(i);
  return true;
}

// A zeroed structure, as the driver need not write all of it.
CUdevResource blank() {
  CUdevResource r;
  std::memset(&r, 0, sizeof r);
  return r;
}

void resource(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::SluiceDevResource>();
  if (!d.ok() || m.of > 1) return s.reject("DevResource makes no sense");
  GreenObject green;
  if (m.green && !s.objects.green_contexts.get(m.green, &green))
    return s.reject("DevResource names a green context that the session does not have");
  const uint32_t device = m.green ? green.device : c.header.context - 1;
  Vgpu* v = s.use(device);
  if (!v) return;
  CUdevResource r = blank();
  const auto type = static_cast<CUdevResourceType>(m.type);
  if (m.green)
    reply.status = call(s.driver.cuGreenCtxGetDevResource, green.handle, &r, type);
  else if (m.of == 1)
    reply.status = call(s.driver.cuCtxGetDevResource, v->gpu->context, &r, type);
  else
    reply.status = call(s.driver.cuDeviceGetDevResource, v->gpu->ordinal, &r, type);
  if (reply.status != CUDA_SUCCESS) return;
  wire::DevResource out;
  if (!keep(s, device, r, &out))
    reply.status = CUDA_ERROR_OUT_OF_MEMORY;
  else
    reply.put(out);
}

void split(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::SluiceDevResourceSplit>();
  if (!d.ok() || m.input >= s.objects.dev_resources.size() || m.query > 1 ||
      m.groups > wire::kMaxResourceGroups)
    return s.reject("DevResourceSplit makes no sense");
  const auto input = s.objects.dev_resources[m.input];
  if (!s.use(input.device)) return;
  std::vector<CUdevResource> result(m.groups, blank());
  CUdevResource remaining = blank();
  unsigned groups = m.groups;
  reply.status = call(s.driver.cuDevSmResourceSplitByCount, m.query ? nullptr : result.data(),
                      &groups, &input.resource, &remaining, m.flags, m.least);
  if (reply.status != CUDA_SUCCESS) return;
  wire::DevResourceGroups head{groups, m.query ? 0 : std::min(groups, m.groups), {}};
  // A simulated split leaves nothing.
  std::vector<wire::DevResource> given(head.given);
  bool kept = m.query || keep(s, input.device, remaining, &head.remaining);
  for (uint32_t i = 0; i < head.given; ++i)
    kept = kept && keep(s, input.device, result[i], &given[i]);
  if (!kept) {
    reply.status = CUDA_ERROR_OUT_OF_MEMORY;
    return;
  }
  reply.put(head);
  reply.put_bytes(given.data(), given.size() * sizeof given[0]);
}

void describe(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::SluiceDevResourceDescribe>();
  if (!d.ok() || m.count == 0 || m.count > wire::kMaxDescribedResources)
    return s.reject("DevResourceDescribe makes no sense");
  const auto numbers = d.bytes(size_t{m.count} * sizeof(uint32_t));
  if (!d.ok()) return s.reject("DevResourceDescribe is cut short");
  std::vector<CUdevResource> resources;
  uint32_t device = 0;
  for (uint32_t i = 0; i < m.count; ++i) {
    uint32_t number;
    std::memcpy(&number, numbers.data() + i * sizeof number, sizeof number);
    if (number >= s.objects.dev_resources.size())
      return s.reject("DevResourceDescribe names a resource that the session does not have");
    resources.push_back(s.objects.dev_resources[number].resource);
    device = s.objects.dev_resources[number].device;
  }
  if (!s.use(device)) return;
  if (s.objects.dev_descriptions.size() == kMaxDescriptions) {
    reply.status = CUDA_ERROR_OUT_OF_MEMORY;
    return;
  }
  CUdevResourceDesc made = nullptr;
  reply.status = call(s.driver.cuDevResourceGenerateDesc, &made, resources.data(), m.count);
  if (reply.status != CUDA_SUCCESS) return;
  reply.put(wire::DevResourceDescription{s.objects.dev_descriptions.size()});
  s.objects.dev_descriptions.push_back(made);
}

// A stream that runs on the green context's part. Blocking ones are made as a program makes them,
// with that context current for the moment.
CUresult make_uncharged_stream(Session& s, const GreenObject& green, unsigned flags, int priority,
                               CUstream* stream) {
  if (flags & CU_STREAM_NON_BLOCKING)
    return call(s.driver.cuGreenCtxStreamCreate, stream, green.handle, flags, priority);
  CUresult e = call(s.driver.cuCtxPushCurrent_v2, green.context);
  if (e != CUDA_SUCCESS) return e;
  e = s.driver.cuStreamCreateWithPriority(stream, flags, priority);
  CUcontext popped;
  call(s.driver.cuCtxPopCurrent_v2, &popped);
  return e;
}

CUresult make_stream(Session& s, const GreenObject& green, unsigned flags, int priority,
                     CUstream* stream) {
  Vgpu& v = *s.vgpus[green.device];
  if (!take_stream(s, v)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult e = make_uncharged_stream(s, green, flags, priority, stream);
  if (e != CUDA_SUCCESS) give_stream(v);
  return e;
}

void create(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::SluiceGreenCreate>();
  if (!d.ok() || !s.objects.green_contexts.has_room(m.id) ||
      !s.objects.streams.has_room(m.standard))
    return s.reject("GreenCreate mints no ids that are free");
  if (m.description >= s.objects.dev_descriptions.size() || m.flags > CU_GREEN_CTX_DEFAULT_STREAM)
    return s.reject("GreenCreate makes no sense");
  Vgpu* v = s.use_context(c.header.context);
  if (!v) return;
  GreenObject green;
  green.device = c.header.context - 1;
  reply.status = call(s.driver.cuGreenCtxCreate, &green.handle,
                      s.objects.dev_descriptions[m.description], v->gpu->ordinal, m.flags);
  if (reply.status != CUDA_SUCCESS) return;
  reply.status = call(s.driver.cuCtxFromGreenCtx, &green.context, green.handle);
  StreamObject standard;
  standard.device = green.device;
  standard.green = m.id;
  if (reply.status == CUDA_SUCCESS)
    reply.status = make_stream(s, green, CU_STREAM_NON_BLOCKING, 0, &standard.handle);
  if (reply.status == CUDA_SUCCESS) {
    s.objects.green_contexts.add(m.id, green);
    s.objects.streams.add(m.standard, standard);
  } else {
    call(s.driver.cuGreenCtxDestroy, green.handle);
  }
}

// Its streams go with it: CUDA lets nobody use them any more.
void destroy(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::SluiceGreenDestroy>();
  GreenObject green;
  if (!d.ok() || !s.objects.green_contexts.get(m.id, &green))
    return s.reject("GreenDestroy names a green context that the session does not have");
  Vgpu* v = s.use(green.device);
  if (!v) return;
  std::lock_guard lock(s.captures.mutex);
  std::vector<uint64_t> streams;
  s.objects.streams.for_each([&](uint64_t id, const StreamObject& o) {
    if (o.green == m.id) streams.push_back(id);
  });
  for (const uint64_t id : streams)
    if (s.captures.graph_of(id))
      return s.reject("GreenDestroy names a green context with a stream that captures");
  s.objects.green_contexts.take(m.id, &green);
  for (const uint64_t id : streams) {
    StreamObject o;
    if (s.objects.streams.take(id, &o)) end_stream(s, *v, o);
  }
  reply.status = call(s.driver.cuGreenCtxDestroy, green.handle);
}

void create_stream(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::SluiceGreenStreamCreate>();
  GreenObject green;
  if (!d.ok() || m.flags > CU_STREAM_NON_BLOCKING || !s.objects.streams.has_room(m.id))
    return s.reject("GreenStreamCreate mints no id that is free");
  if (!s.objects.green_contexts.get(m.green, &green))
    return s.reject("GreenStreamCreate names a green context that the session does not have");
  if (!s.use(green.device)) return;
  StreamObject o;
  o.device = green.device;
  o.green = m.green;
  reply.status = make_stream(s, green, m.flags, m.priority, &o.handle);
  if (reply.status == CUDA_SUCCESS) s.objects.streams.add(m.id, o);
}

// All that a context, green or primary, has been given; and all that it is given from now on.
void context_event(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::SluiceContextEvent>();
  if (!d.ok() || m.wait > 1) return s.reject("ContextEvent makes no sense");
  CUevent event;
  if (!s.objects.events.get(m.event, &event))
    return s.reject("ContextEvent names an event that the session does not have");
  GreenObject green;
  if (m.green && !s.objects.green_contexts.get(m.green, &green))
    return s.reject("ContextEvent names a green context that the session does not have");
  Vgpu* v = s.use(m.green ? green.device : c.header.context - 1);
  if (!v) return;
  // The driver would break every capture.
  if (s.captures.any()) {
    reply.status = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  } else if (m.green) {
    reply.status = m.wait ? call(s.driver.cuGreenCtxWaitEvent, green.handle, event)
                          : call(s.driver.cuGreenCtxRecordEvent, green.handle, event);
  } else {
    reply.status = m.wait ? call(s.driver.cuCtxWaitEvent, v->gpu->context, event)
                          : call(s.driver.cuCtxRecordEvent, v->gpu->context, event);
  }
}

}  // namespace

void add_green_context_handlers(DispatchTable& t) {
  t[wire::kSluiceDevResource].run = resource;
  t[wire::kSluiceDevResourceSplit].run = split;
  t[wire::kSluiceDevResourceDescribe].run = describe;
  t[wire::kSluiceGreenCreate].run = create;
  t[wire::kSluiceGreenDestroy].run = destroy;
  t[wire::kSluiceGreenStreamCreate].run = create_stream;
  t[wire::kSluiceContextEvent].run = context_event;
}

}  // namespace sluice::worker
