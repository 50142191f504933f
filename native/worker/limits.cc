// SPDX-License-Identifier: Apache-2.0
#include "worker/limits.h"

#include <algorithm>

#include "wire/generated.h"
#include "worker/dispatch.h"
#include "worker/library/charge.h"
#include "worker/session.h"

namespace sluice::worker {

namespace {

constexpr uint64_t kSlab = 2 << 20;
// Of a launch that a kernel has made and that waits, and of one level of kernels that wait for
// kernels (only where CUDA still has that limit: "up to 150 MB").
constexpr uint64_t kPendingLaunchBytes = 9728, kSyncLevelBytes = 160ull << 20;

uint64_t times(uint64_t a, uint64_t b) {
  uint64_t product;
  return __builtin_mul_overflow(a, b, &product) ? ~uint64_t{0} : product;
}

uint64_t slabs(uint64_t bytes) {
  return bytes > ~uint64_t{0} - kSlab ? bytes : (bytes + kSlab - 1) / kSlab * kSlab;
}

// The driver rounds to 16 bytes.
uint64_t whole_words(uint64_t bytes) {
  return bytes > ~uint64_t{0} - 16 ? bytes : (bytes + 15) & ~15ull;
}

// Of local memory beyond what comes with the context.
uint64_t local_cost(const Limits& l, uint64_t thread_bytes) {
  return thread_bytes > l.base_bytes ? slabs(times(thread_bytes - l.base_bytes, l.threads)) : 0;
}

// What one unit of a limit takes, and of whose memory; 0: nothing.
uint64_t unit_bytes(CUlimit limit, Metered* kind) {
  *kind = limit == CU_LIMIT_PRINTF_FIFO_SIZE ? Metered::kHost : Metered::kDevice;
  switch (limit) {
    case CU_LIMIT_PRINTF_FIFO_SIZE:
    case CU_LIMIT_MALLOC_HEAP_SIZE:
      return 1;
    case CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT:
      return kPendingLaunchBytes;
    case CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH:
      return kSyncLevelBytes;
    default:
      return 0;
  }
}

// From `now` bytes to `then`. False: there is not so much.
bool change(Session& s, Vgpu& v, Metered kind, uint64_t now, uint64_t then) {
  if (then > now) return take_for_library(s, v, kind, then - now);
  if (then < now) give_for_library(s, v, kind, now - then);
  return true;
}

CUresult set_stack(Session& s, Vgpu& v, uint64_t value) {
  Limits& l = v.limits;
  std::lock_guard lock(l.mutex);
  const uint64_t before = l.thread_bytes, wanted = whole_words(value);
  if (wanted > wire::kMaxThreadBytes) return CUDA_ERROR_INVALID_VALUE;
  if (wanted > before &&
      !change(s, v, Metered::kDevice, local_cost(l, before), local_cost(l, wanted)))
    return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult e = s.driver.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, value);
  // What kernels have made of it is gone with a smaller limit, until they are launched again.
  const uint64_t after = e == CUDA_SUCCESS ? std::max(wanted, l.base_bytes) : before;
  change(s, v, Metered::kDevice, local_cost(l, std::max(before, wanted)), local_cost(l, after));
  l.thread_bytes = after;
  return e;
}

CUresult set_charged(Session& s, Vgpu& v, CUlimit limit, uint64_t unit, Metered kind,
                     uint64_t value) {
  std::lock_guard lock(v.limits.mutex);
  auto& [base, held] = v.limits.held[limit];
  const auto cost = [&](uint64_t n) { return n > base ? times(n - base, unit) : 0; };
  const uint64_t most = std::max(held, value);
  if (!change(s, v, kind, cost(held), cost(most))) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult e = s.driver.cuCtxSetLimit(limit, value);
  // The driver may have made less of it.
  size_t now = value;
  if (e == CUDA_SUCCESS && call(s.driver.cuCtxGetLimit, &now, limit) != CUDA_SUCCESS) now = value;
  const uint64_t after = e == CUDA_SUCCESS ? std::min<uint64_t>(now, most) : held;
  change(s, v, kind, cost(most), cost(after));
  held = after;
  return e;
}

void set(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::CuCtxSetLimit>();
  if (!d.ok()) return s.reject("cuCtxSetLimit is cut short");
  if (!wire::known<CUlimit>(m.limit))
    return s.reject("cuCtxSetLimit carries no CUlimit that there is");
  if (Vgpu* v = s.use_context(c.header.context))
    reply.status = set_limit(s, *v, static_cast<CUlimit>(m.limit), m.value);
}

void local_memory(Session& s, const Command& c, Reply& reply) {
  Decoder d(c.body);
  const auto& m = d.fixed<wire::LocalMemory>();
  if (!d.ok()) return s.reject("LocalMemory is cut short");
  Vgpu* v = s.use(m.device);
  if (v && !take_local_memory(s, *v, m.thread_bytes)) reply.status = CUDA_ERROR_OUT_OF_MEMORY;
}

}  // namespace

void open_limits(const Driver& driver, Vgpu& v) {
  Limits& l = v.limits;
  const auto attribute = [&](CUdevice_attribute a) {
    int value = 0;
    driver.cuDeviceGetAttribute(&value, a, v.gpu->ordinal);
    return static_cast<uint64_t>(std::max(value, 0));
  };
  l.threads = attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) *
              attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
  const auto now = [&](CUlimit limit) {
    size_t value = 0;
    return call(driver.cuCtxGetLimit, &value, limit) == CUDA_SUCCESS ? value : 0;
  };
  l.base_bytes = now(CU_LIMIT_STACK_SIZE);
  l.thread_bytes = l.base_bytes;
  for (const CUlimit limit :
       {CU_LIMIT_PRINTF_FIFO_SIZE, CU_LIMIT_MALLOC_HEAP_SIZE,
        CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT, CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH})
    if (const uint64_t value = now(limit)) l.held[limit] = {value, value};
}

CUresult set_limit(Session& s, Vgpu& v, CUlimit limit, uint64_t value) {
  if (!s.driver.cuCtxSetLimit) return CUDA_ERROR_NOT_SUPPORTED;
  if (limit == CU_LIMIT_STACK_SIZE) return set_stack(s, v, value);
  Metered kind;
  // A limit that the driver does not have takes nothing, and the driver says so.
  const uint64_t unit = v.limits.held.contains(limit) ? unit_bytes(limit, &kind) : 0;
  return unit ? set_charged(s, v, limit, unit, kind, value) : s.driver.cuCtxSetLimit(limit, value);
}

bool take_local_memory(Session& s, Vgpu& v, uint64_t thread_bytes) {
  Limits& l = v.limits;
  const uint64_t wanted = whole_words(thread_bytes);
  // More than there can be is not launched; the driver says so.
  if (wanted <= l.thread_bytes || wanted > wire::kMaxThreadBytes) return true;
  std::lock_guard lock(l.mutex);
  const uint64_t now = l.thread_bytes;
  if (wanted <= now) return true;
  if (!change(s, v, Metered::kDevice, local_cost(l, now), local_cost(l, wanted))) return false;
  l.thread_bytes = wanted;
  return true;
}

void settle_local_memory(Session& s, Vgpu& v) {
  size_t now = 0;
  if (call(s.driver.cuCtxGetLimit, &now, CU_LIMIT_STACK_SIZE) != CUDA_SUCCESS) return;
  // vGPUs of one GPU share a context.
  for (const auto& other : s.vgpus)
    if (other->gpu == v.gpu && now <= other->limits.thread_bytes) return;
  if (!take_local_memory(s, v, now))
    s.reject("kernels have taken local memory of " + std::to_string(now) +
             " bytes for each thread, more than the vGPU has left");
}

void add_limit_handlers(DispatchTable& t) {
  using enum Handler::Answered;
  t[wire::kCuCtxSetLimit] = {"cuCtxSetLimit", set, kOnly, false};
  t[wire::kLocalMemory].run = local_memory;
}

}  // namespace sluice::worker
