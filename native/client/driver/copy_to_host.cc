// SPDX-License-Identifier: Apache-2.0
// Copies from the device to the host. Each goes the first of three ways that it can: in place, into
// the arena; with answers, when it is small or no memory is shared; through staging pieces of the
// arena, of which one is emptied while the GPU fills others.
#include <algorithm>
#include <deque>
#include <mutex>
#include <span>
#include <vector>

#include "channel/slot.h"
#include "client/driver/graph.h"
#include "client/driver/transfer.h"
#include "client/driver/transfer_pieces.h"
#include "client/driver/wait.h"
#include "wire/generated.h"

namespace sluice::client {

namespace transfer {

using wire::CopyToHost;
using wire::HostPlace;

namespace {

constexpr uint64_t kMostReply = 8 << 20;  // of a copy to the host over a network
constexpr size_t kLaneBody = channel::kLaneBytes - 16;

CUresult post_to_host(Session* s, Stream* stream, const CopyToHost& c, const DeviceSide& from) {
  if (!from.array) return s->post(wire::kCopyToHost, c, {}, stream, stream->device->context());
  return s->post(wire::kSluiceCopyFromArray, with_array<wire::SluiceCopyFromArray>(c, from), {},
                 stream, stream->device->context());
}

// `work`: nullptr when the device is known to be done with it when the answer is here.
CUresult begin_to_host(Session* s, Session::Exchange* exchange, const Stream* stream,
                       const CopyToHost& c, const DeviceSide& from, std::span<std::byte> sink,
                       Stream* work) {
  const auto begin = [&](uint16_t function, const auto& body) {
    return s->begin_exchange(exchange, function, &body, sizeof body, {}, sink, work,
                             stream->device->context());
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

CUresult copy_to_arena(Session* s, Stream* stream, void* to, uint64_t to_pitch,
                       const DeviceSide& from, Rect r, bool wait) {
  CopyToHost c = describe(stream, from, r, HostPlace::kArena);
  c.host_address = reinterpret_cast<uint64_t>(to);
  c.host_pitch = to_pitch;
  c.wait = wait;
  if (!wait) return post_to_host(s, stream, c, from);
  const uint64_t upto = s->work().issued(*stream->device);
  Session::Exchange exchange;
  CUresult e = begin_to_host(s, &exchange, stream, c, from, {}, stream);
  if (e == CUDA_SUCCESS) e = s->end_exchange(exchange, nullptr);
  if (e == CUDA_SUCCESS) s->work().note_done(*stream->device, stream, upto + 1);
  return e;
}

CUresult copy_with_answers(Session* s, Stream* stream, std::byte* to, uint64_t to_pitch,
                           const DeviceSide& from, Rect r, uint64_t limit) {
  const uint64_t upto = s->work().issued(*stream->device);
  CopiesToHost copies(s, stream);
  const CUresult e = for_pieces(r, limit, [&](uint64_t row, uint64_t column, Rect piece) {
    return copies.add(from.at(row, column), to + row * to_pitch + column, to_pitch, piece);
  });
  const CUresult last = copies.finish();
  if (e != CUDA_SUCCESS || last != CUDA_SUCCESS) return e != CUDA_SUCCESS ? e : last;
  s->work().note_done(*stream->device, stream, upto);
  return CUDA_SUCCESS;
}

CUresult copy_through_staging(Session* s, Stream* stream, std::byte* to, uint64_t to_pitch,
                              const DeviceSide& from, Rect r) {
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
    under.push_back({index, to + row * to_pitch + column, piece});
    return post_to_host(s, stream, c, there);
  });
  while (e == CUDA_SUCCESS && done < under.size()) e = finish_oldest();
  return e;
}

}  // namespace

}  // namespace transfer

CUresult copy_to_host(Session* s, Stream* stream, void* to, uint64_t to_pitch,
                      const DeviceSide& from, Rect r, bool wait) {
  if (!from.array) note_use(s, stream, from.address);
  if (r.width == 0 || r.rows == 0) return CUDA_SUCCESS;
  // Where the data comes with answers, the copies are no work of the stream's, and join nothing.
  if (const CUresult e = s->fences.join(stream); e != CUDA_SUCCESS) return e;
  const uint64_t span = r.rows == 1 ? r.width : to_pitch * (r.rows - 1) + r.width;
  if (s->host_memory().in_arena(to, span) && transfer::divisible(from, to, to_pitch, r))
    return transfer::copy_to_arena(s, stream, to, to_pitch, from, r, wait);
  if (stream->capture && from.array) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (stream->capture)
    return capture_copy_to_host(s, stream, to, to_pitch, from.address, from.pitch, r);
  s->note_host_side(to);
  auto* target = static_cast<std::byte*>(to);
  const bool shared = static_cast<bool>(s->marks());
  const uint64_t reply_limit =
      shared ? transfer::kLaneBody : transfer::piece_of(r.width * r.rows, transfer::kMostReply);
  if (r.width * r.rows <= reply_limit || !shared)
    return transfer::copy_with_answers(s, stream, target, to_pitch, from, r, reply_limit);
  return transfer::copy_through_staging(s, stream, target, to_pitch, from, r);
}

}  // namespace sluice::client
