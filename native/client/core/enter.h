// SPDX-License-Identifier: Apache-2.0
// How every driver call begins: with the session, and where it wants them with the current context
// and the stream that a handle means in it. Each of these returns the error that the call is to
// return. Owns what a thread carries.
#pragma once

#include <cstdint>

#include "abi/cuda_driver.h"
#include "client/core/session.h"
#include "client/objects/device.h"
#include "client/objects/stream.h"
#include "client/profile/api_calls.h"

namespace sluice::client {

// A thread's stack of current contexts (the newest last), and its capture mode.
struct ThreadState {
  static constexpr uint32_t kDepth = 64;
  uint32_t depth = 0;
  uint32_t last_lane = 0;
  CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  uint64_t contexts[kDepth];
  CallMark call;  // for a profiler
};
ThreadState& thread_state();

// The session, or the error to return.
inline CUresult enter(Session** session) {
  *session = Session::get();
  if (!*session) return CUDA_ERROR_NOT_INITIALIZED;
  return (*session)->sticky();
}

// The same for questions about devices, which CUDA answers even when the context is dead.
inline CUresult enter_query(Session** session) {
  *session = Session::get();
  return *session ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

// The same for what chooses a context: a lost node's devices are left that way, too.
inline CUresult enter_choice(Session** session) {
  const CUresult e = enter(session);
  return e != CUDA_SUCCESS && *session && (*session)->channel().some_node_left() ? CUDA_SUCCESS : e;
}

// The same as enter() for calls that need a current context.
CUresult enter(Session** session, Device** device);
// The stream that a handle means in the current context, or CUDA_ERROR_INVALID_HANDLE.
CUresult resolve_stream(Session* session, Device* device, CUstream handle, Stream** stream);
// enter() for a call that is about a stream.
inline CUresult with_stream(CUstream handle, Session** session, Stream** stream) {
  Device* device;
  if (const CUresult e = enter(session, &device); e != CUDA_SUCCESS) return e;
  return resolve_stream(*session, device, handle, stream);
}
// The same for a question about it: a handle of its own needs no current context (NVIDIA's DALI
// asks a stream for its context, to make that current).
CUresult ask_stream(CUstream handle, Session** session, Stream** stream);
// The same as with_stream() for a call that gives the stream work.
inline CUresult stream_for_work(Session* session, Device* device, CUstream handle,
                                Stream** stream) {
  if (const CUresult e = resolve_stream(session, device, handle, stream); e != CUDA_SUCCESS)
    return e;
  return session->captures.work(*stream);
}
// The green context that is current on this thread, 0 for none, and a stream made in one
// (driver/green_context.cc).
uint64_t current_green(Session* session);
CUresult mint_green_stream(Session* session, uint64_t green, unsigned flags, int priority,
                           uint64_t* id);
// A stream of the device's primary context (driver/stream.cc).
CUresult mint_stream(Session* session, Device* device, unsigned flags, int priority, uint64_t* id,
                     Stream** stream);
// The blocking stream that stands for CU_STREAM_PER_THREAD of this thread and device, minted at
// first use (driver/stream.cc).
CUresult per_thread_stream(Session* session, Device* device, Stream** stream);

}  // namespace sluice::client
