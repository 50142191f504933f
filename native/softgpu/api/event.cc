// SPDX-License-Identifier: Apache-2.0
// Events: recorded in a stream, waited for, and subtracted.
#include <chrono>

#include "softgpu/api/api.h"

namespace sluice::softgpu {
namespace {

int64_t now() {
  auto time = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
}

template <class F>
CUresult with_event(CUevent handle, F&& body) noexcept {
  return with_context([&](Context& context) -> CUresult {
    std::shared_ptr<Event> event = context.event(handle);
    for (const auto& other : all_contexts()) {
      if (!event) event = other->event(handle);
    }
    if (!event) return CUDA_ERROR_INVALID_HANDLE;
    return body(context, *event);
  });
}

}  // namespace
}  // namespace sluice::softgpu

using namespace sluice::softgpu;

CUresult cuEventCreate(CUevent* handle, unsigned int flags) {
  return with_context([&](Context& context) -> CUresult {
    constexpr unsigned kKnown =
        CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    if (!handle || (flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
    if (flags & CU_EVENT_INTERPROCESS) return CUDA_ERROR_NOT_SUPPORTED;
    *handle = reinterpret_cast<CUevent>(context.create_event(flags));
    return CUDA_SUCCESS;
  });
}

CUresult cuEventDestroy_v2(CUevent handle) {
  return with_any_context([&](Context& context) -> CUresult {
    if (context.destroy_event(reinterpret_cast<Event*>(handle))) return CUDA_SUCCESS;
    for (const auto& other : all_contexts()) {
      if (other->destroy_event(reinterpret_cast<Event*>(handle))) return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_HANDLE;
  });
}
CUresult cuEventDestroy(CUevent handle) { return cuEventDestroy_v2(handle); }

CUresult cuEventRecordWithFlags(CUevent handle, CUstream stream_handle, unsigned int flags) {
  if ((flags & ~static_cast<unsigned>(CU_EVENT_RECORD_EXTERNAL)) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return with_event(handle, [&](Context& context, Event& event) -> CUresult {
    std::shared_ptr<Stream> stream = context.stream(stream_handle);
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    if (&event.context() != &context) return CUDA_ERROR_INVALID_HANDLE;
    if (auto answer = record_in_capture(*stream, context.event(handle), flags != 0)) {
      return *answer;
    }
    auto mark = std::make_shared<EventMark>();
    // Also in a context that has failed: whoever waits for the event must be let go.
    mark->point = context.submit_always(
        *stream, [mark] { mark->nanoseconds.store(now(), std::memory_order_release); });
    event.set_mark(std::move(mark));
    return CUDA_SUCCESS;
  });
}

CUresult cuEventRecord(CUevent handle, CUstream stream) {
  return cuEventRecordWithFlags(handle, stream, 0);
}

CUresult cuEventQuery(CUevent handle) {
  return with_event(handle, [](Context& context, Event& event) -> CUresult {
    if (CUresult wrong = ask_captured_event(event); wrong != CUDA_SUCCESS) return wrong;
    std::shared_ptr<EventMark> mark = event.mark();
    if (mark && !mark->point.done()) return CUDA_ERROR_NOT_READY;
    return outcome(context);
  });
}

CUresult cuEventSynchronize(CUevent handle) {
  return with_event(handle, [](Context& context, Event& event) -> CUresult {
    if (CUresult wrong = ask_captured_event(event); wrong != CUDA_SUCCESS) return wrong;
    if (std::shared_ptr<EventMark> mark = event.mark()) mark->point.wait();
    context.printf_sink().flush();
    return outcome(context);
  });
}

CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
  return with_event(start, [&](Context&, Event& first) -> CUresult {
    return with_event(end, [&](Context&, Event& second) -> CUresult {
      if (!milliseconds) return CUDA_ERROR_INVALID_VALUE;
      if ((first.flags() | second.flags()) & CU_EVENT_DISABLE_TIMING) {
        return CUDA_ERROR_INVALID_HANDLE;
      }
      std::shared_ptr<EventMark> a = first.mark();
      std::shared_ptr<EventMark> b = second.mark();
      if (!a || !b) return CUDA_ERROR_INVALID_HANDLE;
      if (a->captured || b->captured) return CUDA_ERROR_CAPTURED_EVENT;
      if (!a->point.done() || !b->point.done()) return CUDA_ERROR_NOT_READY;
      *milliseconds = static_cast<float>(
          static_cast<double>(b->nanoseconds.load() - a->nanoseconds.load()) / 1e6);
      return CUDA_SUCCESS;
    });
  });
}
CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  return cuEventElapsedTime_v2(milliseconds, start, end);
}
