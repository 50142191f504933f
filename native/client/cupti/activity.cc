// SPDX-License-Identifier: Apache-2.0
// The exported Activity API.
#include <pthread.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <mutex>

#include "client/cupti/activities.h"
#include "client/cupti/calls.h"
#include "client/cupti/clock.h"
#include "client/cupti/recorder.h"
#include "client/cupti/session.h"

using namespace sluice::cupti;

namespace {

// CUpti_ActivityAttribute: how NVIDIA's library uses memory on the device, of which ours uses none.
// A value that is set is kept for whoever asks.
constexpr uint32_t kAttributes = 11;
struct Attribute {
  size_t bytes = 0;
  std::array<std::byte, 8> value{};
};
std::mutex g_attributes_mutex;
Attribute g_attributes[kAttributes];

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

// Tells a worker that finds this library that it is none of NVIDIA's (worker/profile).
extern const int sluice_cupti;
const int sluice_cupti = 1;

int cuptiActivityEnable(uint32_t kind) { return Activities::get().enable(kind); }
int cuptiActivityEnableAndDump(uint32_t kind) { return Activities::get().enable(kind); }
int cuptiActivityDisable(uint32_t kind) { return Activities::get().disable(kind); }
// All contexts of a process are recorded or none.
int cuptiActivityEnableContext(void* context, uint32_t kind) {
  return context ? Activities::get().enable(kind) : kInvalidContext;
}
int cuptiActivityDisableContext(void* context, uint32_t kind) {
  return context ? Activities::get().disable(kind) : kInvalidContext;
}

int cuptiActivityEnableRuntimeApi(uint32_t number, uint8_t enable) {
  return Calls::get().record_call(kRuntimeApi, number, enable) ? kSuccess : kInvalidParameter;
}
int cuptiActivityEnableDriverApi(uint32_t number, uint8_t enable) {
  return Calls::get().record_call(kDriverApi, number, enable) ? kSuccess : kInvalidParameter;
}

int cuptiActivityRegisterCallbacks(BufferRequested requested, BufferCompleted completed) {
  if (!requested || !completed) return kInvalidParameter;
  Recorder::get().use(requested, completed);
  return kSuccess;
}

int cuptiActivityFlushAll(uint32_t flags) { return Activities::get().flush(flags & kFlushForced); }
int cuptiActivityFlush(void*, uint32_t, uint32_t flags) {
  return Activities::get().flush(flags & kFlushForced);
}
int cuptiActivityFlushPeriod(uint32_t milliseconds) {
  Activities::get().flush_every(milliseconds);
  return kSuccess;
}

int cuptiActivityGetNextRecord(uint8_t* buffer, size_t valid, const uint8_t** record) {
  if (!buffer || !record) return kInvalidParameter;
  size_t at = 0;
  uint32_t kind = 0;
  if (*record) {
    if (*record < buffer || *record >= buffer + valid) return kInvalidParameter;
    std::memcpy(&kind, *record, sizeof kind);
    const size_t bytes = record_bytes(kind);
    if (bytes == 0) return kInvalidKind;
    at = static_cast<size_t>(*record - buffer) + bytes;
  }
  if (at + sizeof kind > valid) return kMaxLimitReached;
  std::memcpy(&kind, buffer + at, sizeof kind);
  const size_t bytes = record_bytes(kind);
  if (bytes == 0 || at + bytes > valid) return kMaxLimitReached;
  *record = buffer + at;
  return kSuccess;
}

// Of all contexts and streams, as they share what waits.
int cuptiActivityGetNumDroppedRecords(void*, uint32_t, size_t* dropped) {
  if (!dropped) return kInvalidParameter;
  *dropped = Recorder::get().take_dropped();
  return kSuccess;
}

int cuptiActivityPushExternalCorrelationId(uint32_t kind, uint64_t id) {
  return Calls::push(kind, id);
}
int cuptiActivityPopExternalCorrelationId(uint32_t kind, uint64_t* last) {
  return Calls::pop(kind, last);
}

int cuptiActivityRegisterTimestampCallback(uint64_t (*stamp)()) {
  Clock::get().use(stamp);
  return kSuccess;
}

int cuptiGetTimestamp(uint64_t* at) {
  if (!at) return kInvalidParameter;
  *at = Clock::get().now();
  return kSuccess;
}

int cuptiActivitySetAttribute(uint32_t attribute, size_t* bytes, void* value) {
  if (attribute >= kAttributes || !bytes || !value) return kInvalidParameter;
  if (*bytes == 0 || *bytes > 8) return kParameterSizeNotSufficient;
  std::lock_guard lock(g_attributes_mutex);
  g_attributes[attribute].bytes = *bytes;
  std::memcpy(g_attributes[attribute].value.data(), value, *bytes);
  return kSuccess;
}

int cuptiActivityGetAttribute(uint32_t attribute, size_t* bytes, void* value) {
  if (attribute >= kAttributes || !bytes || !value) return kInvalidParameter;
  std::lock_guard lock(g_attributes_mutex);
  const Attribute& a = g_attributes[attribute];
  if (a.bytes == 0) return kNotSupported;
  if (*bytes < a.bytes) return kParameterSizeNotSufficient;
  std::memcpy(value, a.value.data(), a.bytes);
  *bytes = a.bytes;
  return kSuccess;
}

int cuptiGetDeviceId(CUcontext context, uint32_t* device) {
  if (!device) return kInvalidParameter;
  const auto* s = session();
  return s && s->device_of(context, device) ? kSuccess : kInvalidContext;
}

int cuptiGetContextId(CUcontext context, uint32_t* id) {
  const int e = cuptiGetDeviceId(context, id);
  if (e == kSuccess) ++*id;
  return e;
}

int cuptiGetStreamIdEx(CUcontext context, CUstream stream, uint8_t per_thread, uint32_t* id) {
  if (!id) return kInvalidParameter;
  const auto* s = session();
  if (!s) return kNotInitialized;
  if (per_thread && !stream) stream = CU_STREAM_PER_THREAD;
  switch (s->stream_id(context, stream, id)) {
    case CUDA_SUCCESS:
      return kSuccess;
    case CUDA_ERROR_INVALID_CONTEXT:
      return kInvalidContext;
    case CUDA_ERROR_INVALID_HANDLE:
      return kInvalidStream;
    default:
      return kNotSupported;
  }
}

int cuptiGetStreamId(CUcontext context, CUstream stream, uint32_t* id) {
  return cuptiGetStreamIdEx(context, stream, 0, id);
}

int cuptiSetThreadIdType(uint32_t type) {
  if (type > 1) return kNotSupported;
  Calls::get().thread_id_type = type;
  return kSuccess;
}

int cuptiGetThreadIdType(uint32_t* type) {
  if (!type) return kInvalidParameter;
  *type = Calls::get().thread_id_type;
  return kSuccess;
}

}  // extern "C"
#pragma GCC visibility pop
