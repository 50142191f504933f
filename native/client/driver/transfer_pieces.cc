// SPDX-License-Identifier: Apache-2.0
#include "client/driver/transfer_pieces.h"

#include <cstring>

#include "client/core/copy_crew.h"

namespace sluice::client::transfer {

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

wire::CopyToDevice describe(const Stream* stream, const DeviceSide& device, Rect r,
                            wire::HostPlace place) {
  wire::CopyToDevice c{};
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

}  // namespace sluice::client::transfer
