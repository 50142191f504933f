// SPDX-License-Identifier: Apache-2.0
// Streams: creation, ordering, waiting, host callbacks.
#include "softgpu/api/api.h"

using namespace sluice::softgpu;

CUresult cuStreamCreateWithPriority(CUstream* handle, unsigned int flags, int priority) {
  return with_context([&](Context& context) -> CUresult {
    if (!handle || (flags & ~static_cast<unsigned>(CU_STREAM_NON_BLOCKING)) != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    int clamped = priority > 0 ? 0 : priority < -5 ? -5 : priority;
    *handle = reinterpret_cast<CUstream>(context.create_stream(flags, clamped).get());
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamCreate(CUstream* handle, unsigned int flags) {
  return cuStreamCreateWithPriority(handle, flags, 0);
}

CUresult cuStreamDestroy_v2(CUstream handle) {
  return with_any_context([&](Context& context) -> CUresult {
    std::shared_ptr<Stream> stream = context.stream(handle);
    bool built_in =
        handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD;
    if (!stream || built_in) return CUDA_ERROR_INVALID_HANDLE;
    // What another stream has recorded meanwhile stays in the capture.
    if (began_capture(*stream)) return wait_while_capturing(*stream);
    context.destroy_stream(stream.get());
    return CUDA_SUCCESS;
  });
}
CUresult cuStreamDestroy(CUstream handle) { return cuStreamDestroy_v2(handle); }

CUresult cuStreamQuery(CUstream handle) {
  return with_stream(handle, [](Context& context, Stream& stream) -> CUresult {
    if (CUresult wrong = wait_while_capturing(stream); wrong != CUDA_SUCCESS) return wrong;
    if (!stream.tail().done()) return CUDA_ERROR_NOT_READY;
    return outcome(context);
  });
}

CUresult cuStreamSynchronize(CUstream handle) {
  return with_stream(handle, [](Context& context, Stream& stream) -> CUresult {
    if (CUresult wrong = wait_while_capturing(stream); wrong != CUDA_SUCCESS) return wrong;
    stream.tail().wait();
    context.printf_sink().flush();
    return outcome(context);
  });
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent event_handle, unsigned int flags) {
  return with_stream(handle, [&](Context& context, Stream& stream) -> CUresult {
    if ((flags & ~static_cast<unsigned>(CU_EVENT_WAIT_EXTERNAL)) != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    // Events of other contexts may be waited for as well.
    std::shared_ptr<Event> event = context.event(event_handle);
    for (const auto& other : all_contexts()) {
      if (!event) event = other->event(event_handle);
    }
    if (!event) return CUDA_ERROR_INVALID_HANDLE;
    if (auto answer = wait_in_capture(stream, event, flags != 0)) return *answer;
    std::shared_ptr<EventMark> mark = event->mark();
    if (mark && !mark->point.done()) context.submit_always(stream, [] {}, {mark->point});
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamGetFlags(CUstream handle, unsigned int* flags) {
  return with_stream(handle, [&](Context&, Stream& stream) -> CUresult {
    if (!flags) return CUDA_ERROR_INVALID_VALUE;
    *flags = stream.flags();
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamGetPriority(CUstream handle, int* priority) {
  return with_stream(handle, [&](Context&, Stream& stream) -> CUresult {
    if (!priority) return CUDA_ERROR_INVALID_VALUE;
    *priority = stream.priority();
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamGetId(CUstream handle, unsigned long long* id) {
  return with_stream(handle, [&](Context&, Stream& stream) -> CUresult {
    if (!id) return CUDA_ERROR_INVALID_VALUE;
    *id = stream.id();
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamGetCtx(CUstream handle, CUcontext* context_handle) {
  return with_stream(handle, [&](Context& context, Stream&) -> CUresult {
    if (!context_handle) return CUDA_ERROR_INVALID_VALUE;
    *context_handle = handle_of(&context);
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamGetDevice(CUstream handle, CUdevice* device) {
  return with_stream(handle, [&](Context& context, Stream&) -> CUresult {
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    *device = context.device().ordinal;
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamCopyAttributes(CUstream to, CUstream from) {
  return with_stream(to, [&](Context& context, Stream& stream) -> CUresult {
    const std::shared_ptr<Stream> other = context.stream(from);
    if (!other) return CUDA_ERROR_INVALID_HANDLE;
    stream.copy_attributes(*other);
    return CUDA_SUCCESS;
  });
}

// Attributes are about placement, priority and waiting: they change nothing here, and are kept.
CUresult cuStreamSetAttribute(CUstream handle, CUstreamAttrID id, const CUstreamAttrValue* value) {
  return with_stream(handle, [&](Context&, Stream& stream) -> CUresult {
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    stream.set_attribute(id, *value);
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamGetAttribute(CUstream handle, CUstreamAttrID id, CUstreamAttrValue* value) {
  return with_stream(handle, [&](Context&, Stream& stream) -> CUresult {
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    *value = stream.attribute(id);
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamAttachMemAsync(CUstream, CUdeviceptr, size_t, unsigned int) {
  return with_context([](Context&) { return CUDA_ERROR_NOT_SUPPORTED; });  // no managed memory
}

CUresult cuLaunchHostFunc(CUstream handle, CUhostFn fn, void* data) {
  return with_stream(handle, [&](Context& context, Stream& stream) -> CUresult {
    if (!fn) return CUDA_ERROR_INVALID_VALUE;
    if (auto answer = captured(stream, [&] { return Work(HostWork{fn, data}); })) return *answer;
    context.submit(stream, [fn, data] {
      set_in_host_callback(true);
      fn(data);
      set_in_host_callback(false);
    });
    return CUDA_SUCCESS;
  });
}

// Unlike a host function, a callback learns of the error and runs in spite of it.
CUresult cuStreamAddCallback(CUstream handle, CUstreamCallback callback, void* data,
                             unsigned int flags) {
  return with_stream(handle, [&](Context& context, Stream& stream) -> CUresult {
    if (!callback || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    CaptureState capture;
    if (capture_state(stream, &capture); capture.status != CU_STREAM_CAPTURE_STATUS_NONE) {
      return wait_while_capturing(stream);  // CUDA does not capture these
    }
    context.submit_always(stream, [&context, handle, callback, data] {
      set_in_host_callback(true);
      callback(handle, outcome(context), data);
      set_in_host_callback(false);
    });
    return CUDA_SUCCESS;
  });
}
