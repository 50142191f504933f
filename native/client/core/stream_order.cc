// SPDX-License-Identifier: Apache-2.0
#include "client/core/stream_order.h"

#include <algorithm>

#include "client/core/session.h"
#include "client/objects/device.h"
#include "client/objects/event.h"
#include "client/objects/stream.h"

namespace sluice::client {

uint64_t make_order_event(Session& session, Device* device) {
  uint64_t id = 0;
  Event* made = session.events.create(&id);
  if (!made) return 0;
  made->device = device;
  made->flags = CU_EVENT_DISABLE_TIMING;
  const wire::EventCreate create{id, made->flags, 0};
  if (session.tell(*device, wire::kEventCreate, create) == CUDA_SUCCESS) return id;
  session.events.destroy(id);
  return 0;
}

Stream* StreamOrder::heir(Stream*) {
  static char nobody;
  return reinterpret_cast<Stream*>(&nobody);
}

StreamPoint DeviceOrder::point(Stream* stream) { return session_.work().point(*stream); }

bool DeviceOrder::passed(Stream* stream, StreamPoint point) {
  if (!point.whole_device && stream->probe != wire::kNoMark &&
      session_.marks().reached(stream->probe, stream->probe_value))
    session_.work().note_done(device_, stream, stream->probe_work);
  return session_.work().passed(device_, stream, point);
}

void DeviceOrder::probe(Stream* stream) {
  Marks& marks = session_.marks();
  // A mark must not get into a graph.
  if (!marks || session_.captures.any()) return;
  if (stream->probe == wire::kNoMark)
    stream->probe = marks.take(true);
  else if (!marks.reached(stream->probe, stream->probe_value))
    return;  // one is under way
  if (stream->probe == wire::kNoMark) return;
  stream->probe_work = session_.work().point(*stream).work;
  stream->probe_value = marks.next(stream->probe);
  session_.post(wire::kMark, wire::Mark{stream->wire_id, stream->probe, 0, stream->probe_value}, {},
                nullptr, device_.context());
}

bool DeviceOrder::follow(Stream* later, Stream* earlier) {
  const uint32_t context = device_.context();
  if (session_.captures.any()) return false;  // as what is recorded might be a capture
  if (!event_ && !(event_ = make_order_event(session_, &device_))) return false;
  // A wait means the record before it, so one event serves all.
  const wire::EventRecord record{event_, earlier->wire_id, wire::kNoMark, 0, 0};
  const wire::StreamWaitEvent wait{later->wire_id, event_, 0, 0};
  return session_.post(wire::kEventRecord, record, {}, nullptr, context) == CUDA_SUCCESS &&
         session_.post(wire::kStreamWaitEvent, wait, {}, later, context) == CUDA_SUCCESS;
}

bool DeviceOrder::wait_idle() {
  const uint64_t upto = session_.work().issued(device_);
  if (session_.ask(device_, wire::kDeviceIdle, wire::DeviceIdle{device_.place.index, 0}) !=
      CUDA_SUCCESS)
    return false;
  session_.work().note_done(device_, nullptr, upto);
  return true;
}

SessionOrder::SessionOrder(Session& session) : session_(session) {
  for (auto& device : session.devices())
    orders_.push_back(std::make_unique<DeviceOrder>(session, *device));
}

StreamPoint SessionOrder::point(Stream* stream) { return session_.work().point(*stream); }

bool SessionOrder::passed(Stream* stream, StreamPoint point) {
  return session_.work().passed(*stream->device, stream, point);
}

bool SessionOrder::follow(Stream* later, Stream* earlier) {
  return later->device == earlier->device && orders_[later->device->index]->follow(later, earlier);
}

bool SessionOrder::wait_idle() {
  bool all = true;
  for (auto& order : orders_) all &= order->wait_idle();
  return all;
}

Stream* SessionOrder::heir(Stream* stream) { return &stream->device->gone; }

}  // namespace sluice::client
