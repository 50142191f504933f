// SPDX-License-Identifier: Apache-2.0
// What every exported function starts with: is the driver initialised, is there a current context,
// has it failed. Each file in api/ holds the functions of one part of NVIDIA's driver API and only
// translates between it and the classes behind.
#pragma once

#pragma GCC visibility push(default)
#include "abi/cuda_driver.h"
#pragma GCC visibility pop

#include <memory>
#include <new>
#include <utility>

#include "softgpu/runtime/capture.h"
#include "softgpu/runtime/checkpoint.h"
#include "softgpu/runtime/context.h"
#include "softgpu/runtime/device.h"
#include "softgpu/runtime/log.h"

namespace sluice::softgpu {

// CUDA_SUCCESS once cuInit has run in this very process (not in the parent of a fork) and the
// caller is not a host callback.
CUresult ready();

// No exception crosses the C ABI.
template <class F>
CUresult guarded(F&& body) noexcept {
  try {
    return std::forward<F>(body)();
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  } catch (...) {
    return CUDA_ERROR_UNKNOWN;
  }
}

template <class F>
CUresult with_driver(F&& body) noexcept {
  return guarded([&]() -> CUresult {
    if (CUresult state = ready(); state != CUDA_SUCCESS) return state;
    const checkpoint::Call call;
    return body();
  });
}

template <class F>
CUresult with_device(CUdevice ordinal, F&& body) noexcept {
  return with_driver([&]() -> CUresult {
    Device* device = device_at(ordinal);
    return device ? body(*device) : CUDA_ERROR_INVALID_DEVICE;
  });
}

// The current context, alive; errors of earlier work are the caller's to look at.
template <class F>
CUresult with_any_context(F&& body) noexcept {
  return with_driver([&]() -> CUresult {
    std::shared_ptr<Context> context = current_context();
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    if (context->dead()) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return body(*context);
  });
}

// The current context; a failed one answers its error.
template <class F>
CUresult with_context(F&& body) noexcept {
  return with_any_context([&](Context& context) -> CUresult {
    if (context.error() != 0) return static_cast<CUresult>(context.error());
    return body(context);
  });
}

// The same for calls that are not safe while a stream captures (capture.h).
template <class F>
CUresult with_safe_context(F&& body) noexcept {
  return with_context([&](Context& context) -> CUresult {
    if (CUresult wrong = unsafe_while_capturing(); wrong != CUDA_SUCCESS) return wrong;
    return body(context);
  });
}

template <class F>
CUresult with_stream(CUstream handle, F&& body) noexcept {
  return with_context([&](Context& context) -> CUresult {
    std::shared_ptr<Stream> stream = context.stream(handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    return body(context, *stream);
  });
}

// The context's error as the result of a call that waited for work.
inline CUresult outcome(const Context& context) { return static_cast<CUresult>(context.error()); }

}  // namespace sluice::softgpu
