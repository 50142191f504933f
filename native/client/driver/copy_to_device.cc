// SPDX-License-Identifier: Apache-2.0
// Copies from the host to the device. Each goes the first of three ways that it can: in place, out
// of the arena; inside of commands, when it is small or no memory is shared; through staging pieces
// of the arena, a few of which are under way at a time.
#include <algorithm>
#include <cstring>
#include <mutex>
#include <span>
#include <vector>

#include "client/driver/graph.h"
#include "client/driver/transfer.h"
#include "client/driver/transfer_pieces.h"
#include "client/driver/wait.h"
#include "wire/generated.h"

namespace sluice::client {

namespace transfer {

using wire::CopyToDevice;
using wire::HostPlace;

namespace {

CUresult post_to_device(Session* s, const Session::Work& work, const CopyToDevice& c,
                        const DeviceSide& to, std::span<const std::byte> data = {}) {
  const uint32_t context = work.stream->device->context();
  if (!to.array) return s->post(wire::kCopyToDevice, c, data, work, context);
  return s->post(wire::kSluiceCopyToArray, with_array<wire::SluiceCopyToArray>(c, to), data, work,
                 context);
}

// Its bytes have left when the call returns: the host cannot notice when they arrive.
Session::Work unseen(Stream* stream) { return {stream, false}; }

CUresult exchange_to_device(Session* s, Stream* stream, const CopyToDevice& c,
                            const DeviceSide& to) {
  const uint32_t context = stream->device->context();
  if (!to.array) return s->exchange(wire::kCopyToDevice, c, {}, {}, nullptr, stream, context);
  return s->exchange(wire::kSluiceCopyToArray, with_array<wire::SluiceCopyToArray>(c, to), {}, {},
                     nullptr, stream, context);
}

CUresult copy_from_arena(Session* s, Stream* stream, const DeviceSide& to, const void* from,
                         uint64_t from_pitch, Rect r, bool wait) {
  CopyToDevice c = describe(stream, to, r, HostPlace::kArena);
  c.host_address = reinterpret_cast<uint64_t>(from);
  c.host_pitch = from_pitch;
  c.wait = wait;
  return wait ? exchange_to_device(s, stream, c, to) : post_to_device(s, stream, c, to);
}

// Memory that the program may change once the stream has passed: what was allocated as pinned,
// where the copy was asked for and is not waited for.
bool stays(Session* s, const std::byte* from, uint64_t bytes, bool wait) {
  if (wait) return false;
  const HostMemory::Range r = s->host_memory().find(from);
  return r.place == HostMemory::Place::kPlain &&
         bytes <= r.bytes - (reinterpret_cast<uint64_t>(from) - r.start);
}

CUresult copy_in_commands(Session* s, Stream* stream, const DeviceSide& to, const std::byte* from,
                          uint64_t from_pitch, Rect r, uint64_t limit, bool wait) {
  using Lent = Channel::Lent;
  std::vector<std::byte> packed;
  const bool whole = r.rows == 1 || from_pitch == r.width;
  Channel& channel = s->channel().towards(stream->device->index);
  if (!to.array && (stream->device->record.abilities & wire::kTakesLargeCopies))
    limit = piece_of(r.width * r.rows, std::max<uint64_t>(limit, channel.copy_limit()));
  const Lent how = whole && stays(s, from, r.width * r.rows, wait) ? Lent::kUntilStreamPassed
                                                                   : Lent::kUntilSettled;
  const bool lent = whole && channel.begin_lending(r.width * r.rows, how);
  const bool stays_lent = lent && how == Lent::kUntilStreamPassed;
  // The host may change what stays lent once the stream is known to have passed.
  const Session::Work work = stays_lent ? Session::Work(stream) : unseen(stream);
  const CUresult e = for_pieces(r, limit, [&](uint64_t row, uint64_t column, Rect piece) {
    const std::byte* at = from + row * from_pitch + column;
    if (piece.rows > 1 && from_pitch != piece.width) {
      packed.resize(piece.width * piece.rows);
      gather(packed.data(), at, from_pitch, piece);
      at = packed.data();
    }
    const DeviceSide there = to.at(row, column);
    const CopyToDevice c = describe(stream, there, piece, HostPlace::kInline);
    return post_to_device(s, work, c, there, {at, piece.width * piece.rows});
  });
  if (stays_lent) return channel.end_lending(), e;
  if (lent && !channel.settle() && e == CUDA_SUCCESS) return s->lose(stream->device->context());
  return e;
}

CUresult copy_from_staging(Session* s, Stream* stream, const DeviceSide& to, const std::byte* from,
                           uint64_t from_pitch, Rect r) {
  std::lock_guard lock(s->host_memory().staging_lock);
  auto& pieces = s->host_memory().staging();
  if (pieces.empty()) return no_staging(s);
  size_t next = 0;
  return for_pieces(r, pieces[0].bytes, [&](uint64_t row, uint64_t column, Rect piece) {
    HostMemory::Staging& staging = pieces[next++ % pieces.size()];
    if (const CUresult e = wait_mark(s, staging.mark, staging.value); e != CUDA_SUCCESS) return e;
    gather(staging.at, from + row * from_pitch + column, from_pitch, piece);
    const DeviceSide there = to.at(row, column);
    CopyToDevice c = describe(stream, there, piece, HostPlace::kArena);
    c.host_address = reinterpret_cast<uint64_t>(staging.at);
    c.mark = staging.mark;
    c.value = staging.value = s->marks().next(staging.mark);
    return post_to_device(s, unseen(stream), c, there);
  });
}

}  // namespace

}  // namespace transfer

CUresult copy_to_device(Session* s, Stream* stream, const DeviceSide& to, const void* from,
                        uint64_t from_pitch, Rect r, bool wait) {
  if (!to.array) note_use(s, stream, to.address);
  if (r.width == 0 || r.rows == 0) return CUDA_SUCCESS;
  const uint64_t span = r.rows == 1 ? r.width : from_pitch * (r.rows - 1) + r.width;
  if (s->host_memory().in_arena(from, span) && transfer::divisible(to, from, from_pitch, r))
    return transfer::copy_from_arena(s, stream, to, from, from_pitch, r, wait);
  if (stream->capture && to.array) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (stream->capture)
    return capture_copy_to_device(s, stream, to.address, to.pitch, from, from_pitch, r);
  // Memory that a host function may still write is read only after all that this stream waits for,
  // by events of other streams too.
  if (stream->device->host_functions.load() > 0)
    if (const CUresult e = synchronize_stream(s, stream); e != CUDA_SUCCESS) return e;
  s->note_host_side(from);
  const auto* source = static_cast<const std::byte*>(from);
  const uint64_t limit = s->channel().inline_limit();
  const CUresult e =
      r.width * r.rows <= limit || !s->marks()
          ? transfer::copy_in_commands(s, stream, to, source, from_pitch, r, limit, wait)
          : transfer::copy_from_staging(s, stream, to, source, from_pitch, r);
  return e == CUDA_SUCCESS && wait ? end_unseen(s, stream) : e;
}

}  // namespace sluice::client
