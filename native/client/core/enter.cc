// SPDX-License-Identifier: Apache-2.0
#include "client/core/enter.h"

#include "client/objects/context.h"

namespace sluice::client {

ThreadState& thread_state() {
  static thread_local ThreadState state{};
  return state;
}

CUresult enter(Session** session, Device** device) {
  if (const CUresult e = enter(session); e != CUDA_SUCCESS) return e;
  const ThreadState& thread = thread_state();
  if (thread.depth == 0) return CUDA_ERROR_INVALID_CONTEXT;
  const Context* context = (*session)->contexts.find(thread.contexts[thread.depth - 1]);
  if (!context) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  *device = context->device;
  return CUDA_SUCCESS;
}

CUresult resolve_stream(Session* session, Device* device, CUstream handle, Stream** stream) {
  const auto value = reinterpret_cast<uint64_t>(handle);
  if (value <= 1) {
    *stream = &device->legacy;
    const GreenContext* green = session->green_in_use.load(std::memory_order_relaxed)
                                    ? session->green_contexts.find(current_green(session))
                                    : nullptr;
    if (green) *stream = session->streams.find(green->standard);
    return *stream ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
  }
  if (value == 2) return per_thread_stream(session, device, stream);
  *stream = session->streams.find(value);
  if (!*stream) return CUDA_ERROR_INVALID_HANDLE;
  return (*stream)->orphan ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_SUCCESS;
}

CUresult ask_stream(CUstream handle, Session** session, Stream** stream) {
  constexpr uint64_t kLastOfContexts = 2;  // the handles that mean a stream of the current context
  if (reinterpret_cast<uint64_t>(handle) <= kLastOfContexts)
    return with_stream(handle, session, stream);
  if (const CUresult e = enter(session); e != CUDA_SUCCESS) return e;
  return resolve_stream(*session, nullptr, handle, stream);
}

}  // namespace sluice::client
