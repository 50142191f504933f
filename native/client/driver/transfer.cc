// SPDX-License-Identifier: Apache-2.0
#include "client/driver/transfer.h"

#include <algorithm>
#include <cstring>
#include <deque>

#include "channel/futex.h"
#include "client/core/copy_crew.h"
#include "client/driver/graph.h"
#include "wire/generated.h"

namespace sluice::client {

using wire::CopyToDevice;
using wire::CopyToHost;
using wire::HostPlace;

namespace {

constexpr uint64_t kReplyPiece = 4 << 20;  // of a copy to the host over a network
constexpr size_t kLaneBody = channel::kLaneBytes - 16;

std::span<const std::byte> bytes_of(const void* at, size_t n) {
  return {static_cast<const std::byte*>(at), n};
}

void gather(std::byte* to, const std::byte* from, uint64_t from_pitch, Rect r) {
  if (r.rows == 1) return crew_copy(to, from, r.width);
  for (uint64_t row = 0; row < r.rows; ++row)
    std::memcpy(to + row * r.width, from + row * from_pitch, r.width);
}

void scatter(std::byte* to, uint64_t to_pitch, const std::byte* from, Rect r) {
  if (r.rows == 1) return crew_copy(to, from, r.width);
  for (uint64_t row = 0; row < r.rows; ++row)
    std::memcpy(to + row * to_pitch, from + row * r.width, r.width);
}

// Cuts a rectangle into pieces of at most `limit` bytes: whole rows while one fits, else parts of a
// row. Calls f(row, column, piece).
template <class F>
CUresult for_pieces(Rect r, uint64_t limit, F&& f) {
  if (r.width <= limit) {
    const uint64_t rows_at_once = std::max<uint64_t>(1, limit / std::max<uint64_t>(1, r.width));
    for (uint64_t row = 0; row < r.rows; row += rows_at_once)
      if (const CUresult e = f(row, 0, Rect{r.width, std::min(rows_at_once, r.rows - row)});
          e != CUDA_SUCCESS)
        return e;
    return CUDA_SUCCESS;
  }
  for (uint64_t row = 0; row < r.rows; ++row)
    for (uint64_t column = 0; column < r.width; column += limit)
      if (const CUresult e = f(row, column, Rect{std::min(limit, r.width - column), 1});
          e != CUDA_SUCCESS)
        return e;
  return CUDA_SUCCESS;
}

CopyToDevice describe(const Stream* stream, const DeviceSide& device, Rect r, HostPlace place) {
  CopyToDevice c{};
  c.stream = stream->wire_id;
  c.device_address = device.address;
  c.device_pitch = device.pitch;
  c.host_pitch = r.width;
  c.width = r.width;
  c.rows = r.rows;
  c.place = place;
  c.mark = wire::kNoMark;
  return c;
}

uint32_t context_of(const Stream* stream) { return stream->device->index + 1; }

// The same with an array in the place of device memory.
template <class Command>
Command with_array(const CopyToDevice& c, const DeviceSide& device) {
  Command a{};
  a.stream = c.stream;
  a.array = device.array;
  a.x = device.x, a.y = device.y, a.z = device.z;
  a.width = c.width, a.rows = c.rows;
  a.hostAddress = c.host_address, a.hostPitch = c.host_pitch;
  a.value = c.value, a.mark = c.mark;
  a.place = static_cast<unsigned>(c.place);
  return a;
}

// Whether the worker can divide the host side at any piece of the arena.
bool divisible(const DeviceSide& device, const void* host, uint64_t pitch, Rect r) {
  return reinterpret_cast<uint64_t>(host) % device.element == 0 &&
         (r.rows == 1 || pitch % device.element == 0);
}

CUresult post_to_device(Session* s, Stream* stream, const CopyToDevice& c, const DeviceSide& to,
                        std::span<const std::byte> data = {}) {
  if (!to.array) return s->post(wire::kCopyToDevice, c, data, stream, context_of(stream));
  return s->post(wire::kSluiceCopyToArray, with_array<wire::SluiceCopyToArray>(c, to), data, stream,
                 context_of(stream));
}

CUresult exchange_to_device(Session* s, Stream* stream, const CopyToDevice& c,
                            const DeviceSide& to) {
  const uint32_t context = context_of(stream);
  if (!to.array) return s->exchange(wire::kCopyToDevice, c, {}, {}, nullptr, stream, context);
  return s->exchange(wire::kSluiceCopyToArray, with_array<wire::SluiceCopyToArray>(c, to), {}, {},
                     nullptr, stream, context);
}

CUresult post_to_host(Session* s, Stream* stream, const CopyToHost& c, const DeviceSide& from) {
  if (!from.array) return s->post(wire::kCopyToHost, c, {}, stream, context_of(stream));
  return s->post(wire::kSluiceCopyFromArray, with_array<wire::SluiceCopyFromArray>(c, from), {},
                 stream, context_of(stream));
}

// `work`: nullptr when the device is known to be done with it when the answer is here.
CUresult begin_to_host(Session* s, Session::Exchange* exchange, const Stream* stream,
                       const CopyToHost& c, const DeviceSide& from, std::span<std::byte> sink,
                       Stream* work) {
  const auto begin = [&](uint16_t function, const auto& body) {
    return s->begin_exchange(exchange, function, &body, sizeof body, {}, sink, work,
                             context_of(stream));
  };
  if (!from.array) return begin(wire::kCopyToHost, c);
  return begin(wire::kSluiceCopyFromArray, with_array<wire::SluiceCopyFromArray>(c, from));
}

// Copies whose data comes with the answers. A few are under way at a time, so that the GPU writes
// one while the network carries another.
class CopiesToHost {
 public:
  CopiesToHost(Session* s, const Stream* stream) : session_(s), stream_(stream) {}
  CopiesToHost(const CopiesToHost&) = delete;
  ~CopiesToHost() { finish(); }

  CUresult add(const DeviceSide& from, std::byte* to, uint64_t to_pitch, Rect r) {
    Copy copy{{}, to, to_pitch, r, {}};
    while (!under_way_.empty() &&
           (under_way_.size() == kUnderWay || !session_->has_room(&copy.exchange)))
      if (const CUresult e = finish_oldest(); e != CUDA_SUCCESS) return e;
    const size_t bytes = r.width * r.rows;
    if (r.rows > 1 && to_pitch != r.width) copy.packed.resize(bytes);
    under_way_.push_back(std::move(copy));
    Copy& c = under_way_.back();
    const CUresult e = begin_to_host(session_, &c.exchange, stream_,
                                     describe(stream_, from, r, HostPlace::kInline), from,
                                     {c.packed.empty() ? to : c.packed.data(), bytes}, nullptr);
    if (e != CUDA_SUCCESS) under_way_.pop_back();
    return e;
  }

  // The first error.
  CUresult finish() {
    CUresult first = CUDA_SUCCESS;
    while (!under_way_.empty())
      if (const CUresult e = finish_oldest(); first == CUDA_SUCCESS) first = e;
    return first;
  }

 private:
  static constexpr size_t kUnderWay = 3;
  struct Copy {
    Session::Exchange exchange;
    std::byte* to;
    uint64_t pitch;
    Rect rect;
    std::vector<std::byte> packed;
  };

  CUresult finish_oldest() {
    Copy& c = under_way_.front();
    size_t got = 0;
    CUresult e = session_->end_exchange(c.exchange, &got);
    if (e == CUDA_SUCCESS && got < c.rect.width * c.rect.rows) e = CUDA_ERROR_UNKNOWN;
    if (e == CUDA_SUCCESS && !c.packed.empty()) scatter(c.to, c.pitch, c.packed.data(), c.rect);
    under_way_.pop_front();
    return e;
  }

  Session* session_;
  const Stream* stream_;
  std::deque<Copy> under_way_;  // oldest first
};

// The session is lost, or every mark is taken by host functions that have not run.
CUresult no_staging(Session* s) {
  return s->sticky() != CUDA_SUCCESS ? s->sticky() : CUDA_ERROR_OUT_OF_MEMORY;
}

}  // namespace

CUresult wait_mark(Session* s, uint32_t mark, uint64_t value) {
  const Marks& marks = s->marks();
  const uint64_t start = channel::now_ns();
  uint64_t pause = 5'000, alive_at = start;
  for (;;) {
    for (int i = 0; i < 100; ++i) {
      if (marks.reached(mark, value)) return CUDA_SUCCESS;
      channel::cpu_relax();
    }
    if (const CUresult e = s->sticky(); e != CUDA_SUCCESS) return e;
    channel::spin_round();
    const uint64_t now = channel::now_ns();
    if (now - start < 100'000) continue;
    if (now - alive_at > 100'000'000) {
      alive_at = now;
      if (!s->channel().alive() && !marks.reached(mark, value))
        return s->exchange(wire::kPing, uint64_t{0});  // fails, and marks the session as lost
    }
    channel::sleep_ns(pause);
    pause = std::min<uint64_t>(pause * 2, 500'000);
  }
}

CUresult synchronize_stream(Session* s, Stream* stream) {
  const uint64_t upto = s->issued(*stream->device);
  const CUresult e = s->exchange(wire::kStreamSynchronize, wire::StreamId{stream->wire_id}, {}, {},
                                 nullptr, nullptr, context_of(stream));
  if (e != CUDA_SUCCESS) return e;
  s->note_done(*stream->device, stream, upto);
  s->after_synchronisation(*stream->device);
  return e;
}

CUresult wait_idle(Session* s, Device* d) {
  if (s->idle(*d)) return CUDA_SUCCESS;
  const uint64_t upto = s->issued(*d);
  const CUresult e = s->exchange(wire::kDeviceIdle, wire::DeviceIdle{d->index, 0});
  if (e == CUDA_SUCCESS) s->note_done(*d, nullptr, upto);
  return e;
}

CUresult copy_to_device(Session* s, Stream* stream, const DeviceSide& to, const void* from,
                        uint64_t from_pitch, Rect r, bool wait) {
  if (!to.array) note_use(s, stream, to.address);
  if (r.width == 0 || r.rows == 0) return CUDA_SUCCESS;
  const auto* source = static_cast<const std::byte*>(from);
  const uint64_t span = r.rows == 1 ? r.width : from_pitch * (r.rows - 1) + r.width;
  if (s->host_memory().in_arena(from, span) && divisible(to, from, from_pitch, r)) {
    CopyToDevice c = describe(stream, to, r, HostPlace::kArena);
    c.host_address = reinterpret_cast<uint64_t>(from);
    c.host_pitch = from_pitch;
    c.wait = wait;
    return wait ? exchange_to_device(s, stream, c, to) : post_to_device(s, stream, c, to);
  }
  if (stream->capture && to.array) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (stream->capture)
    return capture_copy_to_device(s, stream, to.address, to.pitch, from, from_pitch, r);
  // Memory that a host function may still write is read only after all that this stream waits for,
  // by events of other streams too.
  if (stream->device->host_functions.load() > 0)
    if (const CUresult e = synchronize_stream(s, stream); e != CUDA_SUCCESS) return e;
  const uint64_t limit = s->channel().inline_limit();
  if (r.width * r.rows <= limit || !s->marks()) {
    std::vector<std::byte> packed;
    return for_pieces(r, limit, [&](uint64_t row, uint64_t column, Rect piece) {
      const std::byte* at = source + row * from_pitch + column;
      if (piece.rows > 1 && from_pitch != piece.width) {
        packed.resize(piece.width * piece.rows);
        gather(packed.data(), at, from_pitch, piece);
        at = packed.data();
      }
      const DeviceSide there = to.at(row, column);
      const CopyToDevice c = describe(stream, there, piece, HostPlace::kInline);
      return post_to_device(s, stream, c, there, bytes_of(at, piece.width * piece.rows));
    });
  }
  std::lock_guard lock(s->host_memory().staging_lock);
  auto& pieces = s->host_memory().staging();
  if (pieces.empty()) return no_staging(s);
  size_t next = 0;
  return for_pieces(r, pieces[0].bytes, [&](uint64_t row, uint64_t column, Rect piece) {
    HostMemory::Staging& staging = pieces[next++ % pieces.size()];
    if (const CUresult e = wait_mark(s, staging.mark, staging.value); e != CUDA_SUCCESS) return e;
    gather(staging.at, source + row * from_pitch + column, from_pitch, piece);
    const DeviceSide there = to.at(row, column);
    CopyToDevice c = describe(stream, there, piece, HostPlace::kArena);
    c.host_address = reinterpret_cast<uint64_t>(staging.at);
    c.mark = staging.mark;
    c.value = staging.value = s->marks().next(staging.mark);
    return post_to_device(s, stream, c, there);
  });
}

CUresult copy_to_host(Session* s, Stream* stream, void* to, uint64_t to_pitch,
                      const DeviceSide& from, Rect r, bool wait) {
  if (!from.array) note_use(s, stream, from.address);
  if (r.width == 0 || r.rows == 0) return CUDA_SUCCESS;
  auto* target = static_cast<std::byte*>(to);
  const uint64_t span = r.rows == 1 ? r.width : to_pitch * (r.rows - 1) + r.width;
  const uint64_t upto = s->issued(*stream->device);
  if (s->host_memory().in_arena(to, span) && divisible(from, to, to_pitch, r)) {
    CopyToHost c = describe(stream, from, r, HostPlace::kArena);
    c.host_address = reinterpret_cast<uint64_t>(to);
    c.host_pitch = to_pitch;
    c.wait = wait;
    if (!wait) return post_to_host(s, stream, c, from);
    Session::Exchange exchange;
    CUresult e = begin_to_host(s, &exchange, stream, c, from, {}, stream);
    if (e == CUDA_SUCCESS) e = s->end_exchange(exchange, nullptr);
    if (e == CUDA_SUCCESS) s->note_done(*stream->device, stream, upto + 1);
    return e;
  }
  if (stream->capture && from.array) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (stream->capture)
    return capture_copy_to_host(s, stream, to, to_pitch, from.address, from.pitch, r);
  const bool shared = static_cast<bool>(s->marks());
  const uint64_t reply_limit = shared ? kLaneBody : kReplyPiece;
  if (r.width * r.rows <= reply_limit || !shared) {
    CopiesToHost copies(s, stream);
    const CUresult e = for_pieces(r, reply_limit, [&](uint64_t row, uint64_t column, Rect piece) {
      return copies.add(from.at(row, column), target + row * to_pitch + column, to_pitch, piece);
    });
    const CUresult last = copies.finish();
    if (e != CUDA_SUCCESS || last != CUDA_SUCCESS) return e != CUDA_SUCCESS ? e : last;
    s->note_done(*stream->device, stream, upto);
    return CUDA_SUCCESS;
  }
  std::lock_guard lock(s->host_memory().staging_lock);
  auto& pieces = s->host_memory().staging();
  if (pieces.empty()) return no_staging(s);
  struct Under {
    size_t staging;
    std::byte* to;
    Rect rect;
  };
  std::vector<Under> under;  // issued, oldest first
  size_t done = 0;
  const auto finish_oldest = [&]() -> CUresult {
    const Under& u = under[done++];
    const HostMemory::Staging& staging = pieces[u.staging];
    if (const CUresult e = wait_mark(s, staging.mark, staging.value); e != CUDA_SUCCESS) return e;
    scatter(u.to, to_pitch, staging.at, u.rect);
    return CUDA_SUCCESS;
  };
  CUresult e = for_pieces(r, pieces[0].bytes, [&](uint64_t row, uint64_t column, Rect piece) {
    if (under.size() - done == pieces.size())
      if (const CUresult failed = finish_oldest(); failed != CUDA_SUCCESS) return failed;
    const size_t index = under.size() % pieces.size();
    HostMemory::Staging& staging = pieces[index];
    if (const CUresult failed = wait_mark(s, staging.mark, staging.value); failed != CUDA_SUCCESS)
      return failed;
    const DeviceSide there = from.at(row, column);
    CopyToHost c = describe(stream, there, piece, HostPlace::kArena);
    c.host_address = reinterpret_cast<uint64_t>(staging.at);
    c.mark = staging.mark;
    c.value = staging.value = s->marks().next(staging.mark);
    under.push_back({index, target + row * to_pitch + column, piece});
    return post_to_host(s, stream, c, there);
  });
  while (e == CUDA_SUCCESS && done < under.size()) e = finish_oldest();
  return e;
}

void note_use(Session* s, Stream* stream, uint64_t address) {
  if (s->devices().size() == 1) return;
  Device* d = s->device_of_address(address);
  if (d && d != stream->device) d->users.fetch_or(1ull << stream->device->index);
}

CUresult copy_on_device(Session* s, Stream* stream, uint64_t to, uint64_t to_pitch, uint64_t from,
                        uint64_t from_pitch, Rect r, bool wait) {
  if (r.width == 0 || r.rows == 0) return CUDA_SUCCESS;
  note_use(s, stream, to);
  note_use(s, stream, from);
  const wire::CopyOnDevice c{stream->wire_id, to,     to_pitch, from, from_pitch,
                             r.width,         r.rows, wait,     0};
  if (!wait) return s->post(wire::kCopyOnDevice, c, {}, stream, context_of(stream));
  return s->exchange(wire::kCopyOnDevice, c, {}, {}, nullptr, stream, context_of(stream));
}

}  // namespace sluice::client
