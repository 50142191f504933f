// SPDX-License-Identifier: Apache-2.0
// What copies to the device (copy_to_device.cc) and to the host (copy_to_host.cc) have in common:
// rectangles in pieces, and how a piece is described to the worker.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "client/core/session.h"
#include "client/driver/transfer.h"
#include "client/objects/device.h"
#include "client/objects/stream.h"
#include "wire/bodies/commands.h"

namespace sluice::client::transfer {

// Rows of a rectangle made to lie one behind the other, and back.
void gather(std::byte* to, const std::byte* from, uint64_t from_pitch, Rect r);
void scatter(std::byte* to, uint64_t to_pitch, const std::byte* from, Rect r);

// Of a copy of so many bytes over a network, at most `limit`: the last piece is carried beside no
// other, the end of one costs the same whatever its size.
inline uint64_t piece_of(uint64_t bytes, uint64_t limit) {
  constexpr uint64_t kPieces = 8, kLeast = 4 << 20;
  return std::min(limit, std::max(kLeast, bytes / kPieces));
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

// A copy of `r` whose host side lies in the way that `place` says, row behind row. Copies to the
// host are described in the same words.
wire::CopyToDevice describe(const Stream* stream, const DeviceSide& device, Rect r,
                            wire::HostPlace place);
static_assert(std::is_same_v<wire::CopyToDevice, wire::CopyToHost>);

// The same with an array in the place of device memory.
template <class Command>
Command with_array(const wire::CopyToDevice& c, const DeviceSide& device) {
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
inline bool divisible(const DeviceSide& device, const void* host, uint64_t pitch, Rect r) {
  return reinterpret_cast<uint64_t>(host) % device.element == 0 &&
         (r.rows == 1 || pitch % device.element == 0);
}

// Why there are no staging pieces: the session is lost, or every mark is taken by host functions
// that have not run.
inline CUresult no_staging(Session* s) {
  return s->sticky() != CUDA_SUCCESS ? s->sticky() : CUDA_ERROR_OUT_OF_MEMORY;
}

}  // namespace sluice::client::transfer
