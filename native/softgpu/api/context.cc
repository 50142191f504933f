// SPDX-License-Identifier: Apache-2.0
// Contexts: primary and created ones, the current one, limits and synchronisation.
#include "softgpu/api/api.h"
#include "softgpu/memory/allocations.h"
#include "softgpu/memory/range_map.h"

namespace sluice::softgpu {
namespace {

constexpr unsigned kFlagMask = CU_CTX_FLAGS_MASK;

// nullptr: there is no memory left for it.
std::shared_ptr<Context> make(Device& device, unsigned flags, bool primary) {
  if (!device.memory.charge(device.context_bytes)) return nullptr;
  return std::make_shared<Context>(device, flags, primary);
}

CUresult create(CUcontext* handle, unsigned flags, CUdevice dev) {
  return with_device(dev, [&](Device& device) -> CUresult {
    if (!handle || (flags & ~kFlagMask) != 0) return CUDA_ERROR_INVALID_VALUE;
    auto context = make(device, flags, false);
    if (!context) return CUDA_ERROR_OUT_OF_MEMORY;
    register_context(context);
    push_context(context);
    *handle = handle_of(context.get());
    return CUDA_SUCCESS;
  });
}

void destroy(const std::shared_ptr<Context>& context) {
  context->destroy();
  unregister_context(context.get());
}

// The device's own memory becomes accessible to `peer`'s device, or stops being so.
void set_peer(Device& owner, int peer, bool enabled) {
  uint64_t bit = 1ull << peer;
  uint64_t mask = enabled ? owner.peers.fetch_or(bit) | bit : owner.peers.fetch_and(~bit) & ~bit;
  for (const auto& context : all_contexts()) {
    if (&context->device() != &owner) continue;
    for (const auto& [base, allocation] : Allocations::instance().of(context.get())) {
      if (allocation.host()) continue;
      uint64_t all = mask | 1ull << owner.ordinal;
      RangeMap::instance().grant(base, allocation.size, all, all);
    }
  }
}

}  // namespace
}  // namespace sluice::softgpu

using namespace sluice::softgpu;

CUresult cuDevicePrimaryCtxRetain(CUcontext* handle, CUdevice dev) {
  return with_device(dev, [&](Device& device) -> CUresult {
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    std::lock_guard lock(device.primary_mutex);
    if (!device.primary) {
      device.primary = make(device, device.primary_flags, true);
      if (!device.primary) return CUDA_ERROR_OUT_OF_MEMORY;
      register_context(device.primary);
    }
    ++device.primary_references;
    *handle = handle_of(device.primary.get());
    return CUDA_SUCCESS;
  });
}

static CUresult end_primary(Device& device, bool reset) {
  std::shared_ptr<Context> ended;
  {
    std::lock_guard lock(device.primary_mutex);
    if (!reset && device.primary_references == 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (!reset && --device.primary_references != 0) return CUDA_SUCCESS;
    ended.swap(device.primary);
    device.primary_references = 0;
  }
  if (ended) destroy(ended);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev) {
  return with_device(dev, [&](Device& device) { return end_primary(device, false); });
}
CUresult cuDevicePrimaryCtxRelease(CUdevice dev) { return cuDevicePrimaryCtxRelease_v2(dev); }

CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev) {
  return with_device(dev, [&](Device& device) { return end_primary(device, true); });
}
CUresult cuDevicePrimaryCtxReset(CUdevice dev) { return cuDevicePrimaryCtxReset_v2(dev); }

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags) {
  return with_device(dev, [&](Device& device) -> CUresult {
    if ((flags & ~kFlagMask) != 0) return CUDA_ERROR_INVALID_VALUE;
    std::lock_guard lock(device.primary_mutex);
    device.primary_flags = flags;
    if (device.primary) device.primary->set_flags(flags);
    return CUDA_SUCCESS;
  });
}
CUresult cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned int flags) {
  return cuDevicePrimaryCtxSetFlags_v2(dev, flags);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int* flags, int* active) {
  return with_device(dev, [&](Device& device) -> CUresult {
    if (!flags || !active) return CUDA_ERROR_INVALID_VALUE;
    std::lock_guard lock(device.primary_mutex);
    *flags = device.primary_flags;
    *active = device.primary != nullptr;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxCreate_v2(CUcontext* context, unsigned int flags, CUdevice dev) {
  return create(context, flags, dev);
}

CUresult cuCtxCreate_v3(CUcontext* context, CUexecAffinityParam*, int count, unsigned int flags,
                        CUdevice dev) {
  if (count != 0) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
  return create(context, flags, dev);
}

CUresult cuCtxCreate_v4(CUcontext* context, CUctxCreateParams* parameters, unsigned int flags,
                        CUdevice dev) {
  if (parameters && parameters->numExecAffinityParams != 0) {
    return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
  }
  if (parameters && parameters->cigParams) return CUDA_ERROR_NOT_SUPPORTED;
  return create(context, flags, dev);
}

CUresult cuCtxDestroy_v2(CUcontext handle) {
  return with_driver([&]() -> CUresult {
    std::shared_ptr<Context> context = context_from(handle);
    if (!context || context->primary()) return CUDA_ERROR_INVALID_CONTEXT;
    if (current_context() == context) {
      std::shared_ptr<Context> popped;
      pop_context(popped);
    }
    destroy(context);
    return CUDA_SUCCESS;
  });
}
CUresult cuCtxDestroy(CUcontext handle) { return cuCtxDestroy_v2(handle); }

CUresult cuCtxSetCurrent(CUcontext handle) {
  return with_driver([&]() -> CUresult {
    if (!handle) {
      set_current_context(nullptr);
      return CUDA_SUCCESS;
    }
    std::shared_ptr<Context> context = context_from(handle);
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    set_current_context(std::move(context));
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetCurrent(CUcontext* handle) {
  return with_driver([&]() -> CUresult {
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    *handle = handle_of(current_context().get());
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxPushCurrent_v2(CUcontext handle) {
  return with_driver([&]() -> CUresult {
    std::shared_ptr<Context> context = context_from(handle);
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    push_context(std::move(context));
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxPopCurrent_v2(CUcontext* handle) {
  return with_driver([&]() -> CUresult {
    std::shared_ptr<Context> context;
    if (!pop_context(context)) return CUDA_ERROR_INVALID_CONTEXT;
    if (handle) *handle = handle_of(context.get());
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetDevice(CUdevice* device) {
  return with_any_context([&](Context& context) -> CUresult {
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    *device = context.device().ordinal;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetDevice_v2(CUdevice* device, CUcontext handle) {
  if (!handle) return cuCtxGetDevice(device);
  return with_driver([&]() -> CUresult {
    std::shared_ptr<Context> context = context_from(handle);
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    *device = context->device().ordinal;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxSynchronize(void) {
  return with_any_context([](Context& context) -> CUresult {
    if (CUresult wrong = wait_while_capturing(context); wrong != CUDA_SUCCESS) return wrong;
    context.synchronize();
    return outcome(context);
  });
}

CUresult cuCtxSynchronize_v2(CUcontext handle) {
  if (!handle) return cuCtxSynchronize();
  return with_driver([&]() -> CUresult {
    std::shared_ptr<Context> context = context_from(handle);
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    if (CUresult wrong = wait_while_capturing(*context); wrong != CUDA_SUCCESS) return wrong;
    context->synchronize();
    return outcome(*context);
  });
}

CUresult cuCtxGetFlags(unsigned int* flags) {
  return with_any_context([&](Context& context) -> CUresult {
    if (!flags) return CUDA_ERROR_INVALID_VALUE;
    *flags = context.flags();
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxSetFlags(unsigned int flags) {
  return with_any_context([&](Context& context) -> CUresult {
    if ((flags & ~kFlagMask) != 0) return CUDA_ERROR_INVALID_VALUE;
    context.set_flags(flags);
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetId(CUcontext handle, unsigned long long* id) {
  return with_driver([&]() -> CUresult {
    std::shared_ptr<Context> context = handle ? context_from(handle) : current_context();
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    if (!id) return CUDA_ERROR_INVALID_VALUE;
    *id = context->id();
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetApiVersion(CUcontext handle, unsigned int* version) {
  return with_driver([&]() -> CUresult {
    std::shared_ptr<Context> context = handle ? context_from(handle) : current_context();
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    if (!version) return CUDA_ERROR_INVALID_VALUE;
    *version = 3020;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxSetLimit(CUlimit which, size_t value) {
  return with_context([&](Context& context) -> CUresult {
    return context.set_limit(which, value) ? CUDA_SUCCESS : CUDA_ERROR_UNSUPPORTED_LIMIT;
  });
}

CUresult cuCtxGetLimit(size_t* value, CUlimit which) {
  return with_context([&](Context& context) -> CUresult {
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    if (which == CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH ||
        which == CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT || which < 0 || which >= CU_LIMIT_MAX) {
      return CUDA_ERROR_UNSUPPORTED_LIMIT;
    }
    *value = context.limit(which);
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetCacheConfig(CUfunc_cache* config) {
  return with_context([&](Context& context) -> CUresult {
    if (!config) return CUDA_ERROR_INVALID_VALUE;
    *config = static_cast<CUfunc_cache>(context.cache_config.load());
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxSetCacheConfig(CUfunc_cache config) {
  return with_context([&](Context& context) -> CUresult {
    context.cache_config = config;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetSharedMemConfig(CUsharedconfig* config) {
  return with_context([&](Context& context) -> CUresult {
    if (!config) return CUDA_ERROR_INVALID_VALUE;
    *config = static_cast<CUsharedconfig>(context.shared_config.load());
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxSetSharedMemConfig(CUsharedconfig config) {
  return with_context([&](Context& context) -> CUresult {
    context.shared_config = config;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  return with_context([&](Context&) -> CUresult {
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxResetPersistingL2Cache(void) {
  return with_context([](Context&) { return CUDA_SUCCESS; });
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags) {
  return with_context([&](Context& context) -> CUresult {
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    std::shared_ptr<Context> other = context_from(peer);
    if (!other || &other->device() == &context.device()) return CUDA_ERROR_INVALID_CONTEXT;
    if (other->device().peers.load() >> context.device().ordinal & 1) {
      return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    }
    set_peer(other->device(), context.device().ordinal, true);
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxDisablePeerAccess(CUcontext peer) {
  return with_context([&](Context& context) -> CUresult {
    std::shared_ptr<Context> other = context_from(peer);
    if (!other) return CUDA_ERROR_INVALID_CONTEXT;
    if (!(other->device().peers.load() >> context.device().ordinal & 1)) {
      return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    }
    set_peer(other->device(), context.device().ordinal, false);
    return CUDA_SUCCESS;
  });
}
