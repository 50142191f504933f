// SPDX-License-Identifier: Apache-2.0
// What passes through a session's channel: commands out, in the order in which their senders came,
// and answers back to whoever waits for them.
#include <cstdio>
#include <cstring>

#include "channel/futex.h"
#include "client/core/end_notice.h"
#include "client/core/enter.h"
#include "client/core/session.h"
#include "wire/bodies/commands.h"
#include "wire/bodies/profiling.h"

namespace sluice::client {

uint32_t Session::context_of(const Device& device) { return device.context(); }

CUresult Session::lose(uint32_t context) {
  if (const uint32_t error = channel_->node_error(context)) return static_cast<CUresult>(error);
  uint32_t expected = 0;
  if (lost_.compare_exchange_strong(expected, CUDA_ERROR_SYSTEM_NOT_READY)) {
    const uint32_t told = channel_->sticky_error();
    lost_ = told ? told : static_cast<uint32_t>(CUDA_ERROR_UNKNOWN);
    say_ended({});
  }
  return sticky();
}

CUresult Session::outcome(DeviceMemory::Result result, const Device& device) {
  if (result == DeviceMemory::Result::kSessionLost) {
    if (const uint32_t e = channel_->node_error(device.context())) return static_cast<CUresult>(e);
    if (const CUresult e = sticky(); e != CUDA_SUCCESS) return e;
  }
  return as_result(result);
}

void Session::note_host_kind(const void* at) {
  thread_state().call.pageable = host_memory_.find(at).bytes == 0;
}

bool Session::append_mark(bool gives_work, uint32_t context) {
  CallMark& call = thread_state().call;
  if (call.correlation == 0) return true;
  call.gave_work = call.gave_work || gives_work;
  struct {
    wire::FrameHeader header;
    wire::ProfileMark mark;
  } const frame{{sizeof frame, wire::kProfileMark, wire::kNoLane, 0, context},
                {call.correlation, 0}};
  std::byte* at = channel_->reserve(sizeof frame);
  if (!at) return false;
  std::memcpy(at, &frame, sizeof frame);
  channel_->commit(sizeof frame, false);
  return true;
}

bool Session::append(uint16_t function, uint32_t lane, uint32_t sequence, const void* body,
                     size_t bytes, std::span<const std::byte> tail, Work work, uint32_t context) {
  const size_t head = sizeof(wire::FrameHeader) + bytes;
  const size_t size = wire::round_up(head + tail.size(), 8);
  const bool awaited = lane != wire::kNoLane, apart = tail.size() >= channel_->tail_apart_from();
  const auto appending = work_.appending();
  if (marks_calls.load(std::memory_order_relaxed) && !append_mark(work.stream, context))
      [[unlikely]]
    return false;
  std::byte* at = channel_->reserve(apart ? head : size);
  if (!at) return false;
  const wire::FrameHeader h{static_cast<uint32_t>(size), function, static_cast<uint16_t>(lane),
                            sequence, context};
  std::memcpy(at, &h, sizeof h);
  if (bytes) std::memcpy(at + sizeof h, body, bytes);
  if (!tail.empty() && !apart) std::memcpy(at + head, tail.data(), tail.size());
  if (work.stream) work_.count(*work.stream, work.seen, appending);
  if (!awaited) {
    ++statistics_.commands;
    if (config_.stats) ++statistics_.commands_of[function % Statistics::kFunctions];
  }
  if (apart)
    channel_->commit_apart(head, tail);
  else
    channel_->commit(size, awaited);
  return true;
}

namespace {

// Those that say which memory they touch, and have had it made ready (ManagedMemory::before_use).
bool names_its_memory(uint16_t function) {
  return function == wire::kCopyToDevice || function == wire::kCopyToHost ||
         function == wire::kCopyOnDevice || function == wire::kFillDevice ||
         function == wire::kHostFunction;
}

}  // namespace

CUresult Session::before_work(uint16_t function, Stream* stream) {
  if (managed.any() && !names_its_memory(function))
    if (const CUresult e = managed.before_work(*stream); e != CUDA_SUCCESS) return e;
  return fences.join(stream);
}

// Of memory that becomes accessible by being touched, which nobody may do who holds the channel.
std::vector<std::byte> Session::taken_from_managed(std::span<const std::byte> tail) {
  const auto at = reinterpret_cast<uint64_t>(tail.data());
  return managed.may_contain(at) ? std::vector<std::byte>(tail.begin(), tail.end())
                                 : std::vector<std::byte>();
}

CUresult Session::post(uint16_t function, const void* body, size_t bytes,
                       std::span<const std::byte> tail, Work work, uint32_t context) {
  if (forked_.load(std::memory_order_relaxed)) return CUDA_ERROR_NOT_INITIALIZED;
  std::vector<std::byte> taken;
  if (managed.any() && !tail.empty() && !(taken = taken_from_managed(tail)).empty()) tail = taken;
  const ManagedMemory::Giving giving(managed);
  if (work.stream)
    if (const CUresult e = before_work(function, work.stream); e != CUDA_SUCCESS) return e;
  if (!append(function, wire::kNoLane, 0, body, bytes, tail, work, context)) return lose(context);
  return CUDA_SUCCESS;
}

CUresult Session::exchange(uint16_t function, const void* body, size_t bytes,
                           std::span<const std::byte> tail, std::span<std::byte> sink, size_t* got,
                           Work work, uint32_t context) {
  Exchange exchange;
  std::vector<std::byte> taken, apart;
  const std::span<std::byte> asked = sink;
  if (managed.any()) {
    if (!tail.empty() && !(taken = taken_from_managed(tail)).empty()) tail = taken;
    if (managed.may_contain(reinterpret_cast<uint64_t>(sink.data()))) {
      apart.resize(sink.size());
      sink = apart;
    }
  }
  CUresult e = begin_exchange(&exchange, function, body, bytes, tail, sink, work, context);
  size_t received = 0;
  if (e == CUDA_SUCCESS) e = end_exchange(exchange, &received);
  if (got) *got = received;
  if (!apart.empty()) std::memcpy(asked.data(), apart.data(), std::min(received, apart.size()));
  return e;
}

bool Session::take_lane(uint32_t* taken, bool wait) {
  // A lane of its own for the time of the call; the thread's last one is likely free and warm.
  ThreadState& thread = thread_state();
  uint32_t lane = thread.last_lane % channel_->lane_count();
  for (uint32_t tried = 0; lanes_[lane].busy.exchange(true, std::memory_order_acquire);) {
    lane = (lane + 1) % channel_->lane_count();
    if (++tried % channel_->lane_count() != 0) continue;
    if (!wait) return false;
    channel::sleep_ns(50'000);
  }
  *taken = thread.last_lane = lane;
  return true;
}

CUresult Session::begin_exchange(Exchange* exchange, uint16_t function, const void* body,
                                 size_t bytes, std::span<const std::byte> tail,
                                 std::span<std::byte> sink, Work work, uint32_t context) {
  if (forked_.load(std::memory_order_relaxed)) return CUDA_ERROR_NOT_INITIALIZED;
  if (!exchange->has_lane) take_lane(&exchange->lane, true);
  exchange->has_lane = true;
  const ManagedMemory::Giving giving(managed);
  if (work.stream)
    if (const CUresult e = before_work(function, work.stream); e != CUDA_SUCCESS) {
      lanes_[exchange->lane].busy.store(false, std::memory_order_release);
      exchange->has_lane = false;
      return e;
    }
  exchange->function = function;
  exchange->context = context;
  exchange->sink = sink;
  exchange->sequence = next_sequence(exchange->lane);
  channel_->expect(exchange->lane, sink);
  if (!append(function, exchange->lane, exchange->sequence, body, bytes, tail, work, context)) {
    lanes_[exchange->lane].busy.store(false, std::memory_order_release);
    exchange->has_lane = false;
    return lose(context);
  }
  statistics_.round_trips.fetch_add(1, std::memory_order_relaxed);
  if (config_.stats) statistics_.count_round_trip(function);
  return CUDA_SUCCESS;
}

CUresult Session::end_exchange(Exchange& exchange, size_t* got) {
  const uint32_t lane = exchange.lane;
  struct Free {
    std::atomic<bool>& busy;
    bool armed = true;
    ~Free() {
      if (armed) busy.store(false, std::memory_order_release);
    }
  } free_lane{lanes_[lane].busy};
  exchange.has_lane = false;
  const auto sink = exchange.sink;
  uint32_t sequence = exchange.sequence;
  Reply reply;
  if (!channel_->wait(lane, sequence, &reply)) return lose(exchange.context);
  answers_heard_.fetch_add(1, std::memory_order_acq_rel);
  const uint32_t first = reply.status;
  size_t received = 0;
  for (;;) {
    const auto piece = reply.body;
    statistics_.bytes_in.fetch_add(piece.size(), std::memory_order_relaxed);
    const auto room = received < sink.size() ? sink.subspan(received) : std::span<std::byte>();
    if (!room.empty() && !piece.empty() && piece.data() != room.data())
      std::memcpy(room.data(), piece.data(), std::min(room.size(), piece.size()));
    received += piece.size();
    if (!(reply.status & wire::kMoreFollows)) break;
    // The lane is still ours, and the worker keeps the rest for it.
    sequence = next_sequence(lane);
    const uint64_t from = received;
    if (!append(wire::kReplyRest, lane, sequence, &from, sizeof from, {}, nullptr,
                exchange.context))
      return lose(exchange.context);
    statistics_.round_trips.fetch_add(1, std::memory_order_relaxed);
    if (config_.stats) statistics_.count_round_trip(wire::kReplyRest);
    if (!channel_->wait(lane, sequence, &reply)) return lose(exchange.context);
  }
  if (got) *got = received;
  const auto status = static_cast<CUresult>(first & ~(wire::kOutputWaiting | wire::kMoreFollows));
  if (first & wire::kOutputWaiting) {
    // The lane serves again for this; the sink has been filled already.
    lanes_[lane].busy.store(false, std::memory_order_release);
    free_lane.armed = false;
    show_output(exchange.context);
  }
  if (!spans_nodes_ || status != CUDA_SUCCESS) return status;
  if (std::exchange(free_lane.armed, false))
    lanes_[lane].busy.store(false, std::memory_order_release);
  return told_before(exchange.context);
}

// Its GPU is well then, and does what it is asked for with memory that is not what it should be.
CUresult Session::told_before(uint32_t context) {
  node_links.settle();
  if (const uint32_t error = channel_->node_error(context)) return static_cast<CUresult>(error);
  return channel_->some_node_left() ? CUDA_SUCCESS : sticky();
}

// To the C library's own stream, so that it keeps its place among what the program prints itself.
void Session::show_output(uint32_t context) {
  std::vector<std::byte> reply(wire::kOutputPiece);
  for (;;) {
    wire::OutputReply head{};
    size_t got = 0;
    if (exchange(wire::kReadOutput, uint64_t{0}, {}, reply, &got, nullptr, context) != CUDA_SUCCESS)
      return;
    if (got >= sizeof head && got <= reply.size()) std::memcpy(&head, reply.data(), sizeof head);
    if (head.bytes == 0 || head.bytes > got - sizeof head) return;
    std::fwrite(reply.data() + sizeof head, 1, head.bytes, head.error ? stderr : stdout);
  }
}

}  // namespace sluice::client
