// SPDX-License-Identifier: Apache-2.0
#include "client/core/captures.h"

#include <algorithm>

#include "client/core/enter.h"
#include "client/core/session.h"
#include "client/objects/stream.h"

namespace sluice::client {

namespace {

const void* this_thread() { return &thread_state(); }

void take_part(Stream* stream, uint64_t capture) {
  std::atomic_ref(stream->capture).store(capture, std::memory_order_relaxed);
}

}  // namespace

Capture* Captures::find(uint64_t id) {
  for (auto& c : all_)
    if (c->id == id) return c.get();
  return nullptr;
}

// The legacy stream would have to wait for blocking streams, and those capture.
CUresult Captures::implicit(const Stream* stream, bool breaks) {
  CUresult result = CUDA_SUCCESS;
  if (stream->wire_id != 0) return result;
  for (auto& c : all_)
    for (const Stream* other : c->streams) {
      if (other->device != stream->device || other->flags & CU_STREAM_NON_BLOCKING) continue;
      c->invalidated |= breaks;
      result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
  return result;
}

CUresult Captures::check_work(Stream* stream) {
  std::lock_guard lock(mutex_);
  if (const Capture* c = find(stream->capture))
    return c->invalidated ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
  return implicit(stream, true);
}

CUresult Captures::check_unsafe() {
  const CUstreamCaptureMode mine = thread_state().capture_mode;
  if (mine == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  std::lock_guard lock(mutex_);
  CUresult result = CUDA_SUCCESS;
  for (auto& c : all_) {
    const bool forbids = c->thread == this_thread() ? c->mode != CU_STREAM_CAPTURE_MODE_RELAXED
                                                    : c->mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                                                          mine == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!forbids) continue;
    c->invalidated = true;
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return result;
}

CUresult Captures::check_wait(Stream* stream) {
  {
    std::lock_guard lock(mutex_);
    if (Capture* c = find(stream->capture)) {
      c->invalidated = true;
      return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    if (const CUresult e = implicit(stream, true); e != CUDA_SUCCESS) return e;
  }
  return check_unsafe();
}

CUresult Captures::check_wait(Device* device) {
  std::lock_guard lock(mutex_);
  CUresult result = CUDA_SUCCESS;
  for (auto& c : all_) {
    if (c->streams[0]->device != device) continue;
    c->invalidated = true;
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return result;
}

CUresult Captures::ask(uint64_t captured) {
  if (captured == 0) return unsafe();
  std::lock_guard lock(mutex_);
  Capture* c = find(captured);
  if (!c)
    return CUDA_ERROR_INVALID_VALUE;  // that capture is over, and the event was never recorded
  c->invalidated = true;
  return CUDA_ERROR_CAPTURED_EVENT;
}

CUresult Captures::begin(Stream* stream, CUstreamCaptureMode mode, uint64_t graph, bool existing) {
  std::lock_guard lock(mutex_);
  if (stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
  auto c = std::make_unique<Capture>();
  c->id = next_id_++;
  c->graph = graph;
  c->existing = existing;
  c->mode = mode;
  c->thread = this_thread();
  c->streams.push_back(stream);
  take_part(stream, c->id);
  all_.push_back(std::move(c));
  count_.store(static_cast<uint32_t>(all_.size()));
  return CUDA_SUCCESS;
}

CUresult Captures::end(Stream* stream, Capture* ended) {
  std::lock_guard lock(mutex_);
  Capture* c = find(stream->capture);
  if (!c) return CUDA_ERROR_ILLEGAL_STATE;
  if (c->streams[0] != stream) {
    c->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  }
  const bool wrong_thread = c->mode != CU_STREAM_CAPTURE_MODE_RELAXED && c->thread != this_thread();
  c->invalidated |= wrong_thread;
  for (Stream* other : c->streams) take_part(other, 0);
  *ended = std::move(*c);
  std::erase_if(all_, [&](const auto& one) { return one.get() == c; });
  count_.store(static_cast<uint32_t>(all_.size()));
  return wrong_thread ? CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD : CUDA_SUCCESS;
}

CUresult Captures::status(Stream* stream, CUstreamCaptureStatus* status, Capture* capture) {
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (!any()) return CUDA_SUCCESS;
  std::lock_guard lock(mutex_);
  const Capture* c = find(stream->capture);
  if (!c) return implicit(stream, false);
  *status = c->invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  *capture = *c;
  return CUDA_SUCCESS;
}

CUresult Captures::record(Stream* stream, uint64_t* captured) {
  *captured = 0;
  if (!any()) return CUDA_SUCCESS;
  std::lock_guard lock(mutex_);
  const Capture* c = find(stream->capture);
  if (!c) return implicit(stream, true);
  if (c->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  *captured = c->id;
  return CUDA_SUCCESS;
}

CUresult Captures::join(Stream* stream, uint64_t captured, bool recorded, Join* how) {
  *how = recorded ? Join::kWait : Join::kNothing;
  if (!captured && !any()) return CUDA_SUCCESS;
  std::lock_guard lock(mutex_);
  Capture* mine = find(stream->capture);
  if (!captured) {
    if (!mine) return implicit(stream, true);
    if (mine->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (!recorded) return CUDA_SUCCESS;
    mine->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  *how = Join::kWait;
  Capture* events = find(captured);
  if (!events) return CUDA_ERROR_INVALID_VALUE;  // of a capture that has ended
  if (events->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (mine == events) return CUDA_SUCCESS;
  if (mine) {
    mine->invalidated = events->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  if (stream->wire_id == 0) {
    events->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  events->streams.push_back(stream);
  take_part(stream, captured);
  return CUDA_SUCCESS;
}

CUresult Captures::refuse(Stream* stream) {
  std::lock_guard lock(mutex_);
  if (Capture* c = find(stream->capture)) c->invalidated = true;
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult Captures::leave(Stream* stream) {
  std::lock_guard lock(mutex_);
  Capture* c = find(stream->capture);
  if (!c) return CUDA_SUCCESS;
  if (c->streams[0] == stream) {
    c->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  std::erase(c->streams, stream);
  take_part(stream, 0);
  return CUDA_SUCCESS;
}

bool Captures::of_graph(uint64_t graph) {
  if (!any()) return false;
  std::lock_guard lock(mutex_);
  return std::any_of(all_.begin(), all_.end(), [&](const auto& c) { return c->graph == graph; });
}

}  // namespace sluice::client
