// SPDX-License-Identifier: Apache-2.0
// Contexts and which one is current: client-side state of the thread. The worker uses each device's
// primary context; a context made by cuCtxCreate is a name of its own for the same one.
#include "client/objects/context.h"

#include <algorithm>

#include "client/core/enter.h"
#include "client/core/session.h"
#include "client/driver/array.h"
#include "client/objects/device.h"
#include "wire/generated.h"

using namespace sluice::client;
namespace wire = sluice::wire;

namespace {

CUcontext as_context(uint64_t id) { return reinterpret_cast<CUcontext>(id); }
uint64_t as_id(CUcontext c) { return reinterpret_cast<uint64_t>(c); }

CUresult device_of(CUdevice ordinal, Session** s, Device** device) {
  if (const CUresult e = enter_choice(s); e != CUDA_SUCCESS) return e;
  auto& all = (*s)->devices();
  if (ordinal < 0 || static_cast<size_t>(ordinal) >= all.size()) return CUDA_ERROR_INVALID_DEVICE;
  *device = all[static_cast<size_t>(ordinal)].get();
  return CUDA_SUCCESS;
}

constexpr unsigned kFlagMask = 0xff;

CUresult synchronize(Session* s, Device* d) {
  if (const CUresult e = s->captures.wait(d); e != CUDA_SUCCESS) return e;
  const uint64_t upto = s->work().issued(*d);
  const CUresult e =
      s->ask(*d, sluice::wire::kDeviceIdle, sluice::wire::DeviceIdle{d->place.index, 0});
  if (e != CUDA_SUCCESS) return e;
  s->work().note_done(*d, nullptr, upto);
  s->after_synchronisation(*d);
  return e;
}

}  // namespace

extern "C" {

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice dev) {
  Session* s;
  Device* d;
  if (!context) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult e = device_of(dev, &s, &d); e != CUDA_SUCCESS) return e;
  d->primary_uses.fetch_add(1);
  *context = as_context(d->primary);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev) {
  Session* s;
  Device* d;
  if (const CUresult e = device_of(dev, &s, &d); e != CUDA_SUCCESS) return e;
  uint32_t uses = d->primary_uses.load();
  do {
    if (uses == 0) return CUDA_ERROR_INVALID_CONTEXT;
  } while (!d->primary_uses.compare_exchange_weak(uses, uses - 1));
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int* flags, int* active) {
  Session* s;
  Device* d;
  if (const CUresult e = device_of(dev, &s, &d); e != CUDA_SUCCESS) return e;
  if (!flags || !active) return CUDA_ERROR_INVALID_VALUE;
  *flags = d->primary_flags.load();
  *active = d->primary_uses.load() > 0;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags) {
  Session* s;
  Device* d;
  if (const CUresult e = device_of(dev, &s, &d); e != CUDA_SUCCESS) return e;
  if (flags & ~kFlagMask) return CUDA_ERROR_INVALID_VALUE;
  d->primary_flags.store(flags);
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev) {
  Session* s;
  Device* d;
  if (const CUresult e = device_of(dev, &s, &d); e != CUDA_SUCCESS) return e;
  if (const CUresult e = synchronize(s, d); e != CUDA_SUCCESS) return e;
  d->graph_memory.clear();
  d->pools.clear();
  s->imported_pools.clear(*d);
  forget_textures_of(s, d);
  if (const CUresult e = end_arrays_of(s, d); e != CUDA_SUCCESS) return e;
  s->managed.clear(d);
  d->memory.clear();
  d->primary_uses.store(0);
  return CUDA_SUCCESS;
}
CUresult cuCtxCreate_v2(CUcontext* context, unsigned int flags, CUdevice dev) {
  Session* s;
  Device* d;
  if (!context || flags & ~kFlagMask) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult e = device_of(dev, &s, &d); e != CUDA_SUCCESS) return e;
  uint64_t id;
  Context* c = s->contexts.create(&id);
  if (!c) return CUDA_ERROR_OUT_OF_MEMORY;
  c->device = d;
  c->flags = flags;
  *context = as_context(id);
  return cuCtxPushCurrent_v2(*context);
}
CUresult cuCtxCreate_v3(CUcontext* context, CUexecAffinityParam* affinity, int count,
                        unsigned int flags, CUdevice dev) {
  if (count < 0 || (affinity && count == 0) || (!affinity && count))
    return CUDA_ERROR_INVALID_VALUE;
  return affinity ? CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY : cuCtxCreate_v2(context, flags, dev);
}
CUresult cuCtxCreate_v4(CUcontext* context, CUctxCreateParams* params, unsigned int flags,
                        CUdevice dev) {
  if (params && (params->execAffinityParams || params->cigParams)) return CUDA_ERROR_NOT_SUPPORTED;
  return cuCtxCreate_v2(context, flags, dev);
}

CUresult cuCtxDestroy_v2(CUcontext context) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  const Context* c = s->contexts.find(context);
  if (!c || c->primary || c->green) return CUDA_ERROR_INVALID_CONTEXT;
  ThreadState& t = thread_state();
  if (t.depth && t.contexts[t.depth - 1] == as_id(context)) --t.depth;
  s->contexts.destroy(as_id(context));
  return CUDA_SUCCESS;
}

CUresult cuCtxAttach(CUcontext* context, unsigned int flags) {
  Session* s;
  Device* d;
  if (const CUresult e = enter(&s, &d); e != CUDA_SUCCESS) return e;
  if (!context || flags) return CUDA_ERROR_INVALID_VALUE;
  const ThreadState& t = thread_state();
  const uint64_t id = t.contexts[t.depth - 1];
  Context* c = s->contexts.find(id);
  if (c->primary || c->green) return CUDA_ERROR_INVALID_CONTEXT;  // they have other ends
  ++c->uses;
  *context = as_context(id);
  return CUDA_SUCCESS;
}

CUresult cuCtxDetach(CUcontext context) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  Context* c = s->contexts.find(context);
  const ThreadState& t = thread_state();
  if (!c || c->primary || c->green || !t.depth || t.contexts[t.depth - 1] != as_id(context))
    return CUDA_ERROR_INVALID_CONTEXT;
  return --c->uses ? CUDA_SUCCESS : cuCtxDestroy_v2(context);
}

CUresult cuCtxPushCurrent_v2(CUcontext context) {
  Session* s;
  if (const CUresult e = enter_choice(&s); e != CUDA_SUCCESS) return e;
  if (!s->contexts.find(context)) return CUDA_ERROR_INVALID_CONTEXT;
  ThreadState& t = thread_state();
  if (t.depth == ThreadState::kDepth) return CUDA_ERROR_OUT_OF_MEMORY;
  t.contexts[t.depth++] = as_id(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  Session* s;
  if (const CUresult e = enter_choice(&s); e != CUDA_SUCCESS) return e;
  ThreadState& t = thread_state();
  if (t.depth == 0) return CUDA_ERROR_INVALID_CONTEXT;
  --t.depth;
  if (context) *context = as_context(t.contexts[t.depth]);
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  Session* s;
  if (const CUresult e = enter_choice(&s); e != CUDA_SUCCESS) return e;
  ThreadState& t = thread_state();
  if (!context) {
    if (t.depth) --t.depth;
    return CUDA_SUCCESS;
  }
  if (!s->contexts.find(context)) return CUDA_ERROR_INVALID_CONTEXT;
  if (t.depth == 0) t.depth = 1;
  t.contexts[t.depth - 1] = as_id(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  if (!context) return CUDA_ERROR_INVALID_VALUE;
  if (!Session::get()) return CUDA_ERROR_NOT_INITIALIZED;
  const ThreadState& t = thread_state();
  *context = t.depth ? as_context(t.contexts[t.depth - 1]) : nullptr;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* dev) {
  Session* s;
  Device* d;
  if (!dev) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult e = enter(&s, &d); e != CUDA_SUCCESS) return e;
  *dev = static_cast<CUdevice>(d->index);
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice_v2(CUdevice* dev, CUcontext context) {
  if (!context) return cuCtxGetDevice(dev);
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  const Context* c = s->contexts.find(context);
  if (!c) return CUDA_ERROR_INVALID_CONTEXT;
  if (!dev) return CUDA_ERROR_INVALID_VALUE;
  *dev = static_cast<CUdevice>(c->device->index);
  return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void) {
  Session* s;
  Device* d;
  if (const CUresult e = enter(&s, &d); e != CUDA_SUCCESS) return e;
  return synchronize(s, d);
}
CUresult cuCtxSynchronize_v2(CUcontext context) {
  if (!context) return cuCtxSynchronize();
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  const Context* c = s->contexts.find(context);
  return c ? synchronize(s, c->device) : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuCtxGetFlags(unsigned int* flags) {
  Session* s;
  Device* d;
  if (const CUresult e = enter(&s, &d); e != CUDA_SUCCESS) return e;
  if (!flags) return CUDA_ERROR_INVALID_VALUE;
  const ThreadState& t = thread_state();
  const Context* c = s->contexts.find(t.contexts[t.depth - 1]);
  *flags = c->primary ? d->primary_flags.load() : c->flags;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetFlags(unsigned int flags) {
  Session* s;
  Device* d;
  if (const CUresult e = enter(&s, &d); e != CUDA_SUCCESS) return e;
  if (flags & ~kFlagMask) return CUDA_ERROR_INVALID_VALUE;
  const ThreadState& t = thread_state();
  Context* c = s->contexts.find(t.contexts[t.depth - 1]);
  if (c->primary)
    d->primary_flags.store(flags);
  else
    c->flags = flags;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetId(CUcontext context, unsigned long long* id) {
  Session* s;
  Device* d;
  if (const CUresult e = enter(&s, &d); e != CUDA_SUCCESS) return e;
  const ThreadState& t = thread_state();
  const uint64_t wanted = context ? as_id(context) : t.contexts[t.depth - 1];
  if (!s->contexts.find(wanted)) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (!id) return CUDA_ERROR_INVALID_VALUE;
  *id = wanted & 0xffffffffff;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetApiVersion(CUcontext context, unsigned int* version) {
  Session* s;
  if (const CUresult e = enter(&s); e != CUDA_SUCCESS) return e;
  if (context && !s->contexts.find(context)) return CUDA_ERROR_INVALID_CONTEXT;
  if (!version) return CUDA_ERROR_INVALID_VALUE;
  *version = 3020;  // what NVIDIA's driver says of every context of the current interface
  return CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  Session* s;
  Device* d;
  if (const CUresult e = enter(&s, &d); e != CUDA_SUCCESS) return e;
  if (least) *least = d->record.stream_priority_least;
  if (greatest) *greatest = d->record.stream_priority_greatest;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
  Session* s;
  Device* d;
  if (const CUresult e = enter(&s, &d); e != CUDA_SUCCESS) return e;
  if (!wire::known<CUlimit>(static_cast<uint32_t>(limit))) return CUDA_ERROR_INVALID_VALUE;
  wire::CuCtxSetLimit r{};
  r.limit = static_cast<uint32_t>(limit);
  r.value = value;
  const CUresult e = s->exchange(wire::kCuCtxSetLimit, r, {}, {}, nullptr, nullptr, d->context());
  // The node keeps as much for each thread from here on, be it more or less than before.
  if (e == CUDA_SUCCESS && limit == CU_LIMIT_STACK_SIZE && d->record.thread_bytes)
    d->thread_bytes = std::max<uint64_t>(value, d->record.thread_bytes);
  return e;
}

CUresult cuCtxGetCacheConfig(CUfunc_cache* config) {
  Session* s;
  Device* d;
  if (const CUresult e = enter(&s, &d); e != CUDA_SUCCESS) return e;
  if (!config) return CUDA_ERROR_INVALID_VALUE;
  *config = CU_FUNC_CACHE_PREFER_NONE;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCacheConfig(CUfunc_cache) {
  Session* s;
  Device* d;
  return enter(&s, &d);  // a preference, and one that current GPUs do not have
}

}  // extern "C"
