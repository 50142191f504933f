// SPDX-License-Identifier: Apache-2.0
#include "client/core/event_progress.h"

#include <algorithm>
#include <vector>

#include "channel/futex.h"
#include "client/core/session.h"
#include "client/objects/device.h"
#include "client/objects/stream.h"

namespace sluice::client {

namespace {

// What a thread was last told: at a time, one record of a stream was not done. For a moment that
// answers for the records behind it, for each once and in their order: who asks for the same one
// again wants to know anew. Nothing can have told the program meanwhile that they are done: that
// would have been an answer, or have come from another process, which has its answers no sooner.
struct NotDone {
  static constexpr uint64_t kMomentNs = 20'000;  // less than an answer takes
  const Stream* stream = nullptr;
  uint64_t work = 0;   // of the first that was not done
  uint64_t asked = 0;  // of the newest that the program has asked for
  uint64_t answers = 0, at_ns = 0;

  bool covers(const Session& session, const Event& event) const {
    return event.stream == stream && event.work >= work && event.work > asked &&
           session.answers_heard() == answers && channel::now_ns() - at_ns < kMomentNs;
  }
};

thread_local NotDone t_not_done;

}  // namespace

void EventProgress::recorded(uint64_t id, Event* event) {
  std::lock_guard lock(mutex_);
  std::deque<Stream::Record>& records = event->stream->records;
  // Threads that record in one stream may come here in another order.
  auto at = records.end();
  while (at != records.begin() && (at - 1)->work > event->work) --at;
  records.insert(at, {id, event->work});
  event->listed = true;
  event->done = false;
  if (records.size() > kMostRecords) take_off_until(event->stream, records.front().work);
}

void EventProgress::take_off(uint64_t id, Event* event) {
  if (!event->listed) return;
  event->done = done(*event);
  event->listed = false;
  std::deque<Stream::Record>& records = event->stream->records;
  const auto at = std::ranges::find(records, id, &Stream::Record::event);
  if (at != records.end()) records.erase(at);
}

void EventProgress::forget(uint64_t id, Event* event) {
  std::lock_guard lock(mutex_);
  take_off(id, event);
  event->done = false;
}

void EventProgress::forget(Stream* stream) {
  std::lock_guard lock(mutex_);
  take_off_until(stream, UINT64_MAX);
}

void EventProgress::take_off_until(Stream* stream, uint64_t work) {
  while (!stream->records.empty() && stream->records.front().work <= work) {
    const Stream::Record oldest = stream->records.front();
    stream->records.pop_front();
    Event* const event = session_.events.find(oldest.event);
    if (!event || !event->listed || event->work != oldest.work) continue;
    event->done = done(*event);
    event->listed = false;
  }
}

bool EventProgress::done(const Event& event) {
  if (event.done || session_.work().passed(*event.device, nullptr, {event.work, true})) return true;
  return event.listed && session_.work().passed(*event.device, event.stream, {event.work, false});
}

bool EventProgress::knows_done(Event* event) {
  std::lock_guard lock(mutex_);
  return done(*event);
}

// Those that are done leave the list.
void EventProgress::learn(Stream* stream, uint64_t upto) {
  session_.work().note_done(*stream->device, stream, upto);
  take_off_until(stream, upto);
}

CUresult EventProgress::query(uint64_t id, Event* event) {
  if (t_not_done.covers(session_, *event)) {
    t_not_done.asked = event->work;
    return CUDA_ERROR_NOT_READY;
  }
  const uint32_t context = event->device->context();
  if (knows_done(event)) return session_.told_before(context);
  const wire::EventQuery body{id};
  Session::Exchange exchange;
  // Whoever has the lanes may wait for what a thread records that waits for the lock.
  if (!session_.has_room(&exchange)) return session_.ask(*event->device, wire::kEventQuery, body);
  Stream* const stream = event->stream;
  std::vector<uint64_t> works{event->work}, behind;
  wire::EventQueryReply reply{};
  uint64_t answers = 0;
  {
    std::lock_guard lock(mutex_);
    if (event->listed)
      for (const Stream::Record& r : stream->records)
        if (r.work > works[0] && behind.size() < wire::kMostEventsAsked)
          behind.push_back(r.event), works.push_back(r.work);
    answers = session_.answers_heard();
    const CUresult e = session_.begin_exchange(
        &exchange, wire::kEventQuery, &body, sizeof body, std::as_bytes(std::span(behind)),
        std::as_writable_bytes(std::span(&reply, 1)), nullptr, context);
    if (e != CUDA_SUCCESS) return e;
  }
  size_t got = 0, done = 0;
  const CUresult status = session_.end_exchange(exchange, &got);
  const bool told = got >= sizeof reply;  // an older worker tells of the one event alone
  if (status == CUDA_SUCCESS) done = 1 + (told ? std::min<size_t>(reply.done, behind.size()) : 0);
  if (status == CUDA_ERROR_NOT_READY || (told && done < works.size()))
    t_not_done = {stream, works[done], works[0], answers + 1, channel::now_ns()};
  if (done == 0) return status;
  std::lock_guard lock(mutex_);
  learn(stream, works[done - 1]);
  if (event->work == works[0]) event->done = true;
  return status;
}

}  // namespace sluice::client
